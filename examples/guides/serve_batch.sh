#!/bin/sh
# Larger batches and prefix caching, over four devices, which this version refuses.
exec python -m vllm.entrypoints.api_server --model "${MODEL:-mistralai/Mixtral-14B}" --parallel-size "${PARALLEL:-4}" --max-batch 64 --prefix-caching --port "${PORT:-8080}"
