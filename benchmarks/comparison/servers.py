"""HTTP servers under load: started, waited for, driven by `octavo bench serve`, ended."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.contenders import Server
from comparison.processes import Child, RunError, run
from comparison.tasks import MAX_MODEL_LEN
from octavo.bench.http_stream import Address, ReplyError, send
from octavo.bench.load import BenchError
from octavo.bench.startup import first_token

POLL_SECONDS = 0.02
FIRST_SECONDS = 300.0
LOAD_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A load of chat64's requests, or of random ones of (how many, prompt tokens, output tokens): `clients` at once at most (0: any
    number), arriving `rate` a second."""

    clients: int = 0
    rate: float = math.inf
    random: tuple[int, int, int] | None = None

    def arguments(self) -> list[str]:
        """Of `octavo bench serve`."""
        arguments = ["--clients", str(self.clients), "--rate", f"{self.rate:g}"]
        if self.random is not None:
            names = ("--num-prompts", "--input-len", "--output-len")
            arguments += ["--workload", "random", "--vocab-size", "40000"]
            arguments += [word for pair in zip(names, map(str, self.random), strict=True) for word in pair]
        return arguments


WARMUP = LoadSpec(random=(64, 180, 4))
QUICK_LOAD = (4, 32, 8)


@dataclass(slots=True)
class Running:
    """A server that serves: seconds from the start of its process until it answers, and until the first token of a first request."""

    url: str
    ready_s: float
    first_token_s: float


def serve_command(server: Server, python: Path, model: Path, port: int) -> list[str]:
    """What starts it."""
    address = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(MAX_MODEL_LEN)]
    return [str(python), "-m", *server.command, str(model), *server.arguments, *address]


@contextmanager
def running(server: Server, python: Path, model: Path, variables: dict[str, str]) -> Iterator[Running]:
    """The server for as long as `with` lasts. Raises RunError if it does not come to serve."""
    port = _free_port()
    with Child(serve_command(server, python, model, port), variables) as child:
        url = f"http://127.0.0.1:{port}"
        _wait(child, Address.of(url), server.start_seconds)
        ready = time.perf_counter() - child.started
        try:
            arrived = asyncio.run(first_token(Address.of(url)))
        except BenchError as error:
            raise RunError(str(error)) from None
        yield Running(url, ready, arrived - child.started)


def put_under_load(url: str, spec: LoadSpec) -> dict[str, Any]:
    """The results of `octavo bench serve` against the server at `url`. Raises RunError, also if a request failed."""
    command = [sys.executable, "-m", "octavo", "bench", "serve", "--url", url, *spec.arguments(), "--json", "-"]
    report = json.loads(run(command, {}, LOAD_SECONDS + FIRST_SECONDS))
    results: dict[str, Any] = report["results"]
    if results["failed"]:
        kind, message = next(iter(results["error_examples"].items()))
        raise RunError(f"{results['failed']} requests failed, the first with {kind}: {message}")
    if not results["ignore_eos"]:
        raise RunError("the server does not take ignore_eos, so its answers have other lengths")
    return results


def sweep(url: str, specs: Sequence[LoadSpec]) -> list[dict[str, Any]]:
    """One load after another; each with its `clients` and `rate` (None for all at once), and `error` where it failed."""
    points = []
    for spec in specs:
        point: dict[str, Any] = {"clients": spec.clients, "rate": None if math.isinf(spec.rate) else spec.rate}
        try:
            point |= put_under_load(url, spec)
        except RunError as failure:
            point["error"] = str(failure)
        points.append(point)
    return points


def _wait(child: Child, address: Address, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if child.process.poll() is not None:
            raise RunError(f"it ended while starting: {child.last_words()}")
        if asyncio.run(_answers(address)):
            return
        time.sleep(POLL_SECONDS)
    raise RunError(f"it does not serve after {seconds:g} s")


async def _answers(address: Address) -> bool:
    try:
        return (await asyncio.wait_for(send(address, "GET", "/v1/models"), 5.0)).status == 200
    except (ReplyError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
