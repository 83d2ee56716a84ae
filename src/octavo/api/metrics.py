"""Prometheus metrics under vLLM's names, labels and buckets, so that dashboards made for it work unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from octavo.protocol.outputs import RequestMetrics
from octavo.protocol.wire import EngineInfo, EngineStats

LABELS = ("model_name", "engine")
ENGINE = "0"
PROMPT_SOURCES = ("local_compute", "local_cache_hit")
QUEUE_FULL, SHUTTING_DOWN = "queue_full", "shutting_down"
REFUSALS = (QUEUE_FULL, SHUTTING_DOWN)
FINISH_REASONS = ("stop", "length", "abort", "error")

LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
ITERATION_BUCKETS = (1, *(2**power for power in range(3, 15)))
PARAMS_N_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


def one_two_five(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … up to `limit`."""
    buckets: list[int] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > limit:
                return buckets or [1]
            buckets.append(mantissa * scale)
        scale *= 10


class Metrics:
    """The metrics of one server, in a registry of its own. `EngineMetrics` join them once the model is known; see `attach`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._http_errors = Counter("octavo:http_errors", "Replies with a status of 400 or more.", ["code"], registry=self.registry)
        self._engine: EngineMetrics | None = None

    def attach(self, model_name: str, info: EngineInfo) -> None:
        """Adds the metrics of the engine that `info` describes. May be called once."""
        self._engine = EngineMetrics(self.registry, model_name, info)

    def on_http_error(self, status: int) -> None:
        """Counts a reply with this status."""
        self._http_errors.labels(str(status)).inc()

    def on_refused(self, reason: str) -> None:
        """Counts a request that was not let in."""
        if self._engine is not None:
            self._engine.refused[reason].inc()

    def on_timeout(self) -> None:
        """Counts a request whose time was over."""
        if self._engine is not None:
            self._engine.timeouts.inc()

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    # The Recorder protocol. What happens before the model is known is the engine's own warm-up, which nobody asked for.

    def on_step(self, stats: EngineStats) -> None:
        """Records the engine's measurement after a step."""
        if self._engine is not None:
            self._engine.on_step(stats)

    def on_tokens(self, metrics: RequestMetrics, count: int, now: float, previous: float | None) -> None:
        """Records `count` new tokens of a request at time `now`; `previous` is when its last ones came, None for the first."""
        if self._engine is not None:
            self._engine.on_tokens(metrics, count, now, previous)

    def on_finished(
        self,
        finish_reason: str,
        num_prompt_tokens: int,
        num_generation_tokens: int,
        metrics: RequestMetrics,
        params_n: int,
        max_tokens: int | None,
    ) -> None:
        """Records the end of a request, for whatever reason."""
        if self._engine is not None:
            self._engine.on_finished(finish_reason, num_prompt_tokens, num_generation_tokens, metrics, params_n, max_tokens)


class EngineMetrics:
    """Everything that is labelled with a model's name and an engine's number."""

    def __init__(self, registry: CollectorRegistry, model_name: str, info: EngineInfo) -> None:
        self._registry = registry
        self._labels = (model_name, ENGINE)
        self._seen = EngineStats()
        tokens = one_two_five(info.max_model_len)
        self.running = self._gauge("num_requests_running", "Requests that the engine computes.")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait to be scheduled.")
        self.swapped = self._gauge("num_requests_swapped", "Waiting requests whose tokens are in swap space.")
        self.cache_usage = self._gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 is all of them.")
        self.swap_usage = self._gauge("cpu_cache_usage_perc", "Share of swap space's blocks in use; 1 is all of them.")
        self.preemptions = self._counter("num_preemptions", "Requests that lost their blocks to others and were swapped or computed anew.")
        self.queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.hits = self._counter("prefix_cache_hits", "Prompt tokens found there, which were not computed.")
        self.cached = self._counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens that steps computed (again after a preemption, too), and those found in the prefix cache.",
            [*LABELS, "source"],
            registry=registry,
        )
        self.by_source = {source: by_source.labels(*self._labels, source) for source in PROMPT_SOURCES}
        self.blocks_cached = self._gauge("kv_blocks_cached", "Blocks that can be found by what they hold, in use or not.", prefix="octavo")
        self.evicted = self._counter("kv_blocks_evicted", "Blocks found no more because their space was needed.", prefix="octavo")
        self.copied = self._counter("kv_blocks_copied", "Blocks copied because a request wrote to a shared one.", prefix="octavo")
        self.swapped_out = self._counter("kv_blocks_swapped_out", "Blocks copied to swap space.", prefix="octavo")
        self.swapped_in = self._counter("kv_blocks_swapped_in", "Blocks copied from swap space.", prefix="octavo")
        self.bytes_swapped_out = self._counter("kv_bytes_swapped_out", "Bytes copied to swap space.", prefix="octavo")
        self.bytes_swapped_in = self._counter("kv_bytes_swapped_in", "Bytes copied from swap space.", prefix="octavo")
        self._block_bytes, self._window_block_bytes = info.kv_bytes_per_block, info.kv_bytes_per_window_block
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        success = Counter("vllm:request_success", "Finished requests, by reason.", [*LABELS, "finished_reason"], registry=registry)
        self.success = {reason: success.labels(*self._labels, reason) for reason in FINISH_REASONS}
        refused = Counter("vllm:admission_rejections", "Requests that were not let in.", [*LABELS, "reason"], registry=registry)
        self.refused = {reason: refused.labels(*self._labels, reason) for reason in REFUSALS}
        self.timeouts = self._counter("request_timeouts", "Requests whose time was over before their end.", prefix="octavo")
        self.first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS)
        self.inter_token = self._histogram("inter_token_latency_seconds", "Between one token and the next.", INTER_TOKEN_BUCKETS)
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "A request's mean time for each token after the first.", INTER_TOKEN_BUCKETS
        )
        self.latency = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", LATENCY_BUCKETS)
        self.queue_time = self._histogram("request_queue_time_seconds", "From arrival to the first schedule.", LATENCY_BUCKETS)
        self.prefill_time = self._histogram("request_prefill_time_seconds", "From the first schedule to the first token.", LATENCY_BUCKETS)
        self.decode_time = self._histogram("request_decode_time_seconds", "From the first token to the last.", LATENCY_BUCKETS)
        self.inference_time = self._histogram(
            "request_inference_time_seconds", "From the first schedule to the last token.", LATENCY_BUCKETS
        )
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self.request_generation = self._histogram("request_generation_tokens", "Tokens generated for a request.", tokens)
        self.request_preemptions = self._histogram("request_num_preemptions", "How often a request was preempted.", PREEMPTION_BUCKETS)
        self.iteration_tokens = self._histogram("iteration_tokens_total", "Tokens computed in a step.", ITERATION_BUCKETS)
        self.params_n = self._histogram("request_params_n", "The n of requests.", PARAMS_N_BUCKETS)
        self.params_max_tokens = self._histogram("request_params_max_tokens", "The max_tokens of requests.", tokens)
        self._cache_config(info)

    def _gauge(self, name: str, text: str, prefix: str = "vllm") -> Gauge:
        return Gauge(f"{prefix}:{name}", text, LABELS, registry=self._registry).labels(*self._labels)

    def _counter(self, name: str, text: str, prefix: str = "vllm") -> Counter:
        return Counter(f"{prefix}:{name}", text, LABELS, registry=self._registry).labels(*self._labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"vllm:{name}", text, LABELS, registry=self._registry, buckets=buckets).labels(*self._labels)

    def _cache_config(self, info: EngineInfo) -> None:
        values: dict[str, Any] = {
            "block_size": info.block_size,
            "cache_dtype": info.kv_cache_dtype,
            "enable_prefix_caching": info.enable_prefix_caching,
            "num_gpu_blocks": info.num_blocks + info.num_window_blocks,
            "kv_cache_memory_bytes": info.kv_cache_bytes,
            "engine": ENGINE,
        }
        gauge = Gauge("vllm:cache_config_info", "The KV cache's configuration, in the labels.", list(values), registry=self._registry)
        gauge.labels(*map(str, values.values())).set(1)

    def on_step(self, stats: EngineStats) -> None:
        """See `Metrics.on_step`."""
        self.running.set(stats.running)
        self.waiting.set(stats.waiting)
        self.cache_usage.set(stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0)
        self.blocks_cached.set(stats.blocks_cached)
        self.swapped.set(stats.swapped)
        self.swap_usage.set(stats.swap_blocks_used / stats.swap_blocks_total if stats.swap_blocks_total else 0.0)
        seen, self._seen = self._seen, stats
        self.preemptions.inc(stats.preemptions - seen.preemptions)
        self.queries.inc(stats.prefix_cache_queries - seen.prefix_cache_queries)
        hits = stats.prefix_cache_hits - seen.prefix_cache_hits
        for counter in (self.hits, self.cached, self.by_source["local_cache_hit"]):
            counter.inc(hits)
        self.by_source["local_compute"].inc(stats.prompt_tokens_computed - seen.prompt_tokens_computed)
        self.evicted.inc(stats.blocks_evicted - seen.blocks_evicted)
        self.copied.inc(stats.blocks_copied - seen.blocks_copied)
        moved_out = stats.blocks_swapped_out - seen.blocks_swapped_out
        moved_in = stats.blocks_swapped_in - seen.blocks_swapped_in
        self.swapped_out.inc(moved_out)
        self.swapped_in.inc(moved_in)
        for counter, moved, own in (
            (self.bytes_swapped_out, moved_out, stats.window_blocks_swapped_out - seen.window_blocks_swapped_out),
            (self.bytes_swapped_in, moved_in, stats.window_blocks_swapped_in - seen.window_blocks_swapped_in),
        ):
            counter.inc((moved - own) * self._block_bytes + own * self._window_block_bytes)
        if stats.step_tokens:
            self.iteration_tokens.observe(stats.step_tokens)

    def on_tokens(self, metrics: RequestMetrics, count: int, now: float, previous: float | None) -> None:
        """See `Metrics.on_tokens`."""
        self.generation_tokens.inc(count)
        if previous is None:
            self.first_token.observe(now - metrics.arrival_time)
            return
        for _ in range(count):
            self.inter_token.observe((now - previous) / count)

    def on_finished(
        self,
        finish_reason: str,
        num_prompt_tokens: int,
        num_generation_tokens: int,
        metrics: RequestMetrics,
        params_n: int,
        max_tokens: int | None,
    ) -> None:
        """See `Metrics.on_finished`. A span whose end never came, as in an aborted request, is not observed, nor where the prompt ended and
        the tokens began if they all came at once, as those of a beam search do."""
        self.success[finish_reason].inc()
        self.prompt_tokens.inc(num_prompt_tokens)
        self.request_prompt.observe(num_prompt_tokens)
        self.request_generation.observe(num_generation_tokens)
        self.request_preemptions.observe(metrics.num_preemptions)
        self.params_n.observe(params_n)
        if max_tokens is not None:
            self.params_max_tokens.observe(max_tokens)
        first = metrics.first_token_time
        if num_generation_tokens > params_n and first == metrics.last_token_time:
            first = None
        spans = (
            (self.latency, metrics.arrival_time, metrics.finished_time),
            (self.queue_time, metrics.arrival_time, metrics.first_scheduled_time),
            (self.prefill_time, metrics.first_scheduled_time, first),
            (self.decode_time, first, metrics.last_token_time),
            (self.inference_time, metrics.first_scheduled_time, metrics.last_token_time),
        )
        for histogram, start, end in spans:
            if start is not None and end is not None:
                histogram.observe(end - start)
        # The samples of a request run side by side, so the span is shared by tokens / n of them.
        after_first = num_generation_tokens / max(params_n, 1) - 1
        if first is not None and metrics.last_token_time is not None and after_first > 0:
            self.per_token.observe((metrics.last_token_time - first) / after_first)
