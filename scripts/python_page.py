"""docs/python.md: the names of the package octavo, from their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import octavo
from octavo import LLM, AsyncLLM, BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams
from octavo.api.arguments import FIELDS, PARTS
from octavo.config.without_effect import WITHOUT_EFFECT
from octavo.text.hugging_face_names import HuggingFaceNames
from octavo.text.tokenizer import Tokenizer

OUTPUTS = (
    "RequestOutput",
    "CompletionOutput",
    "Logprob",
    "BeamSearchOutput",
    "BeamSearchSequence",
    "PoolingRequestOutput",
    "EmbeddingRequestOutput",
)
EXAMPLES = """\
```python
from octavo import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams

with LLM("smollm2", max_model_len=2048) as llm:
    # Several samples of one prompt compute it once and share its blocks.
    (output,) = llm.generate("Once upon a time", SamplingParams(n=3, temperature=0.8, max_tokens=20, seed=1))
    for completion in output.outputs:
        print(completion.index, completion.finish_reason, repr(completion.text))

    # The likeliest continuations.
    (found,) = llm.beam_search("The capital of Japan is", BeamSearchParams(beam_width=4, max_tokens=8))
    for sequence in found.sequences:
        print(round(sequence.cum_logprob, 2), repr(sequence.text))

    # A text that is one of these.
    choice = SamplingParams(temperature=0, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
    print(llm.chat([{"role": "user", "content": "Is fire hot?"}], choice)[0].outputs[0].text)

    # Hidden states, pooled and of length 1.
    (embedded,) = llm.embed("The capital of Japan is Tokyo.")
    print(len(embedded.outputs.embedding))
```

```python
import asyncio

from octavo import AsyncLLM, SamplingParams
from octavo.config.engine import EngineConfig, ModelConfig


async def main() -> None:
    async with await AsyncLLM.start(EngineConfig(ModelConfig("smollm2", max_model_len=2048))) as llm:
        # Each output has what came since the one before; leaving the loop ends the request.
        async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=40, seed=1), request_id="story"):
            print(output.outputs[0].text, end="", flush=True)


asyncio.run(main())
```
"""


def signature_of(function: Callable[..., Any], name: str) -> str:
    """As it is called, without types."""
    shown = []
    starred = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        text = f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
        shown.append(text if parameter.default is parameter.empty else f"{text}={parameter.default!r}")
    return f"`{name}({', '.join(shown)})`"


def words_of(thing: Any) -> str:
    """The docstring, its paragraphs as they are."""
    return inspect.getdoc(thing) or ""


def methods_of(kind: type, table: Callable[[list[str], list[list[str]]], str]) -> str:
    """A section for each public method, and a table of properties."""
    text, properties = "", []
    for name, member in vars(kind).items():
        if name.startswith("_") or getattr(member, "__isabstractmethod__", False):
            continue
        if isinstance(member, property):
            properties.append([f"`{name}`", words_of(member).replace("\n", " ")])
        elif callable(getattr(kind, name)):
            text += f"### {kind.__name__}.{name}\n\n{signature_of(getattr(kind, name), name)}\n\n{words_of(getattr(kind, name))}\n\n"
    return text + (table(["property", "meaning"], properties) + "\n" if properties else "")


def engine_keywords(table: Callable[[list[str], list[list[str]]], str]) -> str:
    """What LLM takes by keyword, by the part of the configuration that it fills."""
    rows = []
    for keyword, (part, field) in FIELDS.items():
        default = next(each.default for each in fields(PARTS[part]) if each.name == field)
        rows.append([f"`{keyword}`", f"`{default!r}`", part.replace("_", " ")])
    return table(["keyword", "default", "part"], rows)


def python_page(table: Callable[[list[str], list[list[str]]], str]) -> str:
    """The page."""
    harmless = ", ".join(f"`{name}`" for name in sorted(WITHOUT_EFFECT))
    text = (
        "<!-- Written by scripts/gen_docs.py from the code; change the code and run `make docs`. -->\n# Python\n\n"
        f"`from octavo import {', '.join(octavo.__all__)}`. Names and defaults are vLLM's; [sampling.md](sampling.md) "
        f"tells what the sampling parameters do.\n\n{EXAMPLES}\n"
        f"## LLM\n\n{signature_of(LLM.__init__, 'LLM')}\n\n{words_of(LLM)}\n\n{engine_keywords(table)}\n"
        f"Keywords of vLLM's that are taken with values that ask for what Octavo does anyway, and refused by name with others: {harmless}. "
        "`disable_log_stats=False` is what `get_metrics` needs.\n\n"
    )
    text += methods_of(LLM, table)
    text += f"## Tokenizer\n\nWhat `get_tokenizer` gives.\n\n{words_of(Tokenizer)}\n\n{methods_of(Tokenizer, table)}\n"
    text += f"### Names of transformers'\n\n{words_of(HuggingFaceNames)}\n\n{methods_of(HuggingFaceNames, table)}\n"
    text += f"## AsyncLLM\n\n{words_of(AsyncLLM)}\n\n{methods_of(AsyncLLM, table)}\n## Parameters of requests\n\n"
    for kind in (SamplingParams, StructuredOutputsParams, BeamSearchParams, PoolingParams):
        text += f"### {kind.__name__}\n\n{signature_of(kind, kind.__name__)}\n\n{words_of(kind)}\n\n"
    text += "## Outputs\n\n"
    for name in OUTPUTS:
        kind = getattr(octavo, name)
        names = ", ".join(f"`{each}`" for each in (getattr(kind, "__struct_fields__", ()) or [each.name for each in fields(kind)]))
        text += f"### {name}\n\n{names}\n\n{words_of(kind)}\n\n"
    return text.rstrip() + "\n"
