"""A scheduler and a mirror worker, a step at a time."""

from mirror_worker import VOCAB, MirrorWorker

from octavo.config.engine import SchedulerConfig
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.window import Window
from octavo.scheduling.scheduler import Scheduler


class Engine:
    """The clock is the test's to move. The prefix cache is off unless `prefix_caching`."""

    def __init__(
        self,
        *,
        block_size=4,
        num_blocks=64,
        budget=64,
        seqs=16,
        max_model_len=128,
        prefix_caching=False,
        policy="fcfs",
        window=None,
        num_window_blocks=0,
        **swap,
    ):
        """`swap` are `slots` of swap space and the preemption `mode`."""
        self.now = 0.0
        config = SchedulerConfig(budget, seqs, policy, swap.get("mode", "auto"))
        sliding = None if window is None else Window(window, budget)
        cache = KVCacheManager(
            num_blocks,
            block_size,
            prefix_caching=prefix_caching,
            num_swap_blocks=swap.get("slots", 0),
            window=sliding,
            num_window_blocks=num_window_blocks,
        )
        self.scheduler = Scheduler(config, cache, max_model_len=max_model_len, vocab_size=VOCAB, clock=lambda: self.now)
        self.worker = MirrorWorker(block_size, num_blocks, budget, seqs, window, num_window_blocks)
        self.tokens = {}
        self.ends = {}
        self.found = {}
        self.last = {}

    def add(self, *requests):
        for request in requests:
            self.scheduler.add(request)

    def step(self, failing=()):
        """One step; returns {request id: tokens computed} and the plan."""
        plan = self.scheduler.schedule()
        outputs = self.scheduler.update(plan, self.worker.run(plan, frozenset(failing)))
        for output in outputs:
            self.last[output.request_id] = output
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.hypotheses is not None:
                self.found[output.request_id] = [
                    (each.token_ids, each.cumulative_logprob, each.finish_reason) for each in output.hypotheses
                ]
            if output.finish_reason is not None:
                self.ends[output.request_id] = output.finish_reason
        return {share.request_id: share.num_tokens for share in plan.scheduled}, plan

    def drain(self, most=5000):
        for _ in range(most):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the requests never ended")


def new_ids(plan):
    return [new.request_id for new in plan.new]
