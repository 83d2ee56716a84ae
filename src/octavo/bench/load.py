"""Requests sent to a server as they arrive, and what became of each."""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from octavo.bench.http_stream import Address, Reply, ReplyError, send
from octavo.bench.workload import Ask
from octavo.protocol.errors import OctavoError

PATH = "/v1/completions"
_LONGEST_SAID = 120


class BenchError(OctavoError):
    """A benchmark that can't be run against this server."""


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Outcome:
    """One request: seconds after it was sent at which its tokens came; `error` is the kind of its failure, `message` the words.

    `token_times` has one entry an event, which may bring several tokens; `output_tokens` is the server's own count where it gives one.
    """

    sent: float = 0.0
    token_times: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    error: str | None = None
    message: str = ""

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.token_times[0]

    @property
    def e2e(self) -> float:
        """Seconds to the last token."""
        return self.token_times[-1]

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there is none."""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def itl(self) -> list[float]:
        """Seconds between one event with tokens and the next."""
        return [after - before for before, after in pairwise(self.token_times)]


@dataclass(frozen=True, slots=True)
class Form:
    """What the server takes beside OpenAI's fields, so that every request gets all its tokens, and they are counted."""

    ignore_eos: bool = True
    include_usage: bool = True

    def body(self, model: str, prompt: list[int] | str, output_len: int) -> bytes:
        """A request for `output_len` tokens, greedily."""
        fields: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": output_len, "temperature": 0, "stream": True}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.include_usage:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields)


FORMS = (Form(), Form(ignore_eos=False), Form(include_usage=False), Form(ignore_eos=False, include_usage=False))


@dataclass(frozen=True, slots=True)
class Target:
    """A server, the model to ask it for, and what it takes."""

    address: Address
    model: str
    form: Form = Form()
    context: ssl.SSLContext | None = None


async def find_model(address: Address, timeout: float) -> str:
    """The first model that the server lists. Raises BenchError."""
    try:
        reply = await asyncio.wait_for(send(address, "GET", "/v1/models"), timeout)
        if reply.status != 200:
            raise BenchError(f"{address.host}:{address.port} answers {http_error(reply)} to a request for its models")
        return str(msgspec.json.decode(reply.body)["data"][0]["id"])
    except ReplyError as error:
        raise BenchError(f"{address.host}:{address.port} can't be reached: {error}") from None
    except TimeoutError:
        raise BenchError(f"{address.host}:{address.port} does not answer within {timeout:g} s") from None
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise BenchError(f"{address.host}:{address.port} lists no model; is it an OpenAI-compatible server?") from None


async def negotiate(address: Address, model: str, prompt: list[int] | str, timeout: float) -> Target:
    """Warms the server up with a request of one token and learns which fields it takes. Raises BenchError if it takes none."""
    context = ssl.create_default_context() if address.secure else None
    outcome = Outcome()
    for form in FORMS:
        target = Target(address, model, form, context)
        outcome = await ask(target, prompt, 1, timeout)
        if outcome.error is None:
            return target
        if outcome.error not in ("HTTP 400", "HTTP 422"):
            break
    raise BenchError(f"{address.host}:{address.port} does not serve a first request: {outcome.error}: {outcome.message}")


async def ask(target: Target, prompt: list[int] | str, output_len: int, timeout: float) -> Outcome:
    """Sends one request and reads its reply to the end."""
    body = target.form.body(target.model, prompt, output_len)
    outcome = Outcome(sent=time.perf_counter())
    try:
        reply = await asyncio.wait_for(send(target.address, "POST", PATH, body, target.context), timeout)
        _read(reply, outcome)
    except TimeoutError:
        outcome.error, outcome.message = "timeout", f"not finished within {timeout:g} s"
    except ReplyError as error:
        outcome.error, outcome.message = error.kind, str(error)
    return outcome


def _read(reply: Reply, outcome: Outcome) -> None:
    if reply.status != 200:
        outcome.error = f"HTTP {reply.status}"
        outcome.message = http_error(reply)
        return
    finished = False
    texts = 0
    for at, data in reply.events:
        try:
            event = _EVENT.decode(data)
        except msgspec.DecodeError as error:
            outcome.error, outcome.message = "unreadable event", str(error)
            return
        if event.error is not None:
            outcome.error, outcome.message = "error in the stream", _said(event.error)
            return
        if event.usage is not None:
            outcome.prompt_tokens, outcome.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        if event.choices:
            finished = finished or any(choice.finish_reason for choice in event.choices)
            texts += any(choice.text for choice in event.choices)
            outcome.token_times.append(at - outcome.sent)
    outcome.output_tokens = outcome.output_tokens or texts
    if not outcome.token_times or not finished:
        outcome.error = "ended early"
        outcome.message = "the stream ended without a finish reason"


def http_error(reply: Reply) -> str:
    """Status and message of a reply that is an error."""
    try:
        return f"HTTP {reply.status}: {_said(msgspec.json.decode(reply.body))}"
    except msgspec.DecodeError:
        return f"HTTP {reply.status}: {reply.body[:_LONGEST_SAID].decode(errors='replace')}"


def _said(body: Any) -> str:
    for _ in range(2):
        if isinstance(body, dict):
            body = body.get("error") or body.get("message") or body.get("detail") or body
    return str(body)[:_LONGEST_SAID]


@dataclass(slots=True)
class Load:
    """What a run gave: outcomes in the order of the requests, its length in seconds, and the processor time that this client took."""

    outcomes: list[Outcome]
    seconds: float
    client_cpu_seconds: float


async def drive(
    target: Target,
    asks: Sequence[tuple[list[int] | str, int]],
    arrivals: Sequence[float],
    *,
    clients: int,
    timeout: float,
    most_seconds: float,
) -> Load:
    """Sends (prompt, output tokens) i at `arrivals[i]`, or later where `clients` requests (0: any number) are under way.

    A request is timed from when it is sent. It fails after `timeout` seconds, and all that are not over after `most_seconds` fail as
    "out of time".
    """
    outcomes = [Outcome(error="out of time", message=f"not over after {most_seconds:g} s") for _ in asks]
    slots = asyncio.Semaphore(clients or len(asks) or 1)
    started = time.perf_counter()

    async def one(index: int) -> None:
        await asyncio.sleep(max(0.0, started + arrivals[index] - time.perf_counter()))
        async with slots:
            outcomes[index] = await ask(target, *asks[index], timeout)

    spent = _cpu()
    tasks = [asyncio.create_task(one(index)) for index in range(len(asks))]
    try:
        await asyncio.wait(tasks, timeout=most_seconds)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [result for result in results if isinstance(result, Exception)]
    if broken:
        raise broken[0]
    return Load(outcomes, time.perf_counter() - started, _cpu() - spent)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ask_list(asks: Sequence[Ask]) -> list[tuple[list[int] | str, int]]:
    """Workload requests as `drive` takes them."""
    return [(ask.prompt_token_ids, ask.output_len) for ask in asks]
