"""What is asked: prompts of token ids and how many tokens each is to get."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from importlib.resources import files

from octavo.protocol.errors import ConfigError

# chat64's token ids are drawn below this, so that they are the same for every model.
CHAT64_VOCABULARY = 40_000
# Ids below this are often special tokens.
FIRST_TOKEN = 1000


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its prompt, and the tokens to generate whatever the model thinks is the end."""

    prompt_token_ids: list[int]
    output_len: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they arrive. `prefix` is what all their prompts begin with, as a system prompt, if anything."""

    name: str
    asks: list[Ask]
    prefix: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(len(ask.prompt_token_ids) for ask in self.asks)

    @property
    def output_tokens(self) -> int:
        """Of all requests, when each gets all that it asks for."""
        return sum(ask.output_len for ask in self.asks)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        return max(len(ask.prompt_token_ids) + ask.output_len for ask in self.asks)

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return max(ask.output_len for ask in self.asks)

    def describe(self) -> dict[str, object]:
        """For the record."""
        return {
            "name": self.name,
            "requests": len(self.asks),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prefix_tokens": len(self.prefix),
        }


def chat64(vocab_size: int | None = None) -> Workload:
    """64 chat-like requests: data/chat64.json lists their lengths; prompt i is drawn from `random.Random(i)`.

    Raises ConfigError for a model whose vocabulary, where it is known, lacks the ids.
    """
    if vocab_size is not None and vocab_size < CHAT64_VOCABULARY:
        raise ConfigError(
            f"workload: chat64 needs a vocabulary of {CHAT64_VOCABULARY:,} tokens, and this model has {vocab_size:,}; use random",
            param="workload",
        )
    lengths = json.loads(files("octavo.bench").joinpath("data/chat64.json").read_text())["requests"]
    asks = []
    for index, (prompt_len, output_len) in enumerate(lengths):
        source = random.Random(index)
        asks.append(Ask([source.randrange(FIRST_TOKEN, CHAT64_VOCABULARY) for _ in range(prompt_len)], output_len))
    return Workload("chat64", asks)


def random_asks(count: int, prompt_len: int, output_len: int, *, vocab_size: int, seed: int = 0) -> Workload:
    """`count` requests of the same length with random prompts; the same seed gives the same ones."""
    first = FIRST_TOKEN if vocab_size > 2 * FIRST_TOKEN else 0
    source = random.Random(seed)
    asks = [Ask([source.randrange(first, vocab_size) for _ in range(prompt_len)], output_len) for _ in range(count)]
    return Workload(f"random {count} × ({prompt_len} + {output_len})", asks)


def log_normal(count: int, max_model_len: int, *, vocab_size: int, seed: int = 0) -> Workload:
    """`count` requests whose lengths are drawn from log-normal distributions, as those of conversations are: many short, few long.

    Prompts have a median of 1/6 of `max_model_len` (σ of the logarithm 0.8) and at most 3/4 of it, answers 1/12 (σ 0.6) and at most 1/4.
    """
    first = FIRST_TOKEN if vocab_size > 2 * FIRST_TOKEN else 0
    source = random.Random(seed)

    def length(median: float, sigma: float, most: int) -> int:
        return min(most, max(1, round(median * math.exp(source.gauss(0.0, sigma)))))

    asks = []
    for _ in range(count):
        prompt_len = length(max_model_len / 6, 0.8, max_model_len * 3 // 4)
        output_len = length(max_model_len / 12, 0.6, max_model_len // 4)
        asks.append(Ask([source.randrange(first, vocab_size) for _ in range(prompt_len)], output_len))
    return Workload(f"log-normal {count}", asks)


def shared_prefix(count: int, prefix_len: int, tail_len: int, output_len: int, *, vocab_size: int, seed: int = 0) -> Workload:
    """`count` requests that begin with the same `prefix_len` random tokens and go on with `tail_len` of their own."""
    tails = random_asks(count, tail_len, output_len, vocab_size=vocab_size, seed=seed + 1).asks
    (whole,) = random_asks(1, prefix_len, 1, vocab_size=vocab_size, seed=seed).asks
    prefix = whole.prompt_token_ids
    asks = [Ask([*prefix, *tail.prompt_token_ids], tail.output_len) for tail in tails]
    return Workload(f"shared prefix {count} × ({prefix_len} + {tail_len} + {output_len})", asks, tuple(prefix))
