#!/bin/sh
# Two devices, which this version refuses: it runs on one.
exec python -m vllm.entrypoints.api_server --model "${MODEL:-smollm2}" --parallel-size 2 --port "${PORT:-8080}"
