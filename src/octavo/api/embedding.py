"""One prompt whose hidden states are pooled to a vector."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from octavo.api.generation import Generation
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.outputs import EmbeddingOutput, EmbeddingRequestOutput, PoolingOutput, PoolingRequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineOutput, EngineRequest


class Embedding(Generation):
    """Follows a pooling request through the engine: a generation of nothing. `vector` is what came of it, in float32 and as
    `PoolingParams` wants it."""

    def __init__(self, params: PoolingParams, **request: Any) -> None:
        super().__init__(sampling=SamplingParams(temperature=0, max_tokens=1, detokenize=False), eos_token_ids=[], seed=0, **request)
        self._params = params
        self.vector: list[float] = []

    def engine_requests(self) -> Iterator[EngineRequest]:
        """The one request."""
        for request in super().engine_requests():
            yield msgspec.structs.replace(request, pooling=self._params.pooling)

    def push(self, index: int, output: EngineOutput, now: float) -> bool:
        """Takes in what a step gave."""
        if output.embedding is not None:
            vector = np.frombuffer(output.embedding, np.float32)
            self.vector = unit(vector) if self._params.normalize else vector.tolist()
        return super().push(index, output, now)

    def pooled(self) -> PoolingRequestOutput:
        """The result of `encode`."""
        output = self.output()
        data = PoolingOutput(self.vector)
        return PoolingRequestOutput(output.request_id, data, output.prompt_token_ids, output.finished, output.num_cached_tokens)

    def embedded(self) -> EmbeddingRequestOutput:
        """The result of `embed`."""
        output = self.output()
        data = EmbeddingOutput(self.vector)
        return EmbeddingRequestOutput(output.request_id, data, output.prompt_token_ids, output.finished, output.num_cached_tokens)


def unit(vector: Any) -> list[float]:
    """The vector in float32 with a length of 1; a vector of zeros stays one. The length is summed in float64, exactly rounded."""
    length = math.sqrt(math.fsum(float(value) ** 2 for value in vector))
    return list((vector / length).astype(np.float32).tolist()) if length else list(vector.tolist())


def check_task(task: object) -> None:
    """Raises InvalidRequestError for what vLLM makes of hidden states besides embeddings; None is what there is."""
    if task not in (None, "embed"):
        raise InvalidRequestError(
            f"pooling_task: {task!r} is not supported by this version of Octavo, which has 'embed'", param="pooling_task"
        )


def check_dimensions(wanted: int | None, hidden_size: int) -> None:
    """Raises InvalidRequestError unless a vector has so many dimensions anyway: they can't be cut off, since no model here was trained for
    that."""
    if wanted is not None and wanted != hidden_size:
        raise InvalidRequestError(
            f"dimensions: the model's vectors have {hidden_size}, and a part of them means nothing; leave the field out", param="dimensions"
        )
