"""A request's fields as BeamSearchParams, and what of a request can't be said of a beam search."""

from __future__ import annotations

import json
from typing import Any

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError
from octavo.server.requests import Generation

# Fields that say how tokens are drawn or where a text ends, with the values that ask for nothing.
_WITHOUT_MEANING: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "spaces_between_special_tokens": (True,),
    "prompt_logprobs": (),
}


def check_beam_fields(request: Generation) -> None:
    """Raises InvalidRequestError for fields that only a beam search has, where there is none, or that it can't have."""
    if not request.use_beam_search:
        for name, off in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(request, name) not in (None, off):
                raise InvalidRequestError(f"{name}: needs use_beam_search.", param=name)
        return
    if request.stream:
        raise InvalidRequestError("stream: a beam search knows its results only at its end; they can't be streamed.", param="stream")
    for name, values in _WITHOUT_MEANING.items():
        value = getattr(request, name, None)
        if value is not None and value not in values:
            raise InvalidRequestError(
                f"{name}: has no meaning with use_beam_search, which draws nothing, ends by end tokens and tells of its results alone; "
                f"leave it out{_or_one_of(values)}.",
                param=name,
            )


def _or_one_of(values: tuple[Any, ...]) -> str:
    return f", or give {' or '.join(json.dumps(value) for value in values)}" if values else ""


def beam_params(request: Generation, beam_width: int, max_tokens: int) -> BeamSearchParams:
    """BeamSearchParams for `request`. The model's own sampling defaults don't apply: nothing is drawn."""
    given = {
        name: value
        for name in ("ignore_eos", "length_penalty", "early_stopping", "include_stop_str_in_output", "skip_special_tokens")
        if (value := getattr(request, name)) is not None
    }
    return BeamSearchParams(beam_width, max_tokens, **given)
