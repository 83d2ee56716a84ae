"""`octavo bench serve` against servers that behave and servers that don't."""

import json
import math

import pytest
from fake_openai import DONE, choice, chunk, event, fake_openai, good, plain, stream_head, usage

from octavo.bench.load import BenchError, Form, Load, Outcome
from octavo.bench.serve import ServeOptions, as_text, describe_load, run_serve
from octavo.bench.statistics import poisson_arrivals
from octavo.protocol.errors import ConfigError

SMALL = {"workload": "random", "num_prompts": 6, "input_len": 10, "output_len": 4, "warmup": 0}


def run(server, **options):
    """The results, and the report they are of."""
    report = run_serve(ServeOptions(url=server.url, **{**SMALL, **options}), api_key="key")
    assert json.loads(report.json())["results"]["completed"] == report.results["completed"]
    return report.results, report


def test_every_request_gets_its_tokens():
    with fake_openai() as server:
        results, report = run(server)
        load = server.requests[1:]
    assert (results["completed"], results["failed"], results["errors"]) == (6, 0, {})
    assert (results["prompt_tokens"], results["output_tokens"]) == (60, 24)
    assert results["model"] == "fake"
    for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        assert set(results[key]) == {"mean", "median", "p90", "p99"}
    assert results["e2e_s"]["median"] >= results["ttft_s"]["median"] > 0
    assert {len(body["prompt"]) for body in load} == {10}
    assert {(body["max_tokens"], body["ignore_eos"], body["temperature"], body["stream"]) for body in load} == {(4, True, 0, True)}
    assert set(server.keys) == {"Bearer key"}
    assert report.settings["rate"] == "inf"
    assert [table.title for table in report.tables] == [f"Serving fake at {server.url}", "Times"]


def test_warm_up_requests_are_not_counted():
    with fake_openai() as server:
        results, _ = run(server, warmup=3)
        assert len(server.requests) == 1 + 3 + 6
    assert results["completed"] == 6


def test_the_model_can_be_named():
    with fake_openai() as server:
        results, _ = run(server, model="other")
        assert {body["model"] for body in server.requests} == {"other"}
    assert results["model"] == "other"


@pytest.mark.parametrize("clients", [1, 2])
def test_no_more_requests_than_clients_at_once(clients):
    with fake_openai() as server:
        server.pause = 0.005
        run(server, clients=clients)
        assert server.most_at_once <= clients


def test_requests_arrive_one_after_another():
    with fake_openai() as server:
        results, report = run(server, rate=50.0, num_prompts=5)
    assert results["completed"] == 5
    assert report.settings["rate"] == 50.0
    # The last one is sent no sooner than it arrives.
    assert results["seconds"] >= poisson_arrivals(5, 50.0, 0)[-1] > 0.02


def test_words_for_a_server_that_takes_no_ids():
    with fake_openai() as server:
        run(server, prompt_form="text")
        prompts = [body["prompt"] for body in server.requests[1:]]
    assert all(len(prompt.split()) == 10 for prompt in prompts)
    assert len(set(prompts)) == len(prompts)
    assert as_text(5, 1) == as_text(5, 1)


@pytest.mark.parametrize(
    ("unknown", "form"),
    [
        (["ignore_eos"], Form(ignore_eos=False)),
        (["stream_options"], Form(include_usage=False)),
        (["ignore_eos", "stream_options"], Form(False, False)),
    ],
)
def test_fields_that_the_server_does_not_take_are_left_out(unknown, form):
    def answer(server, body, client):
        if any(name in body for name in unknown):
            client.sendall(plain(400, {"error": {"message": "unknown field"}}))
        else:
            good(server, body, client)

    with fake_openai(answer) as server:
        results, report = run(server)
        assert server.requests[-1].keys().isdisjoint(unknown)
    # Without the server's own count the pieces of text are counted.
    assert results["output_tokens"] == 24
    assert results["ignore_eos"] is form.ignore_eos
    assert bool(report.tables[0].note) is not form.ignore_eos


def unlike_the_first(bad):
    """A server that answers its first request, which finds out what it takes, and treats the others badly."""

    def answer(server, body, client):
        (good if len(server.requests) == 1 else bad)(server, body, client)

    return answer


def stream(*parts, whole=True):
    def answer(server, body, client):
        client.sendall(stream_head() + b"".join(map(chunk, parts)) + (chunk(b"") if whole else b""))

    return answer


def hang(server, body, client):
    client.sendall(stream_head() + chunk(choice("a")))
    server.released.wait(10)


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (lambda server, body, client: client.sendall(plain(503, {"error": {"message": "overloaded"}})), "HTTP 503", "overloaded"),
        (lambda server, body, client: client.sendall(plain(500, "oh")), "HTTP 500", "oh"),
        (lambda server, body, client: client.close(), "connection closed early", ""),
        (stream(choice("a"), event({"error": {"message": "the engine died"}}), DONE), "error in the stream", "the engine died"),
        (stream(choice("a"), choice("b"), DONE), "ended early", "finish reason"),
        (stream(DONE), "ended early", "finish reason"),
        (stream(choice("a"), whole=False), "connection closed early", ""),
        (stream(event(b"{nonsense"), DONE), "unreadable event", ""),
        (hang, "timeout", "0.3 s"),
    ],
)
def test_failures_are_counted_by_kind(bad, kind, words):
    with fake_openai(unlike_the_first(bad)) as server:
        results, report = run(server, timeout=0.3)
        server.released.set()
    assert (results["completed"], results["errors"]) == (0, {kind: 6})
    assert words in results["error_examples"][kind]
    assert results["ttft_s"]["median"] is None
    assert results["output_tokens_per_s"] == 0
    assert report.tables[-1].title == "Errors"


def test_failures_beside_answers():
    def answer(server, body, client):
        if len(server.requests) > 1 and body["prompt"][0] % 2:
            client.sendall(plain(500, {"error": {"message": "odd"}}))
        else:
            good(server, body, client)

    with fake_openai(answer) as server:
        results, _ = run(server, num_prompts=20)
        odd = sum(body["prompt"][0] % 2 for body in server.requests[1:])
    assert 0 < odd < 20
    assert (results["completed"], results["errors"]) == (20 - odd, {"HTTP 500": odd})
    assert results["output_tokens"] == (20 - odd) * 4


def test_the_whole_load_is_bounded():
    with fake_openai(unlike_the_first(hang)) as server:
        results, _ = run(server, most_seconds=0.2, rate=20.0)
        server.released.set()
    assert results["errors"] == {"out of time": 6}


def test_a_server_that_refuses_everything():
    with fake_openai(lambda server, body, client: client.sendall(plain(401, {"error": {"message": "no key"}}))) as server:
        with pytest.raises(BenchError, match=r"401.*no key"):
            run(server)
        assert len(server.requests) == 1


def test_a_server_that_is_not_there():
    with fake_openai() as server:
        url = server.url
    with pytest.raises(BenchError, match="can't be reached"):
        run_serve(ServeOptions(url=url, **SMALL))


@pytest.mark.parametrize(
    ("options", "word"),
    [({"rate": 0.0}, "rate"), ({"rate": math.nan}, "rate"), ({"prompt_form": "emoji"}, "prompt_form"), ({"workload": "x"}, "workload")],
)
def test_options_that_can_not_hold(options, word):
    with pytest.raises(ConfigError, match=word):
        run_serve(ServeOptions(url="http://127.0.0.1:9", **{**SMALL, **options}))


def test_times_with_known_outcomes():
    outcomes = [
        Outcome(token_times=[1.0, 1.5, 2.5], output_tokens=4, prompt_tokens=10),
        Outcome(token_times=[3.0], output_tokens=1, prompt_tokens=20),
        Outcome(token_times=[9.0], error="timeout", message="slow"),
    ]
    results = describe_load(Load(outcomes, seconds=5.0, client_cpu_seconds=0.5))
    assert results["ttft_s"]["mean"] == 2.0
    assert results["e2e_s"]["median"] == 2.75
    # The middle event brought two tokens: 1.5 s for three further ones. One token has none.
    assert results["tpot_s"]["mean"] == pytest.approx(0.5)
    assert results["itl_s"]["mean"] == pytest.approx(0.75)
    assert (results["output_tokens_per_s"], results["total_tokens_per_s"], results["requests_per_s"]) == (1.0, 7.0, 0.4)
    assert (results["completed"], results["errors"], results["client_cpu_share"]) == (2, {"timeout": 1}, 0.1)


def test_the_servers_own_count_wins():
    parts = (choice("ab"), choice("cd", "length"), usage(10, 7), DONE)
    with fake_openai(unlike_the_first(stream(*parts))) as server:
        results, _ = run(server, num_prompts=1)
    assert results["output_tokens"] == 7
