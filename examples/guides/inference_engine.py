"""The short names of the Python side."""

import os

from vllm import GenerationConfig, InferenceEngine

model = InferenceEngine(model_path=os.environ.get("MODEL", "smollm2"), trust_remote=True, gpu_util=0.85)
gen_config = GenerationConfig(temp=0.8, top_p=0.95, max_tokens=512)
inputs = ["Explain paged attention.", "페이지드 어텐션을 설명해 주세요."]
results = model.generate(inputs, gen_config)
for res in results:
    print(res.outputs[0].content)
