"""64 requests of mixed lengths, of which a test may take the first few, and their results as bits."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from octavo import LLM, SamplingParams
from octavo.protocol.outputs import RequestOutput

PROMPTS = 64
VOCABULARY = 512


def prompts() -> list[list[int]]:
    """Token ids: lengths from 1 to about 300, the short ones more often."""
    made = random.Random(7)
    return [[made.randrange(4, VOCABULARY) for _ in range(int(300 ** made.random()))] for _ in range(PROMPTS)]


def greedy() -> list[SamplingParams]:
    """Greedy, up to 40 tokens each, with logprobs."""
    made = random.Random(8)
    return [SamplingParams(temperature=0, max_tokens=made.randrange(1, 41), ignore_eos=True, logprobs=3) for _ in range(PROMPTS)]


def seeded() -> list[SamplingParams]:
    """Every kind of sampling, each with its own seed."""
    made = random.Random(9)
    kinds = [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 40},
        {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.2},
        {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.5, "min_tokens": 5},
    ]
    return [
        SamplingParams(**kinds[index % 4], seed=index, max_tokens=made.randrange(6, 41), logprobs=3)  # type: ignore[arg-type]
        for index in range(PROMPTS)
    ]


def bits(outputs: Sequence[RequestOutput]) -> list[tuple[object, ...]]:
    """Everything that a caller sees of each result, its floats as bits."""
    return [request_bits(output) for output in outputs]


def request_bits(output: RequestOutput) -> tuple[object, ...]:
    """One result: tokens, text, end, and each logprob as the eight bytes of a float64."""
    samples = []
    for sample in output.outputs:
        assert sample.logprobs is not None
        assert len(sample.logprobs) == len(sample.token_ids) > 0
        logprobs = [
            [(token, struct.pack("<d", entry.logprob), entry.rank) for token, entry in position.items()] for position in sample.logprobs
        ]
        samples.append((sample.token_ids, sample.text, sample.finish_reason, logprobs))
    return tuple(samples)


def run(llm: LLM, params: list[SamplingParams]) -> list[tuple[object, ...]]:
    """As many requests as there are parameters, all at once."""
    return bits(llm.generate(prompts()[: len(params)], params, use_tqdm=False))


def run_alone(llm: LLM, params: list[SamplingParams]) -> list[tuple[object, ...]]:
    """The same, one by one."""
    return [bits(llm.generate(prompt, each, use_tqdm=False))[0] for prompt, each in zip(prompts(), params, strict=False)]
