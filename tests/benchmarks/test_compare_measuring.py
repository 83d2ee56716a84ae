"""Rounds with scripts in the place of peers: failures, time limits, order."""

import json

import pytest
from fake_contenders import Models, contender, one_round, script, setting

from comparison import measuring, session
from comparison.measuring import libraries_at, measure_contender, measure_round, order
from comparison.results import read_results
from comparison.session import Plan, run_plan

GOOD = "for line in (READY, QUESTION, STREAM, PREFILL, CHAT64): say(line)"


def test_a_contender_that_does_all(tmp_path):
    found = measure_contender(setting(tmp_path), contender("peer", script(tmp_path, "good", GOOD)))
    assert found == one_round() | {"ready_s": 0.5, "tasks": found["tasks"]}
    assert {name: set(task) for name, task in found["tasks"].items()} == {
        "stream": {"first_token_s", "seconds", "output_tokens"},
        "prefill": {"first_token_s", "seconds", "output_tokens"},
        "chat64": {"seconds", "output_tokens"},
    }


def test_a_runner_gets_its_job(tmp_path):
    body = 'json.dump(job, open(os.environ["TARGET"], "w"))\n' + GOOD
    target = tmp_path / "job.json"
    one = contender("peer", script(tmp_path, "job", body), variables={"TARGET": str(target)}, options={"batch_size": 16}, tasks=("chat64",))
    measure_contender(setting(tmp_path, quick=False), one)
    job = json.loads(target.read_text())
    assert (job["threads"], job["options"], [task["name"] for task in job["tasks"]]) == (1, {"batch_size": 16}, ["chat64"])
    task = job["tasks"][0]
    assert (len(task["requests"]), sum(len(prompt) for prompt, _ in task["requests"])) == (64, 11_633)
    assert sum(count for _, count in task["requests"]) == 6_317
    # A cache of prefixes would find the warm-up's.
    assert not {tuple(prompt) for prompt, _ in task["requests"]} & {tuple(prompt) for prompt, _ in task["warmup"]}


def test_a_wrong_answer_is_noticed(tmp_path):
    body = 'say(READY); say({"answer": [1, 2, 3]}); say(STREAM); say(PREFILL); say(CHAT64)'
    assert measure_contender(setting(tmp_path), contender("peer", script(tmp_path, "wrong", body)))["answer_is_right"] is False


@pytest.mark.parametrize(
    ("body", "fields", "error"),
    [
        ("sys.exit('no model')", {}, "exit status 1: no model"),
        ("time.sleep(60)", {"timeout": 1.0}, "not finished within 1 s"),
        ("", {"environment": "broken"}, "broken can't be installed: no such package"),
    ],
)
def test_a_contender_that_gives_nothing_says_why(tmp_path, body, fields, error):
    assert measure_contender(setting(tmp_path), contender("peer", script(tmp_path, "bad", body), **fields)) == {"tasks": {}, "error": error}


def test_what_was_measured_before_a_crash_counts(tmp_path):
    body = "say(READY); say(QUESTION); say(STREAM); sys.exit('out of memory')"
    found = measure_contender(setting(tmp_path), contender("peer", script(tmp_path, "crash", body)))
    assert "seconds" in found["tasks"]["stream"]
    assert found["tasks"]["prefill"] == found["tasks"]["chat64"] == {"error": "exit status 1: out of memory"}


def test_a_task_that_is_not_reported_is_an_error(tmp_path):
    found = measure_contender(setting(tmp_path), contender("peer", script(tmp_path, "short", "say(READY); say(STREAM)")))
    assert found["tasks"]["chat64"] == {"error": "its runner did not report it"}


def test_each_round_runs_each_once_in_another_order():
    orders = [order(4, index) for index in range(4)]
    assert all(sorted(each) == [0, 1, 2, 3] for each in orders)
    assert len({tuple(each) for each in orders}) == 4
    assert [each[0] for each in orders] == [0, 1, 2, 3]
    assert orders[1] == [1, 0, 3, 2]


def test_contenders_take_turns(tmp_path):
    mark = tmp_path / "ran"
    body = f"open({str(mark)!r}, 'a').write(os.environ['KEY'] + ' ')\n" + GOOD
    runner = script(tmp_path, "turns", body)
    peers = [contender(key, runner, variables={"KEY": key}) for key in "abc"]
    log = []
    for index in range(3):
        measure_round(setting(tmp_path, log), peers, index)
    assert mark.read_text().split() == [*"abc", *"bac", *"cab"]
    assert log[:3] == ["round 1: Peer a", "round 1: Peer b", "round 1: Peer c"]


def test_the_slowest_run_in_the_first_rounds_only(tmp_path):
    runner = script(tmp_path, "good", GOOD)
    peers = [contender("a", runner), contender("slow", runner, most_rounds=1), contender("b", runner)]
    assert [list(measure_round(setting(tmp_path), peers, index)) for index in range(2)] == [["a", "slow", "b"], ["b", "a"]]


def test_a_failure_stops_nothing_and_results_are_written_after_every_round(tmp_path, monkeypatch):
    peers = [
        contender("bad", script(tmp_path, "bad", "sys.exit('boom')")),
        contender("good", script(tmp_path, "good", GOOD), model="slow to make"),
    ]
    target = tmp_path / "out" / "results.json"
    seen = []
    monkeypatch.setattr(session, "measure_limits", lambda *_: {"error": "no probe here"})
    monkeypatch.setattr(session, "measure_kernels", lambda *_: {"error": "no kernels here"})
    inner = session.write_results
    monkeypatch.setattr(
        session, "write_results", lambda path, results: (seen.append(results["contenders"]["good"]["rounds"][:]), inner(path, results))
    )
    about = {"command": "x", "time": "2026-11-30T10:00:00+00:00", "quick": True}
    run_plan(setting(tmp_path), Plan(peers, [], True, 2), about, target, Models(tmp_path))
    results = read_results(target)
    assert [len(rounds) for rounds in seen] == [1, 2]
    assert [found["error"] for found in results["contenders"]["bad"]["rounds"]] == ["exit status 1: boom"] * 2
    assert [found["tasks"]["chat64"]["seconds"] for found in results["contenders"]["good"]["rounds"]] == [2.0, 2.0]
    assert results["contenders"]["good"]["prepared_s"] == 12.0
    assert results["limits"] == [{"error": "no probe here"}] * 2
    assert results["kernels"] == {"error": "no kernels here"}


def test_limits_and_kernels_that_fail_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring.sys, "executable", "/no/such/python")
    for found in (measuring.measure_limits(setting(tmp_path), []), measuring.measure_kernels(setting(tmp_path))):
        assert found == {"error": "/no/such/python can't be started: No such file or directory"}


def test_libraries_of_the_environment_come_before_the_system_s(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libfirst.so").write_text("")
    assert libraries_at(tmp_path / "bin" / "python", ["libfirst.so", "libnowhere.so"]) == [tmp_path / "lib" / "libfirst.so"]


def test_only_peers_get_their_caches_moved_and_octavo_gets_this_code(tmp_path):
    peer = setting(tmp_path).variables(contender("peer", ""))
    assert peer["XDG_CACHE_HOME"] == str(tmp_path / "cache")
    ours = setting(tmp_path).variables(contender("ours", "", environment="", variables={"A": "b"}))
    assert set(ours) == {"PYTHONPATH", "A"}
