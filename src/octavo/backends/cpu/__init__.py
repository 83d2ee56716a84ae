"""The native CPU backend: packed weights, fused operations, one call a step."""
