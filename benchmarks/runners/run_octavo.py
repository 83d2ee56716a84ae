"""Octavo through LLM, in the interpreter that Octavo is installed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measuring import Request, main
from octavo import LLM
from octavo.bench.session import greedy


class Octavo:
    """Defaults, but for the threads."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._llm = LLM(task["model"], threads=task["threads"], quiet=True, **task["options"])

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """See measuring.Engine."""
        params = [greedy(count) for _, count in requests]
        outputs = self._llm.generate([prompt for prompt, _ in requests], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def close(self) -> None:
        """Frees the model."""
        self._llm.close()


if __name__ == "__main__":
    main(Octavo, ["octavo", "numpy"])
