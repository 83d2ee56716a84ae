"""A model over four devices, which this version refuses: it runs on one."""

import os

from vllm import LLM

llm = LLM(model=os.environ.get("MODEL", "smollm2"), tensor_parallel_size=4)
