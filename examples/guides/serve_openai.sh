#!/bin/sh
# The OpenAI-compatible server under vLLM's module name, on port 8000.
exec python -m vllm.entrypoints.openai.api_server --model "${MODEL:-smollm2}" --port "${PORT:-8000}"
