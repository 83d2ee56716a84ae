"""What every contender is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.workload import CHAT64_VOCABULARY, Ask, chat64, random_asks

# "What is the opposite of hot?" as a chat of the default model, and its answer, "The opposite of hot is cold.". In float32 the second
# likeliest tokens lie 3.8, 5.6, 7.7, 4.7, 3.9, 0.6 and 2.0 behind in the logits, so no contender's rounding should change it.
QUESTION = [1, 9690, 198, 2, 198, 1, 4093, 198, 1780, 314, 260, 7011, 282, 3380, 47, 2, 198, 1, 520, 9531, 198]
ANSWER = [504, 7011, 282, 3380, 314, 4011, 30]
MAX_MODEL_LEN = 1280
WARMUP_SEED = 1_000_000
TASKS = ("stream", "prefill", "chat64")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked: prompts of the tasks with one request at a time, and requests of chat64, whose answers end after
    `longest_answer` tokens."""

    stream_len: int = 128
    repeats: int = 3
    requests: int = 64
    longest_answer: int = 1024


FULL, QUICK = Scale(), Scale(stream_len=16, repeats=1, requests=4, longest_answer=8)


def make_task(name: str, scale: Scale) -> dict[str, Any]:
    """A task as runners take it (runners/measuring.py)."""
    if name == "chat64":
        asks = chat64_requests(scale)
        # As many of the same lengths, for as much memory as the measurement needs, but other prompts, and two tokens only.
        lengths = [len(ask.prompt_token_ids) for ask in asks]
        warmup = [_random_ask(length, 2, index) for index, length in enumerate(lengths)]
        return {"name": name, "together": True, "warmup": _plain(warmup), "requests": _plain(asks)}
    prompt_len, output_len = (32, scale.stream_len) if name == "stream" else (1024, 1)
    asks = random_asks(1 + scale.repeats, prompt_len, output_len, vocab_size=CHAT64_VOCABULARY, seed=prompt_len).asks
    return {"name": name, "together": False, "warmup": _plain(asks[:1]), "requests": _plain(asks[1:])}


def chat64_requests(scale: Scale) -> list[Ask]:
    """chat64, or the beginning of it."""
    return [Ask(ask.prompt_token_ids, min(ask.output_len, scale.longest_answer)) for ask in chat64().asks[: scale.requests]]


def question() -> dict[str, Any]:
    """Its answer shows that a contender computes the model."""
    return {"prompt": QUESTION, "output_len": len(ANSWER)}


def job(model: str, threads: int, options: dict[str, Any], tasks: Sequence[str], scale: Scale) -> dict[str, Any]:
    """All that a runner needs."""
    return {
        "model": model,
        "threads": threads,
        "max_model_len": MAX_MODEL_LEN,
        "options": options,
        "question": question(),
        "tasks": [make_task(name, scale) for name in tasks],
    }


def _random_ask(prompt_len: int, output_len: int, seed: int) -> Ask:
    return random_asks(1, prompt_len, output_len, vocab_size=CHAT64_VOCABULARY, seed=WARMUP_SEED + seed).asks[0]


def _plain(asks: Sequence[Ask]) -> list[tuple[list[int], int]]:
    return [(ask.prompt_token_ids, ask.output_len) for ask in asks]


if __name__ == "__main__":
    # python -m comparison.tasks full|quick MODEL THREADS OPTIONS TASK…: a job for a runner that is started by hand.
    size, model, threads, options, *names = sys.argv[1:]
    print(json.dumps(job(model, int(threads), json.loads(options), names, {"full": FULL, "quick": QUICK}[size])))
