"""What vLLM makes of transformers, of which Octavo needs nothing."""
