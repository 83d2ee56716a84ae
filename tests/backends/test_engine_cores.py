"""Which cores an engine takes, on machines of all kinds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from octavo.backends import cores
from octavo.backends.cores import EngineCores
from octavo.backends.select import select_backend
from octavo.config.engine import BackendConfig
from octavo.protocol.errors import ConfigError
from octavo.utils.core_claims import Claim, HeldClaim, _pid_space

HERE = _pid_space()
Take = Callable[..., EngineCores]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Take:
    """EngineCores on a machine of these cores, beside these claims, under these quotas; four plain cores by default."""

    def made(
        threads: int = 0, machine: dict[int, list[int]] | None = None, others: list[Claim] | None = None, quotas: tuple[int, ...] = ()
    ):
        machine = machine or {core: [core] for core in range(4)}

        def claim_cores(choose: Callable[[list[Claim]], list[int]]) -> HeldClaim:
            claimed.append(choose(others or []))
            return HeldClaim([])

        claimed: list[list[int]] = []
        monkeypatch.setattr(cores, "physical_cores", lambda: machine)
        monkeypatch.setattr(cores, "cpu_quotas", lambda: list(quotas))
        monkeypatch.setattr(cores, "usable_cores", lambda: min([len(machine), *quotas]))
        monkeypatch.setattr(cores, "claim_cores", claim_cores)
        taken = EngineCores(threads)
        taken.claimed = claimed[0]  # type: ignore[attr-defined]
        return taken

    monkeypatch.setattr(sys, "platform", "linux")
    return made


def claim(pid: int, mask: int, space: int = HERE) -> Claim:
    return Claim(space, pid, 0, mask)


SMT = {0: [0, 4], 1: [1, 5], 2: [2, 6], 3: [3, 7]}


@pytest.mark.parametrize(
    ("threads", "machine", "pinned"),
    [
        (0, None, [0, 1, 2, 3]),
        (2, None, [0, 1]),
        (0, SMT, [0, 1, 2, 3]),
        (3, SMT, [0, 1, 2]),
        (6, SMT, [0, 1, 2, 3, 4, 5]),
        (8, SMT, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0, {0: [8], 2: [2, 10]}, [8, 2]),
        (3, {0: [8], 2: [2, 10]}, [8, 2, 10]),
    ],
)
def test_a_thread_has_a_core_of_its_own_as_long_as_there_are_any(take: Take, threads, machine, pinned) -> None:
    taken = take(threads, machine)
    assert taken.threads == len(pinned)
    assert taken.pin(None) == taken.pinned == pinned
    assert taken.notes == []


def test_more_threads_than_cpus_are_not_pinned(take: Take) -> None:
    taken = take(5)
    assert taken.pin(None) == []
    assert taken.describe() == "5 threads not pinned"
    with pytest.raises(ConfigError, match=r"^pin_threads: can't be with 5 threads on 4 CPUs; ask for fewer threads$") as caught:
        taken.pin(True)
    assert caught.value.param == "pin_threads"


def test_under_a_quota_threads_are_pinned_only_on_request(take: Take) -> None:
    assert take(quotas=(2,)).threads == 2
    assert take(quotas=(2,)).pin(None) == []
    assert take(quotas=(2,)).pin(True) == [0, 1]


def test_pinning_can_be_refused(take: Take) -> None:
    taken = take(2)
    assert taken.pin(False) == []
    assert taken.describe() == "2 threads not pinned"


def test_only_linux_pins(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert take(2).pin(None) == []
    with pytest.raises(ConfigError, match=r"^pin_threads: must not be asked for on this system"):
        take(2).pin(True)


def test_the_reference_backend_pins_nothing(take: Take) -> None:
    with pytest.raises(ConfigError, match=r"^pin_threads: can't be with the reference backend") as caught:
        select_backend(BackendConfig("reference", pin_threads=True), take())
    assert caught.value.param == "pin_threads"
    taken = take()
    select_backend(BackendConfig("reference"), taken)
    assert taken.describe() == "4 threads not pinned"


def test_what_is_said_of_threads(take: Take) -> None:
    one, some = take(1), take(3, others=[claim(9, 0b0010)])
    one.pin(None)
    some.pin(None)
    assert one.describe() == "1 thread pinned to CPU 0"
    assert some.describe() == "3 threads pinned to CPUs 0,2-3"


def test_free_cores_come_first(take: Take) -> None:
    taken = take(2, others=[claim(9, 0b0101)])
    assert taken.claimed == [1, 3]
    assert taken.pin(None) == [1, 3]
    assert taken.notes == []


def test_then_those_that_fewest_use(take: Take) -> None:
    taken = take(3, others=[claim(9, 0b1011), claim(10, 0b0011)])
    assert taken.claimed == [0, 2, 3]


def test_threads_that_are_not_pinned_claim_cores_too(take: Take) -> None:
    taken = take(9, others=[claim(9, 0b0001)])
    assert taken.claimed == [0, 1, 2, 3]
    assert len(taken.notes) == 1


def test_sharers_are_named_in_one_sentence(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "server_of", lambda pid: {71: 70}.get(pid, pid))
    (note,) = take(others=[claim(71, 0b0111)]).notes
    assert note == (
        "CPUs 0-2 are also used by process 70, and each slows the other down: "
        "give them fewer threads (--threads) or CPUs of their own (taskset -c)"
    )
    (note,) = take(others=[claim(71, 0b0001), claim(33, 0b0001), claim(71, 0b0001, space=HERE + 1)], machine=SMT).notes
    assert note.startswith("CPU 0 is also used by process 33 and process 70 and an engine in another container, and each slows ")
    (note,) = take(others=[claim(os.getpid(), 0b1000)]).notes
    assert note.startswith("CPU 3 is also used by another engine of this process, and ")


def test_cpus_are_named_as_this_process_may_use_them(take: Take) -> None:
    (note,) = take(machine={0: [8], 1: [9]}, others=[claim(9, 0b01)]).notes
    assert note.startswith("CPU 8 is also used by process 9, ")
