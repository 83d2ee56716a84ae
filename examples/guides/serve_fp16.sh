#!/bin/sh
# The same with keys and values in float16.
exec python -m vllm.entrypoints.api_server --model "${MODEL:-smollm2}" --precision fp16 --port "${PORT:-8080}"
