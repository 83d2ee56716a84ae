"""The engine of vLLM since its version 1."""
