"""Safetensors, GGUF, hub and PyPI to named tensors; ignorant of models."""
