"""Beams share the blocks of what they have in common, in any company, and find what the plain rules find."""

import msgspec
import pytest
from mirror_worker import EOS, VOCAB, alone, make_request, make_search, next_logprobs, searched
from stepped_engine import Engine

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.plan import SampledToken, StepResult

CACHING = pytest.mark.parametrize("prefix_caching", [True, False], ids=["cached", "uncached"])


def checked(engine, requests, context=128):
    """Everything was found that the rules say, and nothing is left."""
    for request in requests:
        if request.beam_search is None:
            assert engine.tokens[request.request_id] == alone(request, context)[0]
        else:
            expected = searched(request.prompt_token_ids, request.beam_search, request.eos_token_ids, context)
            found = engine.found[request.request_id]
            assert [(tokens, reason) for tokens, _, reason in found] == [(tokens, reason) for tokens, _, reason in expected]
            assert [score for _, score, _ in found] == pytest.approx([score for _, score, _ in expected])
    assert engine.scheduler.stats().blocks_used == 0
    assert not engine.worker.held


@CACHING
@pytest.mark.parametrize("width", [1, 2, 3, 8, VOCAB - 1])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0, 1, 2, -1])
def test_what_is_found(prefix_caching, width, early_stopping, length_penalty):
    engine = Engine(prefix_caching=prefix_caching, seqs=24, num_blocks=128)
    options = {"early_stopping": early_stopping, "length_penalty": length_penalty}
    requests = [make_search(f"{prompt}", prompt, width, 12, **options) for prompt in (1, 7, 8)]
    engine.add(*requests)
    engine.drain()
    checked(engine, requests)


def test_what_grows_worth_less_with_its_length_ends_a_search_by_its_length_so_far():
    """With "never" too: what the best beam could come to at full length would end this one before its last hypothesis."""
    engine = Engine(num_blocks=128)
    request = make_search("a", 27, 4, 12, early_stopping="never", length_penalty=-1)
    request = msgspec.structs.replace(request, eos_token_ids=[EOS, 1, 2])
    engine.add(request)
    engine.drain()
    checked(engine, [request])


def test_both_kinds_of_end_are_seen():
    """Or the test before would prove little."""
    reasons = []
    for prompt in range(1, 9):
        reasons += [reason for _, _, reason in searched([prompt], make_search("x", 1, 4, 12).beam_search, [EOS], 128)]
    assert reasons.count("stop") > 5
    assert reasons.count("length") > 5


def test_ends_that_are_ignored():
    engine = Engine()
    request = make_search("a", 5, 4, 10, ignore_eos=True)
    engine.add(request)
    engine.drain()
    checked(engine, [request])
    assert {len(tokens) for tokens, _, _ in engine.found["a"]} == {10}


@CACHING
def test_a_step_computes_a_token_of_each_beam_and_tells_only_who_goes_on_from_whom(prefix_caching):
    engine = Engine(prefix_caching=prefix_caching)
    engine.add(make_search("a", 10, 3, 6, ignore_eos=True))
    shares, plan = engine.step()
    assert shares == {"a": 10}
    assert [new.request_id for new in plan.new] == ["a"]
    shares, plan = engine.step()
    assert shares == {"a": 1, "a#1": 1, "a#2": 1}
    assert plan.new == []
    assert [(beam.request_id, beam.parent_id) for beam in plan.continued] == [("a", "a"), ("a#1", "a"), ("a#2", "a")]
    assert [beam.token_id for beam in plan.continued] == next_logprobs(make_search("a", 10, 3).prompt_token_ids, 3).top_ids
    while engine.scheduler.has_work:
        shares, plan = engine.step()
        if shares:
            assert (set(shares.values()), len(shares), plan.new) == ({1}, 3, [])
            assert len(plan.continued) == 3


@CACHING
@pytest.mark.parametrize("prompt", [10, 12])
def test_forks_take_references_and_only_a_block_that_is_not_full_is_copied(prefix_caching, prompt):
    """Every block but those that two beams write differently is the same one; at the border of a block there is nothing to copy."""
    engine = Engine(prefix_caching=prefix_caching)
    engine.add(make_search("a", prompt, 4, 14, ignore_eos=True))
    engine.step()
    known = prompt
    while engine.scheduler.has_work:
        _, plan = engine.step()
        known += 1
        if not plan.scheduled:
            break
        written = known - 1
        assert all(held == written % 4 for _, _, held in plan.copies)
        # What a table has before the block that is written is never replaced by a copy.
        copied = {destination for _, destination, _ in plan.copies}
        for share in plan.scheduled:
            assert {place for place, block in share.replaced_blocks if block in copied} <= {written // 4}
        tables = [held.block_ids for held in engine.worker.held.values()]
        tokens = [held.token_ids for held in engine.worker.held.values()]
        if written % 4:
            # One of those that share a block keeps it.
            families = {tuple(sequence[:written]) for sequence in tokens}
            assert len(plan.copies) <= len(tokens) - len({family[: written // 4 * 4] for family in families})
        else:
            assert plan.copies == []
        for one, first in zip(tokens, tables, strict=True):
            for other, second in zip(tokens, tables, strict=True):
                for place in range(prompt // 4):
                    assert first[place] == second[place]
                for place in range(written // 4):
                    if first[place] == second[place]:
                        assert one[: place * 4 + 4] == other[: place * 4 + 4]
    assert engine.scheduler.stats().blocks_used == 0
    assert engine.scheduler.stats().blocks_copied > 0


def test_the_first_fork_makes_a_copy_less_than_there_are_beams():
    for prompt, copies in ((10, 3), (12, 0)):
        engine = Engine()
        engine.add(make_search("a", prompt, 4, 14, ignore_eos=True))
        engine.step()
        assert len(engine.step()[1].copies) == copies


@CACHING
@pytest.mark.parametrize("budget", [1, 3, 5, 64])
def test_any_budget_beside_others(prefix_caching, budget):
    """A budget below the number of beams leaves some of them waiting for the others."""
    engine = Engine(budget=budget, prefix_caching=prefix_caching, seqs=20)
    requests = [
        make_request("before", 13, 20),
        make_search("a", 9, 4, 7),
        make_request("between", 6, 11),
        make_search("b", 9, 8, 9, length_penalty=0),
        make_request("after", 9, 5),
    ]
    engine.add(*requests)
    engine.drain()
    checked(engine, requests)


@CACHING
@pytest.mark.parametrize("when", range(1, 9))
def test_preempted_whole_and_found_the_same(prefix_caching, when):
    engine = Engine(prefix_caching=prefix_caching, budget=6)
    request = make_search("a", 9, 4, 8, ignore_eos=True)
    engine.add(request)
    for _ in range(when):
        engine.step()
    engine.scheduler._preempt(engine.scheduler._running["a"])
    assert engine.scheduler.stats().blocks_used == 0
    assert engine.scheduler.num_running == 0
    engine.drain()
    checked(engine, [request])
    assert engine.last["a"].num_preemptions == 1


def test_beams_come_back_with_what_they_share():
    """Without the prefix cache, too, the prompt and the common tokens are computed once."""
    engine = Engine()
    engine.add(make_search("a", 30, 4, 8, ignore_eos=True))
    for _ in range(5):
        engine.step()
    engine.scheduler._preempt(engine.scheduler._running["a"])
    computed = engine.worker.computed
    known = 30 + 5
    assert engine.step()[0] == {"a": known}
    _, plan = engine.step()
    assert [new.request_id for new in plan.new] == ["a#1", "a#2", "a#3"]
    assert all(new.num_computed_tokens >= 30 for new in plan.new)
    assert engine.worker.computed - computed <= known + 3 * 5
    engine.drain()
    checked(engine, [])


@CACHING
def test_many_searches_in_little_memory(prefix_caching):
    engine = Engine(block_size=2, num_blocks=24, budget=16, seqs=16, prefix_caching=prefix_caching, max_model_len=30)
    requests = []
    for number in range(24):
        if number % 3:
            requests.append(make_request(f"r{number}", [number, *range(number % 9)], 4 + 7 * number % 20))
        else:
            requests.append(make_search(f"s{number}", [number, *range(number % 7)], 2 + number % 3, 3 + number % 8))
    engine.add(*requests)
    engine.drain()
    assert engine.scheduler.stats().preemptions >= 5
    checked(engine, requests, context=30)


@CACHING
def test_the_smallest_pool_that_it_is_let_into_holds_it(prefix_caching):
    for prompt, width, max_tokens in ((5, 3, 9), (8, 4, 5), (7, 2, 1), (4, 2, 30)):
        request = make_search("a", prompt, width, max_tokens, ignore_eos=True)
        shared, longest = prompt // 4, -(-(prompt + max_tokens - 1) // 4)
        needed = shared + width * (longest - shared)
        engine = Engine(num_blocks=needed, prefix_caching=prefix_caching)
        engine.add(request)
        engine.drain()
        checked(engine, [request])
        if needed > 1 and prompt + 1 <= (needed - 1) * 4:
            with pytest.raises(
                InvalidRequestError, match=f"can need {needed} blocks of KV cache, but the whole cache has {needed - 1}"
            ) as error:
                Engine(num_blocks=needed - 1, prefix_caching=prefix_caching).add(request)
            assert error.value.param == "beam_width"


@pytest.mark.parametrize(
    ("full", "own", "message"),
    [
        (
            64,
            8,
            "can need 9 blocks of KV cache, also for the layers that see a window of 8 tokens, but the whole cache has 8 for these; lower "
            "beam_width or max_tokens, or start the engine with a higher max_num_seqs, with prefix caching on, or with more memory",
        ),
        (
            8,
            64,
            "can need 9 blocks of KV cache, but the whole cache has 8 for the layers that see everything; lower beam_width or max_tokens, "
            "or give the cache more memory",
        ),
    ],
)
def test_of_two_kinds_the_one_that_is_short_is_named(full, own, message):
    # 12 + 9 - 1 tokens in 5 blocks, of which 3 beams share 3.
    request = make_search("a", 12, 3, 9, ignore_eos=True)
    with pytest.raises(InvalidRequestError) as error:
        Engine(num_blocks=full, num_window_blocks=own, window=8).add(request)
    assert message in error.value.message
    assert error.value.param == "beam_width"
    engine = Engine(num_blocks=max(9, full), num_window_blocks=max(9, own), window=8)
    engine.add(request)
    engine.drain()
    checked(engine, [request])


def test_the_context_ends_a_search():
    engine = Engine(max_model_len=12)
    request = make_search("a", 7, 3, 50)
    engine.add(request)
    engine.drain()
    checked(engine, [request], context=12)
    assert max(len(tokens) for tokens, _, _ in engine.found["a"]) == 5


@pytest.mark.parametrize(
    ("width", "options", "words"),
    [
        (17, {}, r"beam_width 17 .* at most 16 \(max_num_seqs\)"),
        (VOCAB, {"seqs": 64, "num_blocks": 4000}, f"the vocabulary has {VOCAB}, 1 of"),
    ],
)
def test_searches_that_can_never_run_are_refused(width, options, words):
    engine = Engine(**options)
    with pytest.raises(InvalidRequestError, match=words) as error:
        engine.add(make_search("a", 5, width, 4))
    assert error.value.param == "beam_width"
    assert not engine.scheduler.has_work


def test_a_search_waits_for_all_its_seats():
    engine = Engine(seqs=4)
    requests = [make_request("one", 5, 6), make_search("a", 6, 4, 5), make_request("two", 3, 2)]
    engine.add(*requests)
    assert list(engine.step()[0]) == ["one"]
    while "one" not in engine.ends:
        assert list(engine.step()[0]) == ["one"]
    assert list(engine.step()[0]) == ["a"]
    while "a" not in engine.ends:
        assert "two" not in engine.step()[0]
    engine.drain()
    checked(engine, requests)


@CACHING
@pytest.mark.parametrize("when", range(7))
def test_an_abort_at_any_time_frees_all(prefix_caching, when):
    engine = Engine(prefix_caching=prefix_caching, budget=7)
    other = make_request("other", 4, 12)
    engine.add(make_search("a", 9, 3, 20, ignore_eos=True), other)
    for _ in range(when):
        engine.step()
    assert engine.scheduler.abort("a")
    assert engine.scheduler.request_ids == ["other"]
    again = make_search("a", 9, 3, 5)
    engine.add(again)
    engine.drain()
    checked(engine, [other, again])


@CACHING
def test_an_abort_inside_a_step(prefix_caching):
    engine = Engine(prefix_caching=prefix_caching)
    engine.add(make_search("a", 9, 3, 20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    plan = engine.scheduler.schedule()
    engine.scheduler.abort("a")
    assert engine.scheduler.update(plan, engine.worker.run(plan)) == []
    engine.drain()
    checked(engine, [])


@CACHING
@pytest.mark.parametrize("failing", ["a", "a#2"])
def test_a_beam_that_fails_ends_its_search_alone(prefix_caching, failing):
    engine = Engine(prefix_caching=prefix_caching)
    other = make_search("b", 6, 3, 6)
    engine.add(make_search("a", 9, 3, 20, ignore_eos=True), other)
    for _ in range(3):
        engine.step()
    engine.step(failing={failing})
    assert (engine.ends["a"], engine.last["a"].error) == ("error", "made to fail")
    engine.drain()
    checked(engine, [other])


def test_a_worker_that_gives_no_logprobs_ends_the_search():
    engine = Engine()
    engine.add(make_search("a", 5, 2))
    plan = engine.scheduler.schedule()
    engine.worker.run(plan)
    (output,) = engine.scheduler.update(plan, StepResult(sampled=[SampledToken("a", 3)]))
    assert output.error == "the worker gave no logprobs"


@CACHING
def test_a_step_that_breaks_off_names_the_search_once(prefix_caching):
    engine = Engine(prefix_caching=prefix_caching)
    engine.add(make_search("a", 9, 3, 20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.scheduler.schedule()
    assert engine.scheduler.abandon() == ["a"]
    engine.drain()
    checked(engine, [])


@CACHING
def test_a_reset_of_the_cache_meets_running_beams(prefix_caching):
    engine = Engine(prefix_caching=prefix_caching, budget=4)
    request = make_search("a", 9, 6, 8, ignore_eos=True)
    engine.add(request)
    for _ in range(5):
        engine.step()
        assert not engine.scheduler.reset_prefix_cache()
        assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.drain()
    checked(engine, [request])


def test_priorities_move_a_search_as_one():
    engine = Engine(policy="priority", num_blocks=20, seqs=8)
    low = msgspec.structs.replace(make_search("low", 9, 4, 12, ignore_eos=True), priority=1)
    high = [make_request(f"high{number}", [number, *range(8)], 11) for number in range(3)]
    engine.add(low, *high)
    assert set(engine.step()[0]) == {"low", "high0", "high1", "high2"}
    engine.drain()
    checked(engine, [low, *high])
    assert engine.last["low"].num_preemptions > 0
    assert all(engine.last[request.request_id].num_preemptions == 0 for request in high)


def test_a_second_search_finds_the_prompt():
    engine = Engine(prefix_caching=True)
    for name in ("a", "b"):
        engine.add(make_search(name, 12, 3, 5))
        engine.drain()
    assert engine.last["a"].num_cached_tokens == 0
    assert engine.last["b"].num_cached_tokens == 11
    checked(engine, [make_search("b", 12, 3, 5)])


def test_logprobs_that_are_told():
    engine = Engine()
    engine.add(msgspec.structs.replace(make_search("a", 12, 3, 5, ignore_eos=True)))
    engine.drain()
    prompt = make_search("a", 12, 3).prompt_token_ids
    for found in engine.last["a"].hypotheses:
        for place, (token, told) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
            given = next_logprobs(prompt + found.token_ids[:place], VOCAB)
            assert (told.logprob, told.top_ids) == (given.top_logprobs[given.top_ids.index(token)], [])
            assert told.rank == given.top_ids.index(token) + 1
        assert found.cumulative_logprob == pytest.approx(sum(told.logprob for told in found.logprobs))
