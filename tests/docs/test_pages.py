"""Pages written from the code are current, and every page's links lead somewhere."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.loading.gguf_header import TENSOR_KINDS
from octavo.protocol.errors import UnsupportedModelError
from octavo.quantization.decode import decode
from octavo.quantization.kinds import KINDS
from octavo.quantization.tensor import CheckpointTensor
from octavo.server.item_schemas import REFUSED, WITHOUT_EFFECT

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def test_generated_pages_are_current():
    done = subprocess.run([sys.executable, "scripts/gen_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_fields_within_fields_are_listed():
    table = (ROOT / "docs/api.md").read_text().split("## Fields within fields\n")[1].split("\n## ")[0]
    state = {cells[1].strip(" `"): cells[4].strip() for line in table.splitlines() if len(cells := line.split(" | ".strip())) == 6}
    assert {path for path, word in state.items() if word == "no effect"} == WITHOUT_EFFECT
    assert {path for path, word in state.items() if word == "refused"} == REFUSED
    assert state["messages[].tool_calls[].function.arguments"] == state["tools[].function.strict"] == "acts"


def test_the_limits_of_max_tokens_are_those_of_each_route():
    sections = (ROOT / "docs/api.md").read_text().split("\n## ")
    rows = {
        head.strip("`"): [line for line in section.splitlines() if line.startswith("| `max_tokens`")]
        for section in sections
        for head in [section.splitlines()[0].removeprefix("Only ")]
    }
    assert rows["/v1/completions"] == ["| `max_tokens` | integer, ≥ 0 |"]
    assert rows["/v1/chat/completions"] == ["| `max_tokens` | integer, ≥ 1 |"]
    assert rows["Completions and chat"] == []


@pytest.mark.parametrize("columns", ["20", "200"])
def test_generated_pages_do_not_depend_on_the_terminal(columns: str, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    test_generated_pages_are_current()


def test_every_variable_of_the_environment_is_documented():
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "csrc/isa/isa.cpp"]
    read = {name for path in sources for name in re.findall(r"\"(OCTAVO_[A-Z_]+)\"", path.read_text())}
    assert {"OCTAVO_CACHE", "OCTAVO_API_KEY", "OCTAVO_CPU_ISA"} <= read
    table = (ROOT / "docs/cli.md").read_text().split("## Environment\n")[1].split("\n## ")[0]
    assert read == set(re.findall(r"`(OCTAVO_[A-Z_]+)`", table))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            goal = page.parent / path if path else page
            assert goal.exists(), f"{page.name} links to {target}"
            if anchor:
                heads = re.findall(r"^#+ (.+)$", goal.read_text(), flags=re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
                assert anchor in slugs, f"{page.name} links to {target}"


@pytest.mark.model
def test_the_examples_of_python_run(smollm2_path: Path):
    first, second = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 9
    assert "Tokyo" in lines[3]
    assert lines[7] in ("yes", "no")
    assert lines[8] == "576"
    done = subprocess.run([sys.executable, "-c", second], capture_output=True, text=True, check=True)
    assert len(done.stdout) > 10


def test_the_readme_opens_with_the_two_commands():
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    assert re.search(r"^make serve\b", first_block, flags=re.MULTILINE)
    assert re.search(r"^make test\b", first_block, flags=re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_gguf_types_that_are_listed_are_those_that_load(page: str):
    listed = re.search(r"F64, F32, [A-Z0-9_,\s]+?(?: or |,\s)NVFP4", (ROOT / page).read_text())
    assert listed is not None
    load = set()
    for kind in TENSOR_KINDS.values():
        storage = KINDS[kind]
        data = np.zeros((1, storage.bytes_per_block), np.uint8)
        with contextlib.suppress(UnsupportedModelError):
            decode(CheckpointTensor("w", kind, (1, storage.values_per_block), data))
            load.add(kind)
    assert set(re.findall(r"[A-Z0-9_]{3,}", listed[0])) == load


def test_every_make_target_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"`make ([a-z0-9-]+)", page.read_text()):
            assert target in targets, f"{page.name} names `make {target}`"
