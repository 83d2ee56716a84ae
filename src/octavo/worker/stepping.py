"""One step: a program's logits, and a token from each. A program that samples by itself does both in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.backends.base import Program, SamplingProgram, StepInputs
from octavo.backends.sampling import FORBIDDEN, ROW, NoToken, SamplingInputs, SamplingOutputs
from octavo.protocol.wire import TokenLogprobs
from octavo.structured_output.matcher import Words, mask_words
from octavo.worker.masks import PendingMasks
from octavo.worker.sampler import Sampled, SampleFailed, Sampler, SamplingRow, failed

_NO_CHANGES, _NO_BIASES, _NO_MASKS = np.empty(0, np.int32), np.empty(0, np.float32), np.empty((0, 0), np.int32)


class Stepper(Protocol):
    """Runs a step and samples: one result for each of the step's rows of logits, whose SamplingRows are given in their order. Rows
    with a grammar have their masks once `masks` are finished."""

    def run(self, step: StepInputs, rows: Sequence[SamplingRow], masks: PendingMasks | None = None) -> list[Sampled | SampleFailed]:
        """Computes one step."""
        ...


def stepper_for(program: Program, vocab_size: int) -> Stepper:
    """The program's own sampling where it has one, else the Sampler's."""
    return InProgram(program, vocab_size) if isinstance(program, SamplingProgram) else InNumpy(program, vocab_size)


class InNumpy:
    """The program gives logits, and the Sampler takes tokens from them."""

    def __init__(self, program: Program, vocab_size: int) -> None:
        self._program = program
        self._sampler = Sampler(vocab_size)

    def run(self, step: StepInputs, rows: Sequence[SamplingRow], masks: PendingMasks | None = None) -> list[Sampled | SampleFailed]:
        """Computes one step, then each row."""
        logits = self._program.run(step)
        if masks is not None:
            masks.finish()
        return self._sampler.sample(logits, rows)


class InProgram:
    """The program samples: rows go in and tokens come out as plain values."""

    def __init__(self, program: SamplingProgram, vocab_size: int) -> None:
        self._program = program
        self._vocab_size = vocab_size

    def run(self, step: StepInputs, rows: Sequence[SamplingRow], masks: PendingMasks | None = None) -> list[Sampled | SampleFailed]:
        """Computes one step with its sampling, in one call where no masks are to be waited for in between."""
        self._program.expect_step()
        if masks is None:
            outputs = self._program.run_and_sample(step, pack(rows, self._vocab_size))
        else:
            logits = self._program.run(step)
            masks.finish()
            outputs = self._program.sample(logits, pack(rows, self._vocab_size))
        return list(unpack(outputs, rows, self._vocab_size))


def pack(rows: Sequence[SamplingRow], vocab_size: int) -> SamplingInputs:
    """The rows as a program takes them."""
    records = np.frombuffer(bytearray().join([row.record or _record(row) for row in rows]), ROW)
    records["position"] = [row.position for row in rows]
    if not any(row.given >= 0 or row.changes_logits for row in rows):
        return SamplingInputs(records, _NO_CHANGES, _NO_CHANGES, _NO_CHANGES, _NO_BIASES, _NO_MASKS)
    records["given"] = [row.given for row in rows]
    ids: list[npt.NDArray[np.int32] | npt.NDArray[np.int64]] = []
    counts: list[npt.NDArray[np.int32] | npt.NDArray[np.float32]] = []
    bias_ids: list[int] = []
    biases: list[float] = []
    masks: list[Words] = []
    for place, row in enumerate(rows):
        if not row.changes_logits:
            continue
        changes = 0
        if row.mask is not None:
            records["mask"][place] = len(masks)
            masks.append(row.mask)
        if row.sampling.has_penalties:
            penalised, times = row.counted().changes()
            ids.append(penalised)
            counts.append(times)
            changes = len(penalised)
        if row.sampling.logit_bias:
            bias_ids += row.sampling.logit_bias.keys()
            biases += row.sampling.logit_bias.values()
        ends = row.end_token_ids if row.forbids_ends else ()
        forbidden = np.array([token for token in (*ends, *row.completing()) if token < vocab_size], np.int32)
        if len(forbidden):
            ids.append(forbidden)
            counts.append(np.full(len(forbidden), FORBIDDEN, np.int32))
            changes += len(forbidden)
        records["changes"][place] = changes
    return SamplingInputs(
        records,
        np.concatenate(ids, dtype=np.int32, casting="unsafe") if ids else _NO_CHANGES,
        np.concatenate(counts, dtype=np.int32, casting="unsafe") if counts else _NO_CHANGES,
        np.array(bias_ids, np.int32),
        np.array(biases, np.float32),
        np.concatenate(masks or [_NO_CHANGES]).reshape(len(masks), mask_words(vocab_size)),
    )


def unpack(outputs: SamplingOutputs, rows: Sequence[SamplingRow], vocab_size: int) -> Iterator[Sampled | SampleFailed]:
    """What a program gave for the rows."""
    place = end = 0
    for token_id, row in zip(outputs.token_ids, rows, strict=True):
        count = row.sampling.logprobs
        logprobs = None
        if count is not None:
            start, end = end, end + _tops(count, vocab_size)
            logprobs = TokenLogprobs(
                outputs.logprobs[place], outputs.ranks[place], outputs.top_ids[start:end], outputs.top_logprobs[start:end]
            )
            place += 1
        if token_id < 0:
            yield failed(NoToken(token_id), row)
        else:
            yield row.failure or Sampled(token_id, logprobs)


def _tops(count: int, vocab_size: int) -> int:
    return vocab_size if count == -1 else min(count, vocab_size)


def _record(row: SamplingRow) -> bytes:
    """What of the row stays the same from step to step, kept with it."""
    sampling = row.sampling
    record = np.zeros((), ROW)
    record["seed"] = row.seed % 2**64
    record["temperature"] = 0.0 if sampling.is_greedy else sampling.temperature
    record["top_p"], record["min_p"] = sampling.top_p, sampling.min_p
    record["top_k"] = min(sampling.top_k, 2**31 - 1)
    record["repetition"] = sampling.repetition_penalty
    record["frequency"], record["presence"] = sampling.frequency_penalty, sampling.presence_penalty
    record["biases"] = len(sampling.logit_bias or ())
    record["mask"] = record["given"] = -1
    record["logprobs"] = -1 if sampling.logprobs is None else min(sampling.logprobs, 2**31 - 1) if sampling.logprobs >= 0 else 2**31 - 1
    row.record = record.tobytes()
    return row.record
