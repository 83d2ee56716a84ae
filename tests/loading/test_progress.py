import io
import re

import pytest

from octavo.loading import growth, progress
from octavo.loading.growth import folder_bytes, largest_file_bytes, report_growth
from octavo.loading.progress import ConsoleProgress, progress_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Recorder:
    def __init__(self):
        self.events = []

    def start(self, total, label):
        self.events.append(("start", total, label))

    def advance(self, count):
        self.events.append(("advance", count))

    def finish(self):
        self.events.append(("finish",))


def test_elsewhere_there_is_a_line_for_each_tenth(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    stream = io.StringIO()
    shown = ConsoleProgress(stream=stream)
    shown.start(2_000_000, "Loading model.gguf")
    for _ in range(100):
        shown.advance(20_000)
    shown.finish()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "Loading model.gguf (2.0 MB)"
    assert lines[1] == "Loading model.gguf: 10%, 200.0 kB of 2.0 MB"
    assert [re.search(r"\d+%", line)[0] for line in lines[1:-1]] == [f"{tenth}0%" for tenth in range(1, 10)]
    assert re.fullmatch(r"Loading model\.gguf: 2\.0 MB in \d+\.\d s", lines[-1])


def test_quick_work_gets_two_lines_and_work_given_up_one():
    stream = io.StringIO()
    shown = ConsoleProgress(stream=stream)
    shown.start(1000, "Loading")
    for _ in range(10):
        shown.advance(100)
    shown.finish()
    assert len(stream.getvalue().splitlines()) == 2
    shown.start(5_000_000_000, "Downloading")
    shown.advance(3)
    shown.finish()
    shown.finish()
    assert stream.getvalue().splitlines()[2:] == ["Downloading (5.0 GB)"]


def test_an_unknown_total_is_not_shown():
    stream = io.StringIO()
    shown = ConsoleProgress(stream=stream)
    shown.start(0, "Downloading")
    shown.advance(12)
    shown.finish()
    first, last = stream.getvalue().splitlines()
    assert first == "Downloading"
    assert last.startswith("Downloading: 12 bytes in ")


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    shown = ConsoleProgress(stream=stream)
    shown.start(1000, "Loading")
    shown.advance(1000)
    shown.finish()
    assert "Loading" in stream.getvalue()
    assert "100%" in stream.getvalue()
    assert "1.00k/1.00k" in stream.getvalue()
    assert stream.getvalue().endswith("\n")


def test_quiet_is_silent(capsys):
    shown = progress_for(quiet=True)
    shown.start(10, "Loading")
    shown.advance(10)
    shown.finish()
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_lines_go_to_standard_error(capsys):
    shown = progress_for()
    shown.start(10, "Loading")
    assert capsys.readouterr().err == "Loading (10 bytes)\n"


def test_growth_is_reported_up_to_the_total(monkeypatch, tmp_path):
    monkeypatch.setattr(growth, "POLL_SECONDS", 0.005)
    (tmp_path / "before").write_bytes(b"12345")
    recorder = Recorder()
    with report_growth(lambda: folder_bytes(tmp_path), 100, "Fetching", recorder):
        (tmp_path / "a").write_bytes(bytes(30))
        (tmp_path / "b").write_bytes(bytes(90))
    assert recorder.events[0] == ("start", 100, "Fetching")
    assert recorder.events[-1] == ("finish",)
    assert sum(event[1] for event in recorder.events if event[0] == "advance") == 100
    assert largest_file_bytes(tmp_path) == 90
    assert largest_file_bytes(tmp_path / "none") == 0


def test_growth_ends_when_the_work_fails(tmp_path):
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt), report_growth(lambda: 0, 0, "Fetching", recorder):
        raise KeyboardInterrupt
    assert recorder.events == [("start", 0, "Fetching"), ("finish",)]
