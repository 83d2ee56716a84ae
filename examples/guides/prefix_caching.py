"""Prompts that begin alike: what they share is computed once."""

import os

from vllm import LLM, SamplingParams

llm = LLM(model=os.environ.get("MODEL", "smollm2"), enable_prefix_caching=True)
shared = (
    "Q: What is the capital of Italy?\nA: Rome.\n"
    "Q: What is the capital of Spain?\nA: Madrid.\n"
    "Q: What is the capital of Japan?\nA: Tokyo.\n"
    "Q: What is the capital of "
)
for country in ["Greece", "Egypt"]:
    output = llm.generate(f"{shared}{country}?\nA:", SamplingParams(temperature=0, max_tokens=20, stop="\n"))[0]
    print(f"{output.num_cached_tokens} tokens were there already: {country}:{output.outputs[0].text}")
