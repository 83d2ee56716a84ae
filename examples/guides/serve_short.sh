#!/bin/sh
# vLLM's first server under the short names of its flags, on port 8080.
exec python -m vllm.entrypoints.api_server --model "${MODEL:-smollm2}" --trust-remote-code --precision bf16 --gpu-mem-usage 0.85 --server-port "${PORT:-8080}"
