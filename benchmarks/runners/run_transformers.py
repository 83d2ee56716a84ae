"""transformers: model.generate on torch, one request at a time or in static batches of `batch_size`, padded on the left.

A static batch runs until its longest answer is complete; each request gets the first tokens of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from measuring import Request, main


class Transformers:
    """bfloat16 weights; `options["batch_size"]` requests in a batch, in the order in which they come."""

    def __init__(self, task: dict[str, Any]) -> None:
        torch.set_num_threads(task["threads"])
        self._model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.bfloat16)
        self._model.eval()
        self._pad = self._model.config.pad_token_id
        self._batch_size: int = task["options"]["batch_size"]

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """See measuring.Engine."""
        outputs: list[list[int]] = []
        for start in range(0, len(requests), self._batch_size):
            outputs += self._batch(requests[start : start + self._batch_size])
        return outputs

    def _batch(self, requests: Sequence[Request]) -> list[list[int]]:
        width = max(len(prompt) for prompt, _ in requests)
        count = max(count for _, count in requests)
        ids = torch.tensor([[self._pad] * (width - len(prompt)) + prompt for prompt, _ in requests])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in requests])
        # No end token: generation goes on to its length.
        config = GenerationConfig(do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=self._pad, eos_token_id=None)
        with torch.inference_mode():
            found = self._model.generate(ids, attention_mask=mask, generation_config=config)
        return [row[width : width + wanted].tolist() for row, (_, wanted) in zip(found, requests, strict=True)]


if __name__ == "__main__":
    main(Transformers, ["transformers", "torch"])
