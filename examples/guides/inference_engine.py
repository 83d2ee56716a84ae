"""The short names of the Python side."""

import os

from vllm import GenerationConfig, InferenceEngine

model = InferenceEngine(model_path=os.environ.get("MODEL", "smollm2"), trust_remote=True, gpu_util=0.85)
gen_config = GenerationConfig(temp=0.8, top_p=0.95, max_tokens=512, seed=1, stop="\n")
inputs = [
    "Q: How many legs has a spider?\nA: A spider has eight legs.\nQ: How many legs has a cat?\nA:",
    "Q: What colour is the sky?\nA: The sky is blue.\nQ: What colour is grass?\nA:",
]
results = model.generate(inputs, gen_config)
for res in results:
    print(res.outputs[0].content.strip())
