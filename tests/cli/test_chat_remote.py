"""`octavo chat --url` and `octavo complete --url` against a server."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from fake_server import FakeServer, fake_server
from terminal import Terminal


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


def octavo(*args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False, env=environment or None)


def test_chat_streams_and_keeps_the_history(server: FakeServer):
    done = octavo("chat", "--url", server.url, "--system", "s", stdin="one two\nthree\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two \nthree \n", "")
    (models, first, second) = server.requests
    assert models[0] == "/v1/models"
    assert first[0] == second[0] == "/v1/chat/completions"
    assert first[2] == {
        "model": "fake-model",
        "stream": True,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "one two"}],
    }
    assert second[2]["messages"][2:] == [{"role": "assistant", "content": "one two "}, {"role": "user", "content": "three"}]


def test_only_the_sampling_flags_given_are_sent(server: FakeServer):
    args = ["--temperature", "0.5", "--top-p", "0.9", "--seed", "7", "--max-tokens", "5", "--stop", "a", "--stop", "b"]
    done = octavo("chat", "mine", "--url", server.url + "/v1/", "-q", "hi", *args)
    assert done.stdout == "hi \n"
    ((path, _, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert body.pop("messages")
    assert body == {"model": "mine", "stream": True, "temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 5, "stop": ["a", "b"]}


def test_complete_sends_a_prompt(server: FakeServer):
    done = octavo("complete", "--url", server.url, "once upon")
    assert (done.returncode, done.stdout) == (0, "once upon \n")
    path, _, body = server.requests[-1]
    assert path == "/v1/completions"
    assert body == {"model": "fake-model", "stream": True, "prompt": "once upon", "max_tokens": 256}


def test_the_key_goes_along_from_flag_or_environment(server: FakeServer):
    octavo("complete", "--url", server.url, "--api-key", "k1", "hi")
    octavo("complete", "--url", server.url, "hi", OCTAVO_API_KEY="k2,k3")
    octavo("complete", "--url", server.url, "hi", OPENAI_API_KEY="not for strangers")
    assert [key for _, key, _ in server.requests] == ["Bearer k1"] * 2 + ["Bearer k2"] * 2 + [None] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("refuse", "that is refused"),
        ("lock", "octavo: a key is missing; --api-key KEY or $OCTAVO_API_KEY gives it here\n"),
        ("odd", "answered 502 Bad Gateway"),
        ("break", "the engine died"),
        ("hang up", "ended the answer before it was complete"),
    ],
)
def test_what_the_server_says_is_one_sentence(server: FakeServer, text: str, message: str):
    done = octavo("complete", "--url", server.url, text)
    assert done.returncode == 1
    assert done.stderr.startswith("octavo: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_address_where_nobody_listens():
    with fake_server() as server:
        url = server.url
    done = octavo("chat", "--url", url)
    assert (done.returncode, done.stderr) == (1, f"octavo: can't reach {url}: Connection refused\n")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "http://localhost:99999", "http://[::1"])
def test_an_address_that_is_none(url: str):
    done = octavo("chat", "--url", url)
    assert done.returncode == 1
    assert "--url" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_answer_that_is_not_openai_s(server: FakeServer):
    done = octavo("chat", "--url", server.url + "/elsewhere/v2")
    assert done.returncode == 1
    assert "lists no model" in done.stderr


def test_flags_of_a_model_loaded_here_are_refused(server: FakeServer):
    done = octavo("chat", "--url", server.url, "--threads", "2")
    assert (done.returncode, server.requests) == (2, [])
    assert "--threads has no meaning with --url" in done.stderr


def test_ctrl_c_drops_the_answer_on_the_server_too(server: FakeServer):
    with Terminal("chat", "--url", server.url) as screen:
        screen.expect("> ")
        screen.type("slow\n")
        screen.expect("zzz")
        screen.type("\x03")
        screen.expect("(stopped)")
        assert server.gone.wait(10)
        screen.type("refuse\n")
        screen.expect("error: that is refused")
        screen.expect("> ")
        screen.type("\x04")
        assert screen.wait() == 0
