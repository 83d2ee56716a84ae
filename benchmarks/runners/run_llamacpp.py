"""llama.cpp through llama-cpp-python's bindings of its C API: continuous batching as its server does it, without the server.

Each call of llama_decode gets the next token of every request that generates, and as many tokens of prompts as fit beside them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from measuring import Request, main

BATCH_TOKENS = 2048  # in one call; its server's default
TOGETHER = 64


# Kept, since llama.cpp calls it for as long as it lives.
SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


class LlamaCpp:
    """Contexts of 1 and of 64 sequences, each sequence with keys and values of its own (kv_unified is off); else the defaults."""

    def __init__(self, task: dict[str, Any]) -> None:
        llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(task["model"].encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {task['model']}")
        self._threads: int = task["threads"]
        self._max_model_len: int = task["max_model_len"]
        self._contexts = {1: Context(self._model, 1, self._max_model_len, self._threads)}

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """See measuring.Engine."""
        seats = 1 if len(requests) == 1 else TOGETHER
        if seats not in self._contexts:
            self._contexts[seats] = Context(self._model, seats, self._max_model_len, self._threads)
        return self._contexts[seats].generate(requests)


class Context:
    """Keys and values for `seats` sequences of `length` tokens each."""

    def __init__(self, model: Any, seats: int, length: int, threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = seats * length
        params.n_seq_max = seats
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp can't make a context of {seats} sequences of {length} tokens")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._seats = seats
        self._batch = Batch()

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """Greedily; at most as many requests as seats."""
        if len(requests) > self._seats:
            raise RuntimeError(f"{len(requests)} requests for {self._seats} sequences")
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        outputs: list[list[int]] = [[] for _ in requests]
        read = [0] * len(requests)
        while any(len(output) < count for output, (_, count) in zip(outputs, requests, strict=True)):
            due = self._fill(requests, outputs, read)
            if status := llama_cpp.llama_decode(self._context, self._batch.raw):
                raise RuntimeError(f"llama_decode ends with {status}")
            logits = llama_cpp.llama_get_logits(self._context)
            rows = np.ctypeslib.as_array(logits, (len(due), self._vocabulary))
            for index, token in zip(due, rows.argmax(axis=1).tolist(), strict=True):
                outputs[index].append(token)
        return outputs

    def _fill(self, requests: Sequence[Request], outputs: list[list[int]], read: list[int]) -> list[int]:
        """Makes the next batch; the requests that get a token from it, in the order of its rows."""
        self._batch.clear()
        due = []
        for index, (prompt, count) in enumerate(requests):
            if read[index] == len(prompt) and len(outputs[index]) < count:
                self._batch.add(index, outputs[index][-1:], len(prompt) + len(outputs[index]) - 1, True)
                due.append(index)
        for index, (prompt, _) in enumerate(requests):
            part = prompt[read[index] : read[index] + BATCH_TOKENS - self._batch.tokens]
            if part:
                ends = read[index] + len(part) == len(prompt)
                self._batch.add(index, part, read[index], ends)
                read[index] += len(part)
                if ends:
                    due.append(index)
        return due


class Batch:
    """llama_batch, filled through numpy's views of its arrays."""

    def __init__(self) -> None:
        self.raw = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._token, self._position, self._wanted = (
            np.ctypeslib.as_array(array, (BATCH_TOKENS,)) for array in (self.raw.token, self.raw.pos, self.raw.logits)
        )
        np.ctypeslib.as_array(self.raw.n_seq_id, (BATCH_TOKENS,))[:] = 1

    @property
    def tokens(self) -> int:
        """How many it holds."""
        return int(self.raw.n_tokens)

    def clear(self) -> None:
        """Empties it."""
        self.raw.n_tokens = 0

    def add(self, sequence: int, tokens: Sequence[int], position: int, wanted: bool) -> None:
        """Tokens of one sequence from `position` on; with `wanted` the last one's logits are computed."""
        start, end = self.tokens, self.tokens + len(tokens)
        self._token[start:end] = tokens
        self._position[start:end] = range(position, position + len(tokens))
        self._wanted[start:end] = 0
        self._wanted[end - 1] = wanted
        for row in range(start, end):
            self.raw.seq_id[row][0] = sequence
        self.raw.n_tokens = end


if __name__ == "__main__":
    main(LlamaCpp, ["llama-cpp-python"])
