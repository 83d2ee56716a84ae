"""What stands before an engine: text to token ids, defaults and limits of the model, seeds."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.api.embedding import Embedding, check_dimensions
from octavo.api.generation import SEED_LIMIT, Generation
from octavo.api.grammars import Grammars
from octavo.api.prompts import Prompt, PromptParts, is_token_id, prompt_parts, truncated
from octavo.config.engine import EngineConfig
from octavo.config.values import settled
from octavo.kvcache.window import Window
from octavo.loading.open import open_checkpoint
from octavo.loading.progress import Progress
from octavo.loading.resolve import resolve_model
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError, ModelLoadError
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineInfo
from octavo.scheduling.limits import Limits
from octavo.text.chat_template import load_chat_template
from octavo.text.tokenizer import SHORT_TEXT, Tokenizer, load_tokenizer

DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class SeedSource:
    """Seeds for requests that bring none: from one seed and the order of arrival (SplitMix64: Steele et al., 2014), or random."""

    def __init__(self, seed: int | None) -> None:
        self._state = seed

    def next(self) -> int:
        """A seed below 2^63."""
        if self._state is None:
            return secrets.randbelow(SEED_LIMIT)
        mask = (1 << 64) - 1
        self._state = (self._state + 0x9E3779B97F4A7C15) & mask
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        return (mixed ^ (mixed >> 31)) % SEED_LIMIT


class FrontEnd:
    """A model's tokenizer, chat template, end tokens and sampling defaults. `attach` it to an engine before `prepare`."""

    def __init__(self, config: EngineConfig, path: Path, *, chat_template: str | None = None) -> None:
        with open_checkpoint(path) as checkpoint:
            self.tokenizer: Tokenizer = load_tokenizer(checkpoint)
            generation_config = dict(checkpoint.generation_config)
            self.eos_token_ids = end_tokens(self.tokenizer, generation_config)
        self.default_sampling = sampling_defaults(generation_config, path) if config.model.generation_config == "auto" else {}
        self.path = path
        self.max_logprobs = config.model.max_logprobs
        self._chat_template = load_chat_template(chat_template) if chat_template is not None else None
        self._seeds = SeedSource(config.seed)
        self._keys = itertools.count()
        self._scheduler = config.scheduler
        self._structured_outputs = config.structured_outputs
        self._grammars: Grammars | None = None
        self._limits: Limits | None = None
        self._vocab_size = 0
        self._hidden_size = 0

    def attach(self, info: EngineInfo) -> None:
        """Learns the limits of the engine."""
        window = None if info.sliding_window is None else Window(info.sliding_window, 1)
        policy, seats = self._scheduler.scheduling_policy, self._scheduler.max_num_seqs
        self._limits = Limits(
            info.block_size, info.num_blocks, info.max_model_len, info.vocab_size, policy, seats, window, info.num_window_blocks
        )
        self._vocab_size = info.vocab_size
        self._hidden_size = info.hidden_size
        self._grammars = Grammars(self.tokenizer, self.eos_token_ids, info.vocab_size, self._structured_outputs)

    @property
    def grammars(self) -> Grammars:
        """The grammars of structured outputs. Needs an engine."""
        if self._grammars is None:
            raise RuntimeError("no engine is attached")
        return self._grammars

    def default_params(self) -> SamplingParams:
        """SamplingParams with the model's own defaults."""
        return SamplingParams(**self.default_sampling)

    def render_chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """A conversation as the model's template writes it. Raises InvalidRequestError."""
        if self._chat_template is not None:
            kwargs.setdefault("chat_template", self._chat_template)
        return self.tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    def prepare(
        self, prompt: Prompt, sampling: SamplingParams, request_id: str, *, add_special_tokens: bool = True, priority: int = 0
    ) -> Generation:
        """A request ready for the engine. Raises InvalidRequestError for a prompt or parameters that can't be served."""
        if not isinstance(sampling, SamplingParams):
            raise InvalidRequestError(f"sampling_params must be SamplingParams, not {type(sampling).__name__}", param="sampling_params")
        sampling.verify(self._vocab_size, self.max_logprobs)
        self._check_min_tokens(sampling)
        structured = sampling.structured_outputs
        grammar = None if structured is None else self.grammars.grammar(structured)
        return self._prepare(prompt, sampling, request_id, add_special_tokens, priority, None, grammar)

    def prepare_beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        request_id: str,
        *,
        logprobs: int | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
    ) -> Generation:
        """A beam search ready for the engine, of whose tokens `logprobs` likeliest alternatives are told; None: no logprobs. Raises
        InvalidRequestError for a prompt or parameters that can't be served."""
        if not isinstance(params, BeamSearchParams):
            raise InvalidRequestError(f"params must be BeamSearchParams, not {type(params).__name__}", param="params")
        params = params.clone()
        sampling = SamplingParams(
            temperature=0,
            seed=0,
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos,
            logprobs=logprobs,
            skip_special_tokens=params.skip_special_tokens,
            include_stop_str_in_output=params.include_stop_str_in_output,
        )
        return self._prepare(prompt, sampling, request_id, add_special_tokens, priority, params)

    def prepare_embedding(
        self, prompt: Prompt, params: PoolingParams, request_id: str, *, add_special_tokens: bool = True, priority: int = 0
    ) -> Embedding:
        """A prompt to be pooled, ready for the engine. Raises InvalidRequestError for a prompt or parameters that can't be served."""
        if not isinstance(params, PoolingParams):
            raise InvalidRequestError(f"pooling_params must be PoolingParams, not {type(params).__name__}", param="pooling_params")
        params = replace(params)
        check_dimensions(params.dimensions, self._hidden_size)
        limits = self._attached()
        limits.check_priority(priority)
        parts = prompt_parts(prompt)
        ids = self._token_ids(parts, add_special_tokens, output=0)
        limits.check_prompt(ids, 0)
        return Embedding(
            params,
            key=str(next(self._keys)),
            request_id=request_id,
            prompt=parts.text,
            prompt_token_ids=ids,
            tokenizer=self.tokenizer,
            arrival_time=time.monotonic(),
            cache_salt=parts.cache_salt,
            priority=priority,
        )

    def _token_ids(self, parts: PromptParts, add_special_tokens: bool, *, output: int = 1, whole: bool = True) -> list[int]:
        """Of a prompt that is wanted `whole`. Text whose length alone takes it beyond the context is refused before it is tokenized, which
        would take seconds and gigabytes."""
        if parts.token_ids is not None:
            return parts.token_ids
        text = parts.text or ""
        if whole and len(text) > SHORT_TEXT:
            self._attached().check_length(self.tokenizer.least_tokens(text), output, or_more=True)
        return self.tokenizer.encode(text, add_special_tokens)

    def _attached(self) -> Limits:
        if self._limits is None:
            raise RuntimeError("no engine is attached")
        return self._limits

    def _prepare(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        request_id: str,
        add_special_tokens: bool,
        priority: int,
        beam_search: BeamSearchParams | None,
        grammar: str | None = None,
    ) -> Generation:
        limits = self._attached()
        limits.check_priority(priority)
        parts = prompt_parts(prompt)
        kept = sampling.truncate_prompt_tokens
        ids = truncated(self._token_ids(parts, add_special_tokens, whole=kept is None), kept, limits.context - (sampling.max_tokens or 1))
        limits.check_prompt(ids)
        if beam_search is not None:
            limits.check_beam_search(len(ids), beam_search, 0 if beam_search.ignore_eos else len(self.eos_token_ids))
        seed = sampling.seed if sampling.seed is not None else self._seeds.next()
        return Generation(
            key=str(next(self._keys)),
            request_id=request_id,
            prompt=parts.text,
            prompt_token_ids=ids,
            sampling=sampling,
            eos_token_ids=self.eos_token_ids,
            seed=seed % SEED_LIMIT,
            tokenizer=self.tokenizer,
            arrival_time=time.monotonic(),
            cache_salt=parts.cache_salt,
            priority=priority,
            beam_search=beam_search,
            grammar=grammar,
            bad_words=bad_words_as_tokens(sampling.bad_words or (), self.tokenizer),
        )

    def _check_min_tokens(self, sampling: SamplingParams) -> None:
        """Until min_tokens is reached no end token may be chosen, so some other token must be left."""
        if not sampling.min_tokens:
            return
        forbidden = {*self.eos_token_ids, *(sampling.stop_token_ids or ())}
        allowed = sampling.allowed_token_ids
        if allowed is not None and forbidden.issuperset(allowed):
            raise InvalidRequestError(
                "min_tokens leaves no token to choose: every one of allowed_token_ids would end the text", param="min_tokens"
            )
        if len(forbidden) >= self._vocab_size and forbidden.issuperset(range(self._vocab_size)):
            raise InvalidRequestError("min_tokens leaves no token to choose: every one would end the text", param="min_tokens")


def bad_words_as_tokens(words: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of each word at a text's beginning and, as vLLM has it, after a space, where these are as many and begin otherwise."""
    found = []
    for word in words:
        text = word.lstrip() or word
        bare, spaced = (tokenizer.encode(each, add_special_tokens=False) for each in (text, f" {text}"))
        found.append(bare)
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            found.append(spaced)
    return [ids for ids in found if ids]


def open_front_end(
    config: EngineConfig, progress: Progress, *, chat_template: str | os.PathLike[str] | None = None
) -> tuple[FrontEnd, EngineConfig]:
    """Finds the model (fetching it if need be) and reads its text side; the second value is `config` with the model's place in it, so
    that an engine started with it opens the same files. Raises ModelLoadError."""
    options = config.model
    template: str | None = settled("chat_template", chat_template, str, optional=True, path=True)
    path = resolve_model(options.model, revision=options.revision, download_dir=options.download_dir, progress=progress)
    return FrontEnd(config, path, chat_template=template), replace(config, model=replace(options, model=str(path), revision=None))


def end_tokens(tokenizer: Tokenizer, generation_config: Mapping[str, Any]) -> list[int]:
    """The tokenizer's end tokens and those of generation_config.json (one id or a list)."""
    configured = generation_config.get("eos_token_id")
    extra = configured if isinstance(configured, list) else [] if configured is None else [configured]
    return sorted({*tokenizer.eos_token_ids, *(token for token in extra if is_token_id(token) and token >= 0)})


def sampling_defaults(generation_config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The SamplingParams fields that generation_config.json sets, the same ones as in vLLM; `max_new_tokens` is its `max_tokens`.

    Raises ModelLoadError, naming `path`, for values that no request could be sampled with.
    """
    defaults = {name: generation_config[name] for name in DEFAULTED if generation_config.get(name) is not None}
    if generation_config.get("max_new_tokens") is not None:
        defaults["max_tokens"] = generation_config["max_new_tokens"]
    try:
        SamplingParams(**defaults)
    except InvalidRequestError as error:
        raise ModelLoadError(
            f"{path}: the sampling defaults of its generation config can't hold: {error.message} "
            'generation_config="vllm" does without them'
        ) from error
    return defaults
