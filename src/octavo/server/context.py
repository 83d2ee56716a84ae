"""What every route works with: the model behind the server, its names and limits, and the wish to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

from octavo._version import __version__
from octavo.api.metrics import Metrics
from octavo.api.prompts import Prompt
from octavo.config.server import ServerOptions
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import ConfigError, ModelNotFoundError
from octavo.protocol.outputs import EmbeddingRequestOutput, RequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import BlocksPage, EngineInfo
from octavo.server.admission import Admission
from octavo.server.templates import ChatTemplates
from octavo.text.reasoning.registry import REASONING_PARSERS
from octavo.text.tokenizer import Tokenizer
from octavo.text.tools.plugin import load_tool_parsers
from octavo.text.tools.registry import TOOL_PARSERS


class ServedLLM(Protocol):
    """The part of `octavo.api.async_llm.AsyncLLM` that the routes use."""

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself when it was ready."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def default_sampling(self) -> dict[str, Any]:
        """Sampling defaults that the model brings."""
        ...

    @property
    def max_logprobs(self) -> int:
        """How many alternatives a request may ask for at each token, -1 for as many as there are tokens."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether the engine runs."""
        ...

    def render_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """The prompt that the chat template makes of `messages`."""
        ...

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        request_id: str,
        *,
        stream: bool = True,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Deltas while streaming, else one output; closing the iterator aborts the request."""
        ...

    def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        request_id: str,
        *,
        logprobs: int | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """One output, with one sequence for each beam, the best first; closing the iterator aborts the search."""
        ...

    async def embed(
        self, prompt: Prompt, params: PoolingParams, request_id: str, *, add_special_tokens: bool = True, priority: int = 0
    ) -> EmbeddingRequestOutput:
        """The embedding of one prompt; cancelling the call aborts the request."""
        ...

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forgets what blocks hold; False if some are in use."""
        ...

    async def kv_blocks(self, offset: int = 0, limit: int = 100) -> BlocksPage:
        """The state of some blocks of the KV cache, and its gauges."""

    async def save_prefix_cache(self) -> int:
        """Saves what blocks hold; how many were saved."""
        ...


class ServerContext:
    """One server's state. `closing` is set when running requests must end now, because the time to drain is over. `metrics` are told of
    requests that are refused or whose time is over."""

    def __init__(self, llm: ServedLLM, options: ServerOptions, metrics: Metrics) -> None:
        self.llm = llm
        self.metrics = metrics
        queued = options.max_queued_requests
        self.admission = Admission(None if queued is None else llm.info.max_num_seqs + queued, metrics.on_refused)
        self.options = options
        self.model_names = options.served_model_name or (llm.info.model,)
        # A model answers to the part after the slash of ORG/NAME, too.
        self._answers_to = {*self.model_names, *(name.rstrip("/").rpartition("/")[2] for name in self.model_names)}
        check_parsers(options)
        self.templates = ChatTemplates(llm.tokenizer, options.chat_template)
        self.created = int(time.time())
        self.closing = asyncio.Event()
        # OpenAI's word for "these replies were computed alike"; a seed repeats its text under an equal fingerprint.
        self.fingerprint = f"octavo-{__version__}-{llm.info.backend}"

    def model_name(self, requested: str | None) -> str:
        """The name to put on a reply. Raises ModelNotFoundError for one that is not served; None means the first."""
        if requested is None:
            return self.model_names[0]
        if requested not in self._answers_to:
            served = ", ".join(self.model_names)
            raise ModelNotFoundError(
                f"The model {requested!r} is not served here; this server has {served}.", param="model", code="model_not_found"
            )
        return requested


def check_parsers(options: ServerOptions) -> None:
    """Loads the parsers of a plugin, if there is one. Raises ConfigError for one that can't be used, and a parser that there is none of."""
    if options.tool_parser_plugin is not None:
        load_tool_parsers(options.tool_parser_plugin)
    for param, name, known in (
        ("tool_call_parser", options.tool_call_parser, TOOL_PARSERS),
        ("reasoning_parser", options.reasoning_parser or None, REASONING_PARSERS),
    ):
        if name is not None and name not in known:
            raise ConfigError(f"{param}: must be one of {', '.join(known)}, not {name!r}", param=param)
