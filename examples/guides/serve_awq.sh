#!/bin/sh
# An AWQ checkpoint, which this version can't read yet; --quant gptq is refused alike.
exec python -m vllm.entrypoints.api_server --model "${MODEL:-TheBloke/Mistral-7B-AWQ}" --quant "${QUANT:-awq}" --port "${PORT:-8080}"
