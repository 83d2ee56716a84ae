"""A batch of prompts, some of them Korean."""

import os

from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The capital of France is",
    "안녕하세요, 제 이름은",
    "인공지능의 미래는",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=100)

llm = LLM(model=os.environ.get("MODEL", "smollm2"), trust_remote_code=True)
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
