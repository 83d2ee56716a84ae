"""The page, the plots' values and the README's part, from results without measurements."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_contenders import load, one_round, results

from comparison import page
from comparison.environments import EnvironmentSetupError
from comparison.page import page_text, write_page
from comparison.plots import plots_of
from comparison.readme import BEGIN, END, found_in, part_of, placed
from comparison.results import ResultsError, read_results, write_results
from comparison.tables import Notes, best_peer

ROOT = Path(__file__).resolve().parents[2]


def text_of(found) -> str:
    return page_text(found, [(plot["title"], plot["file"]) for plot in plots_of(found)], Notes(), [])


def rows_of(text: str, head: str) -> dict[str, list[str]]:
    """The rows of the first table after the line `head`, by their first cell."""
    lines = text.partition(f"{head}\n")[2].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = [line.strip("| ").split(" | ") for line in lines[start : lines.index("", start) if "" in lines[start:] else None]]
    return {row[0].strip("*"): row[1:] for row in rows[2:]}


class NoPlots:
    """Environments of which none can be made."""

    def python(self, name: str) -> Path:
        raise EnvironmentSetupError(f"{name} can't be installed: no network")


def test_figures_are_medians_with_their_spread():
    rows = rows_of(text_of(results()), "## Figures")
    assert rows["Octavo Q4"] == ["300", "6,144", "900", "0.7"]
    assert rows["Fast int4"] == [
        "100 <sub>90–110</sub>",
        "2,048 <sub>1,843–2,253</sub>",
        "300 <sub>270–330</sub>",
        "2.0 <sub>1.8–2.2</sub>",
    ]


def test_ratios_are_to_the_best_peer_of_the_kind():
    rows = rows_of(text_of(results()), "## Against the best peer")
    assert rows == {
        "Octavo Q4": ["3.00 × Fast int4"] * 3 + ["3.03 × Fast int4"],
        "Octavo bf16": ["3.00 × Wide bf16"] * 4,
    }


def test_the_best_start_is_the_shortest():
    name, figure = best_peer(results(), "ready", False)
    assert (name, figure.least) == ("Fast int4", pytest.approx(2.0 / 1.1))


def test_shares_of_the_limit():
    rows = rows_of(text_of(results()), "## Distance from the machine's limit")
    assert rows["Octavo Q4"] == ["75%", "400", "77%", "8,000", "75%", "1,200"]
    assert "reading memory 50 GB/s (50–50), int8 800 GOP/s (800–800), bf16 400 GFLOP/s (400–400)" in text_of(results())


def test_servers_are_compared_with_the_offline_figure():
    rows = rows_of(text_of(results()), "## Over HTTP")
    assert rows["Octavo Q4"] == ["250", "28%", "100", "10.0", "1.0", "1.2"]


def test_sweeps_have_a_row_for_each_load():
    text = text_of(results())
    assert rows_of(text, "### Clients") == {"1": ["100", "100.0", "10.0"], "64": ["200", "100.0", "10.0"]}
    assert rows_of(text, "### Arrivals a second") == {"1": ["50", "100.0", "10.0"], "8": ["90", "100.0", "10.0"]}


def test_kernels_of_the_best_instruction_set_are_listed():
    text = text_of(results())
    assert "| weights (avx512_vnni) | rows |" in text
    assert rows_of(text, "## Kernels")["int4"] == ["64", "4.0", "300", "50%"]


def test_every_failure_is_a_sentence():
    found = results()
    found["contenders"]["wide"]["rounds"] = [{"tasks": {}, "error": "exit status 1: no <module> named | this"}] * 2
    found["contenders"]["fast-4"]["rounds"][1] = one_round(tasks={"chat64": {"error": "not finished within 900 s"}}, speed=0.9)
    found["contenders"]["slow-8"]["rounds"][0]["answer_is_right"] = False
    found["servers"]["octavo-4"]["rounds"][0] = {"error": "it does not serve after 600 s"}
    found["servers"]["octavo-4"]["rounds"][1]["rates"][1] = {"clients": 0, "rate": 8.0, "error": "3 requests failed"}
    found["limits"][0] = {"error": "no probe"}
    found["kernels"] = {"error": "no native code"}
    text = text_of(found)
    notes = text.partition("## What could not be measured")[2]
    for sentence in (
        "Wide bf16, one stream, tokens/s: exit status 1: no &lt;module> named \\| this",
        "Fast int4, chat64, output tokens/s: round 2 of 2: not finished within 900 s",
        "Slow int8: its answer to the question is not the model's.",
        "the server octavo-4: round 1 of 2: it does not serve after 600 s",
        "Octavo Q4, arrivals a second: 3 requests failed",
        "the limit of Octavo Q4, one stream, tokens/s: round 1 of 2: no probe",
        "octavo bench kernels: no native code",
    ):
        assert re.search(rf"^\d+\. {re.escape(sentence)}$", notes, re.MULTILINE), sentence
    assert rows_of(text, "## Figures")["Wide bf16"][0].startswith("–<sup>")
    assert rows_of(text, "## Against the best peer")["Octavo bf16"] == ["–"] * 4
    marks = set(re.findall(r"<sup>(\d+)</sup>", text))
    assert marks <= {str(number) for number in range(1, notes.count("\n") + 1)}


def test_all_is_well_without_notes():
    assert "What could not be measured" not in text_of(results())


def test_a_quick_run_says_that_it_is_one():
    assert "None of these figures can be quoted" in text_of({**results(), "quick": True})
    assert "quick run" not in text_of(results())


@pytest.mark.parametrize("part", ["contenders", "servers"])
def test_a_part_that_did_not_run_is_left_out(part):
    text = text_of({**results(), part: {}})
    assert ("## Figures" in text, "## Over HTTP" in text) == (part != "contenders", part != "servers")


def test_plots_hold_the_loads_that_went_well():
    found = results()
    found["servers"]["octavo-4"]["rounds"][1]["clients"].append({"clients": 128, "rate": None, "error": "boom"})
    clients, rates, kernels = plots_of(found)
    assert clients["panels"][0]["series"] == [{"name": "Octavo Q4", "points": [[1, 100.0], [64, 200.0]]}]
    assert [panel["title"] for panel in rates["panels"]] == ["TTFT", "TPOT"]
    assert rates["panels"][0]["series"][0]["points"] == [[1.0, 100.0], [8.0, 100.0]]
    assert [panel["title"] for panel in kernels["panels"]] == ["avx512_vnni", "avx2"]
    assert plots_of({**found, "servers": {}, "kernels": {"error": "boom"}}) == []


def test_a_page_is_written_though_nothing_draws(tmp_path, capsys):
    problems = write_page(results(), tmp_path / "docs", NoPlots(), tmp_path / "README.md", lambda line: None)
    sentence = "The plots could not be drawn: plots can't be installed: no network"
    assert problems == [sentence]
    assert sentence in (tmp_path / "docs" / "benchmarks.md").read_text()
    assert capsys.readouterr().out.strip() == part_of(results())


def test_plots_are_drawn_by_their_own_interpreter(tmp_path, monkeypatch):
    class Interpreters:
        def python(self, name: str) -> Path:
            assert name == "plots"
            return Path(sys.executable)

    drawer = tmp_path / "draw.py"
    drawer.write_text("import json, sys\nfor plot in json.load(sys.stdin): open(sys.argv[1] + '/' + plot['file'], 'w').write('drawn')")
    monkeypatch.setattr(page, "DRAW", drawer)
    assert write_page(results(), tmp_path / "docs", Interpreters(), tmp_path / "README.md", lambda line: None) == []
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert links == ["benchmarks/clients.svg", "benchmarks/rates.svg", "benchmarks/kernels.svg"]
    assert all((tmp_path / "docs" / link).read_text() == "drawn" for link in links)


def test_the_readme_s_part_shows_octavo_and_the_best_peers():
    part = part_of(results())
    assert part.startswith(BEGIN)
    assert part.endswith(END)
    assert "| **Octavo Q4** | 300 (3.0 ×) | 6,144 (3.0 ×) | 900 (3.0 ×) | 0.7 (3.0 ×) |" in part
    assert "| best peer, 4 or 8 bits | 100 (Fast int4) | 2,048 (Fast int4) | 300 (Fast int4) | 2.0 (Fast int4) |" in part
    assert "| best peer, bf16 | 50 (Wide bf16) |" in part


def test_the_readme_changes_between_its_marks_only():
    readme = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    changed = placed(readme, part_of(results()))
    assert changed == f"before\n\n{part_of(results())}\n\nafter\n"
    assert found_in(changed) == part_of(results())
    assert placed("no marks\n", part_of(results())) == "no marks\n"
    assert found_in("no marks\n") is None


@pytest.mark.parametrize("quick", [False, True])
def test_only_a_full_run_reaches_the_readme(tmp_path, quick):
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\nold\n{END}\n")
    write_page({**results(), "quick": quick}, tmp_path / "docs", NoPlots(), readme, lambda line: None)
    assert ("old" in readme.read_text()) == quick


def test_the_project_s_readme_and_page_hold_the_figures_of_its_results():
    file = ROOT / "docs" / "benchmarks" / "results.json"
    part = found_in((ROOT / "README.md").read_text())
    assert (part is not None) == file.exists(), "README.md and docs/benchmarks/results.json belong together"
    if file.exists():
        found = read_results(file)
        assert not found["quick"]
        assert part == part_of(found)
        assert (ROOT / "docs" / "benchmarks.md").read_text() == text_of(found)


def test_results_survive_the_file(tmp_path):
    write_results(tmp_path / "a" / "results.json", {"x": [1.23456789, float("nan")], "y": {"z": (1,)}})
    assert read_results(tmp_path / "a" / "results.json") == {"format": 1, "x": [1.23457, None], "y": {"z": [1]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "can't be read: No such file or directory"),
        ("{", "is no JSON"),
        ("[]", "holds no results"),
        ('{"format": 0}', "holds no results"),
    ],
)
def test_a_file_without_results_is_refused(tmp_path, text, message):
    file = tmp_path / "results.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ResultsError, match=message):
        read_results(file)


def test_the_command_renders_results_without_measuring(tmp_path):
    write_results(tmp_path / "results.json", {**results(), "servers": {}, "kernels": {"error": "boom"}})
    command = [sys.executable, "benchmarks/compare.py", "--render", str(tmp_path / "results.json"), "--out", str(tmp_path / "docs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr  # kernels are missing
    assert done.stdout.strip() == part_of(results())
    assert "octavo bench kernels: boom" in (tmp_path / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nobody"], "--only: no contender is named nobody; see --list"),
        (["--rounds", "0"], "--rounds: must be at least 1, not 0"),
        (["--threads", "100000"], "--threads: must be from 1 to"),
        (["--parts", "all"], "invalid choice: 'all'"),
        (["--render", "/no/such/file"], "/no/such/file can't be read"),
    ],
)
def test_wrong_use_is_a_sentence(arguments, message):
    done = subprocess.run([sys.executable, "benchmarks/compare.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_loads_are_plain_json():
    assert json.loads(json.dumps(results()))["servers"]["octavo-4"]["rounds"][0]["load"] == load()
