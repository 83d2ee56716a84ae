"""How a request ends, by the tokens it gets."""

import pytest

from octavo.config.engine import SchedulerConfig
from octavo.kvcache.manager import KVCacheManager
from octavo.protocol.plan import SampledToken, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineRequest
from octavo.scheduling.scheduler import Scheduler

END = 9


def generate(tokens, *, max_model_len=100, num_blocks=100, prompt=3, **sampling):
    """The outputs when the model answers `tokens` in turn, up to the end of the request."""
    scheduler = Scheduler(SchedulerConfig(), KVCacheManager(num_blocks, 4), max_model_len=max_model_len, vocab_size=50)
    options = {"max_tokens": None, **sampling}
    scheduler.add(EngineRequest("r", [1] * prompt, SamplingParams(**options), eos_token_ids=[END, END + 1]))
    outputs = []
    for token in tokens:
        outputs += scheduler.update(scheduler.schedule(), StepResult([SampledToken("r", token)]))
        if outputs[-1].finish_reason is not None:
            assert scheduler.request_ids == []
            assert scheduler.stats().blocks_used == 0
            break
    assert len(outputs) == len(set(map(id, outputs)))
    return outputs


def ending(outputs):
    tokens = [token for output in outputs for token in output.token_ids]
    return tokens, outputs[-1].finish_reason, outputs[-1].stop_reason


@pytest.mark.parametrize("end", [END, END + 1])
def test_an_end_token_is_kept_and_has_no_stop_reason(end):
    assert ending(generate([5, 6, end, 7])) == ([5, 6, end], "stop", None)


def test_ignore_eos_goes_on_to_the_length():
    assert ending(generate([5, END, 7, 8], ignore_eos=True, max_tokens=3)) == ([5, END, 7], "length", None)


def test_a_stop_token_id_is_kept_and_named():
    assert ending(generate([5, 6, 7], stop_token_ids=[30, 6])) == ([5, 6], "stop", 6)


def test_an_end_token_in_the_requests_own_list_is_an_end_token():
    assert ending(generate([END], stop_token_ids=[END])) == ([END], "stop", None)
    assert ending(generate([END], stop_token_ids=[END], ignore_eos=True)) == ([END], "stop", END)


def test_max_tokens():
    assert ending(generate([5, 6, 7], max_tokens=2)) == ([5, 6], "length", None)


def test_an_end_token_in_the_last_place_is_a_stop():
    assert ending(generate([5, END], max_tokens=2)) == ([5, END], "stop", None)


def test_nothing_stops_before_min_tokens():
    assert ending(generate([END, 6, 7, 6, 8], min_tokens=3, stop_token_ids=[6])) == ([END, 6, 7, 6], "stop", 6)
    assert ending(generate([END, 6], min_tokens=2, stop_token_ids=[6])) == ([END, 6], "stop", 6)


def test_min_tokens_does_not_lift_the_length():
    assert ending(generate([5, 6, 7], min_tokens=2, max_tokens=2)) == ([5, 6], "length", None)


def test_a_token_like_an_end_token_in_the_prompt_does_not_matter():
    assert ending(generate([5, 6], stop_token_ids=[1], max_tokens=2)) == ([5, 6], "length", None)


def test_the_context_ends_with_length():
    assert ending(generate([5] * 20, max_model_len=8, max_tokens=50)) == ([5] * 5, "length", None)


def test_a_pool_smaller_than_the_context_ends_with_length():
    assert ending(generate([5] * 20, num_blocks=2, max_tokens=50)) == ([5] * 5, "length", None)


def test_only_the_last_output_is_an_end():
    outputs = generate([5, 6, 7], max_tokens=3)
    assert [output.finish_reason for output in outputs] == [None, None, "length"]
