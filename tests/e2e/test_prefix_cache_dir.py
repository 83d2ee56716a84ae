"""A server leaves its prefix cache to the next one, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import is_alive, wait_until
from serve_process import LiveServer

PROMPT = [7 * place % 500 + 5 for place in range(100)]


def cached(server: LiveServer, prompt: list[int], **fields: object) -> tuple[int, object]:
    """Cached tokens of a completion, and its text with logprobs."""
    body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "logprobs": 3, "ignore_eos": True, **fields}
    reply = server.http.post("/v1/completions", json=body).json()
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"], (reply["choices"][0]["text"], reply["choices"][0]["logprobs"])


@pytest.mark.parametrize(
    ("send", "number"),
    [pytest.param(os.kill, signal.SIGTERM, id="SIGTERM"), pytest.param(os.killpg, signal.SIGINT, id="Ctrl-C")],
)
def test_a_signal_saves_it(tiny_llama: Path, tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals) -> None:
    arguments = ("--prefix-cache-dir", str(tmp_path / "cache"))
    with LiveServer(tiny_llama, *arguments) as server:
        first, cold = cached(server, PROMPT, cache_salt="s")
        send(server.process.pid, number)
        assert server.wait() == 0
    assert first == 0
    assert "Prefix cache: 6 blocks (" in server.stderr
    assert f" saved to {tmp_path / 'cache'} in " in server.stderr
    with LiveServer(tiny_llama, *arguments) as server:
        assert cached(server, PROMPT, cache_salt="s") == (96, cold)
        assert cached(server, PROMPT, cache_salt="t") == (0, cold)
        assert cached(server, PROMPT) == (0, cold)
        assert server.stop() == 0
        wait_until(lambda: not any(map(is_alive, server.pids)), 5)
        assert server.left_behind == []
        assert "Traceback" not in server.stderr


def test_a_killed_server_loses_what_was_not_saved(tiny_llama: Path, tmp_path: Path) -> None:
    arguments = ("--prefix-cache-dir", str(tmp_path))
    with LiveServer(tiny_llama, *arguments) as server:
        cached(server, PROMPT)
        reply = server.http.post("/save_prefix_cache")
        assert (reply.status_code, reply.json()) == (200, {"num_blocks": 6})
        cached(server, PROMPT[::-1])
        server.process.kill()
        wait_until(lambda: not any(map(is_alive, server.pids)), 10)
    with LiveServer(tiny_llama, *arguments) as server:
        assert [cached(server, prompt)[0] for prompt in (PROMPT, PROMPT[::-1])] == [96, 0]


def test_a_folder_that_can_not_be_taken(tiny_llama: Path, tmp_path: Path) -> None:
    arguments = ("--prefix-cache-dir", str(tmp_path / "cache"))
    with LiveServer(tiny_llama, *arguments) as server:
        with LiveServer(tiny_llama, *arguments, ready=False) as second:
            assert second.wait(30) == 1
        assert (
            f"octavo: --prefix-cache-dir: {tmp_path / 'cache'} is in use by another engine (process {server.engine_pid})" in second.stderr
        )
        cached(server, PROMPT)
        assert server.stop() == 0
    with LiveServer(tiny_llama, *arguments, "--block-size", "32", ready=False) as other:
        assert other.wait(30) == 1
    assert "they have 16 tokens each, and this engine has a block size of 32" in other.stderr
    assert "Traceback" not in other.stderr + second.stderr


def test_a_save_at_the_end_that_fails_is_one_sentence(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with LiveServer(tiny_llama, "--prefix-cache-dir", str(folder)) as server:
        cached(server, PROMPT)
        shutil.rmtree(folder)
        reply = server.http.post("/save_prefix_cache")
        assert reply.status_code == 500
        sentence = f"the prefix cache could not be saved to {folder}: No such file or directory"
        assert reply.json()["error"]["message"].startswith(sentence)
        assert server.stop() == 0
    assert f"octavo: {sentence}" in server.stderr
    assert "Traceback" not in server.stderr
