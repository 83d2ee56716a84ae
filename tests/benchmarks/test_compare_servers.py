"""Servers under load, with small servers in the place of real ones."""

import json
import socket
import sys
from pathlib import Path

import pytest
from fake_contenders import setting

from comparison import servers
from comparison.contenders import SERVERS, Server
from comparison.measuring import measure_server
from comparison.processes import RunError
from comparison.servers import LoadSpec, serve_command

SERVER = Server("peer", "peer", "", ("peer", "serve"), (), start_seconds=20.0)
# The server of tests/bench/fake_openai.py, on a port that it is given.
SCRIPT = """
import socket, sys
sys.path.insert(0, {bench!r})
import fake_openai

if {mode!r} == "dies":
    sys.exit("no memory for weights")
listen = socket.create_server
socket.create_server = lambda address: listen(("127.0.0.1", int(sys.argv[1])))
refuse = lambda server, body, client: client.sendall(fake_openai.plain(500, {{"error": "boom"}}))
fake_openai.FakeOpenAI(refuse if {mode!r} == "fails" else fake_openai.good).run()
"""


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Makes `measure_server` start a script that behaves as the mode says."""

    def prepare(mode: str) -> None:
        script = tmp_path / "server.py"
        script.write_text(SCRIPT.format(bench=str(Path(__file__).resolve().parents[1] / "bench"), mode=mode))
        monkeypatch.setattr(servers, "serve_command", lambda server, python, model, port: [sys.executable, str(script), str(port)])

    return prepare


def test_a_server_is_timed_and_put_under_every_load(serve, tmp_path):
    serve("good")
    found = measure_server(setting(tmp_path), SERVER, "model", sweeping=True)
    assert "error" not in found
    assert 0 < found["ready_s"] < found["first_token_s"]
    assert found["load"]["output_tokens"] == 4 * 8
    assert [point["clients"] for point in found["clients"]] == [1, 2]
    assert [point["rate"] for point in found["rates"]] == [8.0]
    assert all(point["completed"] == 4 for point in [*found["clients"], *found["rates"]])


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("dies", "it ended while starting: no memory for weights"),
        ("fails", "the first request failed: HTTP 500: HTTP 500: boom"),
    ],
)
def test_a_server_that_does_not_serve_says_why(serve, tmp_path, mode, error):
    serve(mode)
    assert measure_server(setting(tmp_path), SERVER, "model", sweeping=True) == {"error": error}


def test_loads_are_told_to_octavo_bench_serve():
    assert LoadSpec(clients=4).arguments() == ["--clients", "4", "--rate", "inf"]
    assert LoadSpec(rate=2.0, random=(8, 64, 16)).arguments() == [
        *["--clients", "0", "--rate", "2", "--workload", "random", "--vocab-size", "40000"],
        *["--num-prompts", "8", "--input-len", "64", "--output-len", "16"],
    ]


@pytest.mark.parametrize("spec", [LoadSpec(clients=64), LoadSpec(rate=2.0), servers.WARMUP], ids=["clients", "rate", "warmup"])
def test_octavo_bench_serve_takes_every_kind_of_load(spec):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(RunError, match=r"exit status 1: .*can't be reached"):
        servers.put_under_load(url, spec)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.key)
def test_servers_keep_no_prefixes_and_listen_here_only(server):
    command = serve_command(server, Path("/envs/peer/bin/python"), Path("/models/m"), 8123)
    assert command[:2] == ["/envs/peer/bin/python", "-m"]
    assert command[2 : command.index("/models/m")] == list(server.command)
    assert "--no-enable-prefix-caching" in command
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "8123"


def test_a_load_with_failures_is_no_figure(monkeypatch):
    report = {"results": {"failed": 2, "error_examples": {"timeout": "not finished within 300 s"}, "ignore_eos": True}}
    monkeypatch.setattr(servers, "run", lambda *_: json.dumps(report))
    point = servers.sweep("http://127.0.0.1:1", [LoadSpec(clients=2)])[0]
    assert point == {"clients": 2, "rate": None, "error": "2 requests failed, the first with timeout: not finished within 300 s"}


def test_answers_of_other_lengths_are_no_figure(monkeypatch):
    monkeypatch.setattr(servers, "run", lambda *_: json.dumps({"results": {"failed": 0, "ignore_eos": False}}))
    assert "does not take ignore_eos" in servers.sweep("http://127.0.0.1:1", [LoadSpec()])[0]["error"]
