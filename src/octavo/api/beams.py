"""What a beam search found, in the shape of `LLM.beam_search`."""

from __future__ import annotations

from octavo.api.generation import Generation
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput
from octavo.text.tokenizer import Tokenizer


def beams_of(generation: Generation, tokenizer: Tokenizer, params: BeamSearchParams) -> BeamSearchOutput:
    """The sequences of a finished search; as in vLLM, tokens and text begin with the prompt."""
    found = generation.output()
    return BeamSearchOutput([_sequence(found.prompt_token_ids, output, tokenizer, params) for output in found.outputs])


def _sequence(prompt: list[int], output: CompletionOutput, tokenizer: Tokenizer, params: BeamSearchParams) -> BeamSearchSequence:
    tokens = [*prompt, *output.token_ids]
    silent = output.finish_reason == "stop" and not params.include_stop_str_in_output
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=output.logprobs or [],
        cum_logprob=output.cumulative_logprob or 0.0,
        text=tokenizer.decode(tokens[:-1] if silent else tokens, params.skip_special_tokens),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )
