"""The server as a process: start, signals, death of the engine, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import signal
import socket
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from patience import patient

from octavo._version import __version__
from octavo.config.engine import EngineConfig
from octavo.config.server import ServerOptions
from octavo.server.run import _Accidents, serve

SCRIPT = Path(__file__).parent / "serve_fake.py"
BODY = {"prompt": "Hi", "max_tokens": 10**6, "stream": True}


class Served:
    """A serve_fake.py process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""

    async def line(self) -> str:
        return (await asyncio.wait_for(self.process.stdout.readline(), patient(20))).decode().strip()

    async def ready(self) -> None:
        assert await self.line() == "loading"
        line = await self.line()
        self.url = line.split(" at ")[1].split()[0]
        assert line == f"Octavo {__version__} serves fake-model at {self.url} (API docs at /docs)"

    async def end(self, seconds: float = 10) -> tuple[int, str]:
        """The exit code and what was written to stderr."""
        _, errors = await asyncio.wait_for(self.process.communicate(), patient(seconds))
        return self.process.returncode, errors.decode()


def unread(connection: socket.socket) -> int:
    """Bytes that have come and were not read."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)


@contextlib.asynccontextmanager
async def running(mode: str, *options: str, port: int = 0) -> AsyncIterator[Served]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), str(port), mode, *options, stdout=pipe, stderr=pipe)
    try:
        yield Served(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@contextlib.asynccontextmanager
async def streaming(served: Served, body: dict) -> AsyncIterator[AsyncIterator[str]]:
    """Lines of a stream, of which the first has come."""
    async with httpx.AsyncClient(timeout=patient(20)) as client, client.stream("POST", f"{served.url}/v1/completions", json=body) as reply:
        lines = reply.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        yield lines


async def stopping(served: Served) -> None:
    """Returns when new requests are refused, as they are from the first signal on."""
    async with httpx.AsyncClient(timeout=patient(20)) as client, asyncio.timeout(patient(10)):
        while (reply := await client.get(f"{served.url}/health")).status_code == 200:
            await asyncio.sleep(0.01)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")


async def test_taken_port_fails_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with running("slow-load", port=port) as served:
            output, errors = await asyncio.wait_for(served.process.communicate(), patient(20))
    assert served.process.returncode == 1
    assert errors.decode() == f"octavo: can't listen on 127.0.0.1 port {port}: Address already in use\n"
    assert output == b""


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "999.1.1.1"])
def test_a_host_that_cannot_be(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(EngineConfig(), ServerOptions(host=host, port=0)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"octavo: can't listen on {host} port 0: ")
    assert said.count("\n") == 1


async def test_model_that_cannot_be_loaded_is_one_sentence() -> None:
    async with running("no-model") as served:
        assert await served.end() == (1, "octavo: model.gguf: the file ends early\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_an_idle_server(number: signal.Signals) -> None:
    async with running("quick") as served:
        await served.ready()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{served.url}/health")).status_code == 200
            assert "GET /health" in await served.line()
            started = time.monotonic()
            served.process.send_signal(number)
            assert await served.end() == (0, "")
            assert time.monotonic() - started < patient(3)


async def test_signal_while_loading() -> None:
    async with running("slow-load") as served:
        assert await served.line() == "loading"
        served.process.send_signal(signal.SIGTERM)
        assert await served.end() == (0, "")


async def test_running_requests_finish_after_a_signal_and_no_new_ones_begin() -> None:
    async with running("held") as served:
        await served.ready()
        async with streaming(served, BODY | {"max_tokens": 30}) as lines:
            served.process.send_signal(signal.SIGTERM)
            await stopping(served)
            served.process.send_signal(signal.SIGUSR1)
            rest = [line async for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        said = "octavo: stopping; running requests have 30 s to finish, and a second signal ends them\n"
        assert await served.end() == (0, said)


@pytest.mark.parametrize("mode", ["saves", "no-save"])
async def test_the_prefix_cache_is_saved_once_at_the_end(mode: str) -> None:
    async with running(mode) as served:
        await served.ready()
        served.process.send_signal(signal.SIGTERM)
        output, errors = await asyncio.wait_for(served.process.communicate(), patient(10))
    assert output.decode().splitlines() == ["saving", "closing, save=False"]
    sentence = "octavo: the prefix cache could not be saved to /x: No space left on device\n"
    assert (served.process.returncode, errors.decode()) == (0, sentence if mode == "no-save" else "")


async def test_a_save_that_never_ends_is_given_up() -> None:
    async with running("stuck-save") as served:
        await served.ready()
        served.process.send_signal(signal.SIGTERM)
        code, errors = await served.end()
    assert (code, errors) == (0, "octavo: the prefix cache was not saved: the engine did not come to it within 0.2 s\n")


def test_a_lack_of_file_descriptors_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.new_event_loop()
    told = []
    loop.default_exception_handler = told.append
    loop.set_exception_handler(_Accidents())
    for _ in range(1000):
        loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")})
    loop.call_exception_handler({"message": "other", "exception": OSError(5, "Input/output error")})
    loop.close()
    assert capsys.readouterr().err == "octavo: new connections wait: Too many open files (raise the limit with ulimit -n)\n"
    assert [each["message"] for each in told] == ["other"]


async def test_a_second_signal_does_not_wait_for_the_save() -> None:
    async with running("slow-save") as served:
        await served.ready()
        served.process.send_signal(signal.SIGINT)
        assert await served.line() == "saving"
        served.process.send_signal(signal.SIGINT)
        output, errors = await asyncio.wait_for(served.process.communicate(), patient(5))
    assert (served.process.returncode, output.decode(), errors.decode()) == (0, "closing, save=False\n", "")


async def test_two_signals_during_a_request_end_it_without_a_save() -> None:
    async with running("saves") as served:
        await served.ready()
        async with streaming(served, BODY) as lines:
            served.process.send_signal(signal.SIGINT)
            await stopping(served)
            served.process.send_signal(signal.SIGINT)
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        output, _ = await asyncio.wait_for(served.process.communicate(), patient(10))
    assert (served.process.returncode, output.decode()) == (0, "closing, save=False\n")


@pytest.mark.parametrize("signals", [1, 2])
async def test_requests_that_do_not_finish_in_time_are_told(signals: int) -> None:
    async with running("endless", "0.4" if signals == 1 else "60") as served:
        await served.ready()
        async with streaming(served, BODY) as lines:
            served.process.send_signal(signal.SIGINT)
            if signals == 2:
                await stopping(served)
                served.process.send_signal(signal.SIGINT)
            rest = [line async for line in lines if line]
        assert "shutting down" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        code, errors = await served.end()
        assert code == 0
        assert "Traceback" not in errors


async def test_death_of_the_engine() -> None:
    async with running("mortal") as served:
        await served.ready()
        async with httpx.AsyncClient(timeout=patient(20)) as client:
            whole = asyncio.create_task(client.post(f"{served.url}/v1/completions", json=BODY | {"stream": False}))
            async with streaming(served, BODY) as lines:
                rest = [line async for line in lines if line]
            assert "service_unavailable" in rest[-2]
            assert rest[-1] == "data: [DONE]"
            assert (await whole).status_code == 503
            assert (await client.get(f"{served.url}/health")).status_code == 503
        code, errors = await served.end(5)
        assert code == 1
        assert "octavo: the engine has died; every waiting client was told, and the server exits\n" in errors
        assert "Traceback" not in errors


async def test_client_that_does_not_read_cannot_hold_up_the_end() -> None:
    async with running("torrent", "0.2") as served:
        await served.ready()
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            body = json.dumps(BODY).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: o\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            idle.sendall(head.encode() + body)
            # With the socket's buffers full the server waits for this client.
            before = 0
            async with asyncio.timeout(patient(20)):
                while (now := unread(idle)) != before or not now:
                    before = now
                    await asyncio.sleep(0.1)
            served.process.send_signal(signal.SIGTERM)
            code, errors = await served.end(10)
            assert (code, errors.count("\n"), errors[:40]) == (0, 1, "octavo: stopping; running requests have ")
