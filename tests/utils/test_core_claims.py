"""Claims of cores, as real processes make and lose them."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

import pytest
from patience import patient
from processes import wait_until

from octavo.utils import core_claims
from octavo.utils.core_claims import Claim, HeldClaim, claim_cores, claims, server_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")

# Cores that no machine has, so that other engines of this one don't matter.
FAR = 100_000


def holders(core: int) -> list[int]:
    return sorted(claim.pid for claim in claims() if claim.holds(core))


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterable[subprocess.Popen[str]]:
    """Another process that holds the cores FAR and FAR + 1."""
    code = (
        f"import sys; from octavo.utils.core_claims import HeldClaim; held = HeldClaim([{FAR}, {FAR + 1}])\n"
        "print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "1\n"
        yield made
        made.kill()


def test_a_claim_lasts_until_it_is_closed() -> None:
    held = HeldClaim([FAR, FAR + 3, FAR + 130])
    assert [holders(FAR + i) for i in (0, 1, 3, 130)] == [[os.getpid()], [], [os.getpid()], [os.getpid()]]
    second = HeldClaim([FAR])
    assert holders(FAR) == [os.getpid()] * 2
    held.close()
    held.close()
    assert holders(FAR) == [os.getpid()]
    assert holders(FAR + 130) == []
    del second
    assert holders(FAR) == []


def test_a_claim_of_no_cores_is_none() -> None:
    before = len(claims())
    HeldClaim([]).close()
    assert len(claims()) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_claim_ends_with_its_process(process: subprocess.Popen[str], number: int) -> None:
    assert holders(FAR) == holders(FAR + 1) == [process.pid]
    assert server_of(process.pid) == process.pid
    process.send_signal(number)
    process.wait(10)
    assert holders(FAR) == []


def test_a_child_that_outlives_a_killed_process_claims_nothing() -> None:
    code = (
        f"import os, time; from octavo.utils.core_claims import HeldClaim; held = HeldClaim([{FAR}]); child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert holders(FAR) == [parent.pid]
            parent.kill()
            parent.wait(10)
            assert holders(FAR) == []
        finally:
            os.kill(child, signal.SIGKILL)


def test_choosing_knows_the_others(process: subprocess.Popen[str]) -> None:
    told: list[Claim] = []

    def choose(others: list[Claim]) -> list[int]:
        told.extend(claim for claim in others if claim.holds(FAR))
        return [FAR + 1]

    held = claim_cores(choose)
    assert [(claim.pid, claim.is_here) for claim in told] == [(process.pid, True)]
    assert holders(FAR + 1) == sorted([process.pid, os.getpid()])
    held.close()


def test_engines_that_start_at_once_choose_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the first core that nobody has; none is taken twice, unless one of them chooses for longer than the others wait."""
    monkeypatch.setattr(core_claims, "CHOOSING_SECONDS", 60.0)

    def choose(others: list[Claim]) -> list[int]:
        core = next(core for core in range(FAR, FAR + 100) if not any(claim.holds(core) for claim in others))
        time.sleep(0.01)
        return [core]

    held: list[HeldClaim] = []
    threads = [threading.Thread(target=lambda: held.append(claim_cores(choose))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(holders(FAR + i)) for i in range(13)] == [1] * 12 + [0]
    for each in held:
        each.close()


def bound_once_free(name: str) -> int:
    """A socket of that name, which an engine elsewhere on this machine may have for a moment."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return core_claims._bound(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def test_one_who_never_finishes_choosing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_claims, "CHOOSING_SECONDS", 0.1)
    stuck = bound_once_free(f"{core_claims.PREFIX}-choosing")
    try:
        started = time.monotonic()
        claim_cores(lambda others: [FAR]).close()
        assert 0.1 <= time.monotonic() - started < patient(5)
    finally:
        os.close(stuck)


@pytest.mark.parametrize(
    "name",
    [
        "octavo-cores",
        "octavo-cores/1/2.3/4",
        "octavo-cores/1/2.3/4/xyz",
        "octavo-cores/1/99999999999999999999.3/0/1",
        f"octavo-cores/1/2.3/0/{'f' * 60}",
        "octavo-cores/1/-5.3/0/1",
        "octavo-cores/1/2.3/\n/1",
        "octavo-cores/1/2.3/0/1\udcff",
    ],
)
def test_names_that_others_made_up_are_passed_over(name: str) -> None:
    before = claims()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(b"\0" + name.encode(errors="surrogateescape"))
        assert claims() == before


def test_a_claim_from_another_pid_namespace_has_a_number_of_its_own() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0octavo-cores/1/{os.getpid()}.0/{FAR}/1")
        (claim,) = (claim for claim in claims() if claim.holds(FAR))
        assert not claim.is_here


def refused(*args: object, **options: object) -> None:
    raise PermissionError("no sockets here")


def test_without_such_sockets_engines_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_claims, "_bound", refused)
    monkeypatch.setattr(core_claims, "CHOOSING_SECONDS", 60.0)
    started = time.monotonic()
    held = claim_cores(lambda others: [FAR])
    assert time.monotonic() - started < core_claims.CHOOSING_SECONDS
    assert holders(FAR) == []
    held.close()


def test_without_proc_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_claims.Path, "read_text", refused)
    assert claims() == []


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    told: list[list[Claim]] = []
    choose: Callable[[list[Claim]], list[int]] = lambda others: told.append(others) or [FAR]  # type: ignore[func-returns-value]  # noqa: E731
    claim_cores(choose).close()
    assert told == [[]]


def test_an_engine_process_is_its_server_s() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "octavo.engine.process"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as engine:
        try:
            wait_until(lambda: server_of(engine.pid) == os.getpid(), 10, "the engine is known as this process's")
        finally:
            engine.kill()
    assert server_of(engine.pid) == engine.pid
