"""An adapter for a request, which this version refuses: it has none."""

import os

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

sampling_params = SamplingParams(temperature=0, max_tokens=50)
llm = LLM(model=os.environ.get("MODEL", "smollm2"), enable_lora=True)
outputs = llm.generate("Hello", sampling_params, lora_request=LoRARequest("adapter_1", 1, "path/to/lora_adapter"))
print(outputs[0].outputs[0].text)
