"""Prompts that begin alike: what they share is computed once."""

import os

from vllm import LLM, SamplingParams

llm = LLM(model=os.environ.get("MODEL", "smollm2"), enable_prefix_caching=True)
shared = "You are a patient assistant who answers in one sentence, and who says so when something is not known. "
for question in ["What is a cache?", "What is a block?"]:
    output = llm.generate(shared + question, SamplingParams(temperature=0, max_tokens=20))[0]
    print(f"{output.num_cached_tokens} tokens were there already: {output.outputs[0].text!r}")
