"""LLM and AsyncLLM: text in, text out, over an engine."""
