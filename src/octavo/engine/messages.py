"""What passes over the socket between a front end and an engine process, as msgpack."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.config.engine import EngineConfig
from octavo.protocol.vocabulary import Vocabulary
from octavo.protocol.wire import EngineInfo, EngineOutput, EngineRequest, EngineStats


class Start(msgspec.Struct):
    """First words, over the process's standard input: what to serve, and the socket to answer on."""

    config: EngineConfig
    address: str
    quiet: bool = False


class Add(msgspec.Struct, tag="add"):
    """Queue requests, all before the next step."""

    requests: list[EngineRequest]


class UseVocabulary(msgspec.Struct, tag="use_vocabulary"):
    """The tokens as bytes, before the first request with a grammar."""

    vocabulary: Vocabulary


class Abort(msgspec.Struct, tag="abort"):
    """Forget requests."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, tag="reset_prefix_cache"):
    """Forget what blocks hold. The Answer is whether that was done."""

    call: int
    reset_running_requests: bool = False


class ReadBlocks(msgspec.Struct, tag="read_blocks"):
    """Tell of `limit` blocks from `offset` on. The Answer is a BlocksPage."""

    call: int
    offset: int
    limit: int


class SavePrefixCache(msgspec.Struct, tag="save_prefix_cache"):
    """Save what blocks hold. The Answer is how many were saved."""

    call: int


class Stop(msgspec.Struct, tag="stop"):
    """End now; whatever runs is dropped."""


class Ready(msgspec.Struct, tag="ready"):
    """The model is loaded."""

    info: EngineInfo


class Batch(msgspec.Struct, tag="batch"):
    """What a step gave."""

    outputs: list[EngineOutput]
    stats: EngineStats


class Answer(msgspec.Struct, tag="answer"):
    """What came of the message that had the same `call` number; `error` is why it could not be done."""

    call: int
    value: Any
    error: str | None = None


class Failed(msgspec.Struct, tag="failed"):
    """The engine could not start (`kind` "load" or "config") or can't go on ("engine")."""

    kind: str
    message: str
    param: str | None = None


ToEngine = Add | UseVocabulary | Abort | ResetPrefixCache | SavePrefixCache | ReadBlocks | Stop
FromEngine = Ready | Batch | Answer | Failed
