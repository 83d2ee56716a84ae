#!/bin/sh
# Whose names these are, and whose code runs.
python -c "import vllm; print(vllm.__version__)"
