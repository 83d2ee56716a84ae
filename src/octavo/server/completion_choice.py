"""One choice of a completion, whole or in pieces."""

from __future__ import annotations

from msgspec import UNSET

from octavo.protocol.outputs import CompletionOutput, RequestOutput
from octavo.server.context import ServerContext
from octavo.server.generation import Job
from octavo.server.logprobs import TextOffsets, completion_logprobs, echoed_logprobs, joined, prompt_logprobs, prompt_offsets, spelling
from octavo.server.responses import CompletionChoice, CompletionLogprobs


class ChoiceWriter:
    """Writes a choice of the prompt at `prompt_index`. What goes before its text, such as an echo of the prompt, is in the first piece."""

    def __init__(self, ctx: ServerContext, job: Job, prompt_index: int) -> None:
        self._job = job
        self._prompt_index = prompt_index
        self._prompt = job.prompts[prompt_index]
        self._tokenizer = ctx.llm.tokenizer
        self._spell = spelling(self._tokenizer, as_ids=job.tokens_as_ids)
        self._begun = False
        self._echoed = self._echo() if job.echo else ""
        self._offsets = TextOffsets(
            self._tokenizer,
            self._prompt.token_ids,
            skip_special_tokens=job.skip_special_tokens,
            spaces=job.spaces,
            start=len(self._echoed),
        )

    def write(self, request: RequestOutput, output: CompletionOutput) -> CompletionChoice:
        """The choice, or its next piece, as `output` has it; `request` is what that belongs to."""
        job, begins = self._job, not self._begun
        self._begun = True
        choice = CompletionChoice(self._prompt_index * job.n + output.index, output.text, None, output.finish_reason, output.stop_reason)
        if job.logprobs is not None:
            choice.logprobs = self._logprobs(request, output, job.logprobs, begins)
        if job.echo and begins:
            choice.text = self._echoed + choice.text
        if job.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(request.prompt_logprobs, job.prompt_logprobs)
        if job.return_token_ids:
            choice.token_ids = output.token_ids
            choice.prompt_token_ids = self._prompt.token_ids if begins else UNSET
        return choice

    def _logprobs(self, request: RequestOutput, output: CompletionOutput, count: int, begins: bool) -> CompletionLogprobs:
        logprobs = completion_logprobs(output.logprobs or [], self._spell, self._offsets.advance)
        if not (self._job.echo and begins):
            return logprobs
        ids, text = self._prompt.token_ids, self._prompt.text
        offsets = prompt_offsets(self._tokenizer, ids, text, skip_special_tokens=self._job.skip_special_tokens)
        return joined(echoed_logprobs(ids, request.prompt_logprobs or (), count, self._spell, offsets), logprobs)

    def _echo(self) -> str:
        """The prompt's text: as it came, or of its tokens."""
        prompt = self._prompt
        if prompt.text is not None:
            return prompt.text
        # Half a character at its end is made whole by the output, if there is any.
        return self._tokenizer.decode(prompt.token_ids, self._job.skip_special_tokens, whole=False)
