"""Writes tests/fixtures/NAME/beams.json: what transformers' beam search finds, in float32.

Run with an environment that has torch and transformers, from the repository's root: `PYTHON scripts/expected_beams.py [NAME ...]`.
The end tokens of each case are chosen so that they come up: with random weights the model's own hardly would.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
NAMES = ("tiny-llama", "tiny-mistral")
WIDTHS = (2, 4, 7)
PENALTIES = (0.0, 1.0, 2.0, -1.0)
STOPPING = (False, True, "never")
MAX_TOKENS = 16


def end_tokens(model: Any, prompt: torch.Tensor) -> list[list[int]]:
    """The model's own; two that its likely continuations hold; and a tenth of the vocabulary."""
    found = model.generate(prompt, generation_config=config(8, 0.0, False, [], MAX_TOKENS), attention_mask=torch.ones_like(prompt))
    generated = found.sequences[:, prompt.shape[1] :]
    many = random.Random(int(prompt.sum())).sample(range(4, model.config.vocab_size), model.config.vocab_size // 10)
    return [[2], sorted({int(generated[0, 9]), int(generated[-1, 4])}), sorted(many)]


def config(width: int, penalty: float, stopping: bool | str, ends: list[int], max_tokens: int) -> GenerationConfig:
    """A search without any draw, whose scores come with it."""
    return GenerationConfig(
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        early_stopping=stopping,
        eos_token_id=ends or None,
        pad_token_id=3,
        max_new_tokens=max_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )


def greedy(model: Any, prompt: torch.Tensor, ends: list[int], max_tokens: int) -> list[dict[str, Any]]:
    """A search of one beam, which transformers calls greedy and gives no score."""
    found = model.generate(prompt, generation_config=config(1, 1.0, False, ends, max_tokens), attention_mask=torch.ones_like(prompt))
    tokens = found.sequences[0, prompt.shape[1] :].tolist()
    logprobs = [float(torch.log_softmax(step[0], -1)[token]) for step, token in zip(found.scores, tokens, strict=True)]
    return [{"token_ids": tokens, "score": round(sum(logprobs), 6)}]


def search(model: Any, prompt: torch.Tensor, settings: GenerationConfig, ends: list[int]) -> list[dict[str, Any]]:
    """What a search finds: tokens without padding, and scores as transformers counts them."""
    found = model.generate(prompt, generation_config=settings, attention_mask=torch.ones_like(prompt))
    beams = []
    for row, score, indices in zip(found.sequences, found.sequences_scores, found.beam_indices, strict=True):
        length = int((indices >= 0).sum())
        tokens = row[prompt.shape[1] :][:length].tolist()
        assert not set(ends) & set(tokens[:-1])
        beams.append({"token_ids": tokens, "score": round(float(score), 6)})
    return beams


def cases(model: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Every combination for each prompt."""
    made = []
    for number, ids in enumerate(prompts):
        prompt = torch.tensor([ids])
        for ends in end_tokens(model, prompt):
            for width, penalty, stopping in product(WIDTHS, PENALTIES, STOPPING):
                beams = search(model, prompt, config(width, penalty, stopping, ends, MAX_TOKENS), ends)
                made.append(
                    {
                        "prompt": number,
                        "eos_token_ids": ends,
                        "beam_width": width,
                        "length_penalty": penalty,
                        "early_stopping": stopping,
                        "max_tokens": MAX_TOKENS,
                        "beams": beams,
                    }
                )
            beams = greedy(model, prompt, ends, MAX_TOKENS)
            made.append({"prompt": number, "eos_token_ids": ends, "beam_width": 1, "length_penalty": 0.0, "early_stopping": False})
            made[-1] |= {"max_tokens": MAX_TOKENS, "beams": beams}
    return made


def main(names: list[str]) -> None:
    """Writes the files of the named fixtures, or of all."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in names or NAMES:
        folder = FIXTURES / name
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model.generation_config = GenerationConfig()
        known = json.loads((folder / "expected.json").read_text())["prompts"]
        prompts = [known[0]["input_ids"][:21], known[1]["input_ids"][:16]]
        document = {
            "fixture": name,
            "made_by": f"scripts/expected_beams.py, transformers {transformers.__version__}, torch {torch.__version__}",
            "compute_dtype": "float32",
            "tolerance": {"score_rel": 1e-4},
            "prompts": prompts,
        }
        found = cases(model, prompts)
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in found)
        (folder / "beams.json").write_text(json.dumps(document)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
        ended = sum(any(beam["token_ids"][-1] in case["eos_token_ids"] for beam in case["beams"]) for case in found)
        print(f"{name}: {len(found)} cases, {ended} with finished beams")


if __name__ == "__main__":
    main(sys.argv[1:])
