"""A share of the memory, and a limit on the context."""

import os

from vllm import LLM, SamplingParams

llm = LLM(model=os.environ.get("MODEL", "smollm2"), gpu_memory_utilization=0.7, max_model_len=4096)
print("The capital of Japan is" + llm.generate("The capital of Japan is", SamplingParams(temperature=0))[0].outputs[0].text)
