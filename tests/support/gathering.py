"""Putting streamed outputs together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from octavo import CompletionOutput, RequestOutput


class Gathered:
    """What the deltas of one request add up to."""

    def __init__(self) -> None:
        self.samples: dict[int, CompletionOutput] = {}
        self.count = 0
        self.last: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        """One more delta. Its samples must have something new to say, and none may say anything after its end."""
        assert self.last is None or not self.last.finished
        assert output.outputs
        self.last = output
        self.count += 1
        for delta in output.outputs:
            sample = self.samples.setdefault(delta.index, CompletionOutput(delta.index, "", []))
            assert not sample.finished(), "news of a finished sample"
            assert delta.text or delta.token_ids or delta.finished(), "a delta without news"
            sample.text += delta.text
            sample.token_ids += delta.token_ids
            if delta.logprobs is not None:
                assert len(delta.logprobs) == len(delta.token_ids)
                sample.logprobs = (sample.logprobs or []) + delta.logprobs
            sample.cumulative_logprob = delta.cumulative_logprob
            sample.finish_reason, sample.stop_reason = delta.finish_reason, delta.stop_reason

    def output(self) -> RequestOutput:
        """All of it, as a request that was not streamed gives it."""
        assert self.last is not None
        outputs = [self.samples[index] for index in sorted(self.samples)]
        last = self.last
        return RequestOutput(last.request_id, last.prompt, last.prompt_token_ids, outputs, last.finished, last.metrics)


async def gather(outputs: AsyncIterator[RequestOutput]) -> Gathered:
    """Reads to the end, which must come within two minutes."""
    gathered = Gathered()
    async with asyncio.timeout(120):
        async for output in outputs:
            gathered.add(output)
    return gathered
