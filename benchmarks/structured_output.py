"""What structured output costs: requests with and without a schema, in turns, on one engine: `python benchmarks/structured_output.py`.

Run it on a machine that does nothing else; docs/structured-output.md has results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from octavo import LLM, SamplingParams, StructuredOutputsParams

SCHEMAS = 8
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "counting", "sheep"]
KINDS = ("without", "schemas", "any text")


def schema(index: int) -> dict[str, Any]:
    """An array that no request comes to the end of."""
    properties: dict[str, Any] = {
        f"name{index % SCHEMAS}": {"type": "string", "maxLength": 40},
        "count": {"type": "integer", "minimum": 0, "maximum": 100_000},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue", "other"]}},
        "when": {"type": "string", "format": "date"},
    }
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "minItems": 200, "items": item}


def prompt(index: int) -> str:
    """Of 60 to 79 words."""
    return " ".join(WORDS[(index + place) % len(WORDS)] for place in range(60 + index % 20)) + " As JSON: "


def sampling(kind: str, index: int, tokens: int) -> SamplingParams:
    """How request `index` is sampled; none ends before `tokens`."""
    asked = None
    if kind == "schemas":
        asked = StructuredOutputsParams(json=schema(index), disable_any_whitespace=True)
    elif kind == "any text":
        asked = StructuredOutputsParams(regex=r"(.|\n)*")
    return SamplingParams(temperature=0.8, seed=index, max_tokens=tokens, ignore_eos=True, structured_outputs=asked)


def measure(llm: LLM, kind: str, requests: int, tokens: int) -> float:
    """Tokens a second of one turn."""
    prompts = [prompt(index) for index in range(requests)]
    params = [sampling(kind, index, tokens) for index in range(requests)]
    started = time.perf_counter()
    outputs = llm.generate([*prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def main() -> None:
    """Prints each turn, and the medians."""
    parser = argparse.ArgumentParser(prog="benchmarks/structured_output.py", description="What structured output costs.")
    parser.add_argument("--model", default="smollm2", help="as for octavo serve (default: smollm2)")
    parser.add_argument("--requests", type=int, default=64, help="at once (default: 64)")
    parser.add_argument("--tokens", type=int, default=64, help="of each request (default: 64)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each kind (default: 4)")
    options = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with LLM(options.model, quiet=True, max_num_batched_tokens=1024) as llm:
        for kind in KINDS:
            measure(llm, kind, options.requests, options.tokens)
        for _ in range(options.rounds):
            for kind, speeds in found.items():
                speeds.append(measure(llm, kind, options.requests, options.tokens))
                print(f"{kind}: {speeds[-1]:.1f} tokens/s", flush=True)
    base = statistics.median(found["without"])
    for kind, speeds in found.items():
        median = statistics.median(speeds)
        print(f"{kind}: median {median:.1f} tokens/s, {100 * (1 - median / base):.1f} % less than without")


if __name__ == "__main__":
    main()
