"""Children of the comparison: their output, their failures, and that none is left."""

import os
import sys
import time
from pathlib import Path

import pytest

from comparison import processes
from comparison.processes import OPENMP_MARK, RunError, json_lines, run


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_input_variables_and_output_pass_through():
    code = "import os, sys; print(sys.stdin.read() + os.environ['WORD']); print('noise', file=sys.stderr)"
    assert run(python(code), {"WORD": "two"}, 30, stdin="one ") == "one two\n"


def test_a_failure_is_a_sentence_with_the_last_line_and_keeps_the_output():
    with pytest.raises(RunError, match=r"^exit status 3: the end$") as caught:
        run(
            python("import sys; print('before'); print('the\\nend'.replace('the\\n', 'start\\nthe '), file=sys.stderr); sys.exit(3)"),
            {},
            30,
        )
    assert caught.value.output == "before\n"


def test_a_signal_is_named():
    with pytest.raises(RunError, match=r"^ended by SIGKILL: it says nothing$"):
        run(python("import os; os.kill(os.getpid(), 9)"), {}, 30)


def test_a_command_that_is_not_there_is_a_sentence():
    with pytest.raises(RunError, match=r"^/no/such/python can't be started: No such file or directory$"):
        run(["/no/such/python"], {}, 30)


def test_what_takes_too_long_is_ended_with_its_children(monkeypatch):
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(processes, "REST_SECONDS", 0.5)
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with pytest.raises(RunError, match=r"^not finished within 2 s$") as caught:
        run(python(code), {}, 2)
    assert not alive(int(caught.value.output))


def test_children_of_one_that_ended_well_are_ended_too(monkeypatch):
    monkeypatch.setattr(processes, "REST_SECONDS", 0.5)
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    pid = int(run(python(code), {}, 30))
    end = time.perf_counter() + 10
    while alive(pid) and time.perf_counter() < end:
        time.sleep(0.02)
    assert not alive(pid)


def test_shared_memory_of_what_takes_too_long_is_freed(monkeypatch):
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(processes, "REST_SECONDS", 3.0)
    code = (
        "import signal, time\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(SharedMemory(create=True, size=4096).name, flush=True); time.sleep(60)"
    )
    with pytest.raises(RunError) as caught:
        run(python(code), {}, 2)
    name = caught.value.output.strip()
    assert name.startswith("psm_")
    assert not Path("/dev/shm", name).exists()


def test_children_may_end_by_themselves(tmp_path):
    mark = tmp_path / "ended"
    child = f"import time; time.sleep(1); open({str(mark)!r}, 'w').close()"
    run(python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"), {}, 30)
    assert mark.exists()


def test_shared_memory_of_killed_processes_goes_and_that_of_others_stays(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    before, living = tmp_path / f"{OPENMP_MARK}4000000_0", tmp_path / f"{OPENMP_MARK}{os.getpid()}_0"
    before.touch()
    code = (
        f"import os, pathlib, sys; folder = pathlib.Path({str(tmp_path)!r})\n"
        f"for pid in (os.getpid(), {os.getpid()}): (folder / f'{OPENMP_MARK}{{pid}}_0').touch()\n"
        "print(os.getpid())"
    )
    run(python(code), {}, 30)
    assert set(tmp_path.iterdir()) == {before, living}


def test_only_whole_objects_are_read():
    assert json_lines('{"a": 1}\nnoise\n[2]\n{"b": 2}\n{"c": ') == [{"a": 1}, {"b": 2}]
