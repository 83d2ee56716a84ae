"""One device: step inputs, program, sampler."""
