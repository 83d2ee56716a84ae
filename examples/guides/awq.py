"""An AWQ checkpoint, which this version can't read yet."""

import os

from vllm import LLM

llm = LLM(model=os.environ.get("MODEL", "TheBloke/Llama-2-7B-Chat-AWQ"), quantization="awq", dtype="half")
