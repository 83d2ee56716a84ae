"""docs/benchmarks.md, its plots, and the README's part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comparison import tables
from comparison.environments import Environments, EnvironmentSetupError
from comparison.plots import plots_of
from comparison.processes import RunError, run
from comparison.readme import part_of, placed

DRAW = Path(__file__).resolve().parents[1] / "draw.py"
DRAW_SECONDS = 120.0
INTRODUCTION = """\
# Benchmarks

Written by `benchmarks/compare.py` ([how it measures](../benchmarks/README.md)). All contenders ran SmolLM2-135M-Instruct, the same weights
in each one's own form, in one run on one machine, by turns: each round starts every contender anew, and figures are {rounds}.
Answers are greedy and never end early.
"""


def write_page(results: dict[str, Any], out: Path, environments: Environments, readme: Path, log: Callable[[str], None]) -> list[str]:
    """Writes benchmarks.md and benchmarks/*.svg into `out`, prints the README's part, and puts it where the README at `readme` has its
    marks if these are the results that belong to it. Returns the sentences on what failed."""
    notes = tables.Notes()
    problems = []
    try:
        drawn = draw(results, out / "benchmarks", environments)
    except (EnvironmentSetupError, RunError) as failure:
        drawn = []
        problems.append(f"The plots could not be drawn: {failure}")
    out.mkdir(parents=True, exist_ok=True)
    page = out / "benchmarks.md"
    page.write_text(page_text(results, drawn, notes, problems))
    log(f"wrote {page}")
    part = part_of(results)
    print(part)
    if not results["quick"] and out.resolve() == (readme.parent / "docs").resolve() and readme.exists():
        text = readme.read_text()
        if (changed := placed(text, part)) != text:
            readme.write_text(changed)
            log(f"wrote the figures in {readme}")
    return [*notes.lines, *problems]


def draw(results: dict[str, Any], folder: Path, environments: Environments) -> list[tuple[str, str]]:
    """Draws the plots; (title, file name) of each. Raises EnvironmentSetupError or RunError."""
    plots = plots_of(results)
    if not plots:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    run([str(environments.python("plots")), str(DRAW), str(folder)], {}, DRAW_SECONDS, stdin=json.dumps(plots))
    return [(plot["title"], plot["file"]) for plot in plots]


def page_text(results: dict[str, Any], drawn: list[tuple[str, str]], notes: tables.Notes, problems: list[str]) -> str:
    """The page; failures end as notes below."""
    machine = results["machine"]
    most = max((len(each["rounds"]) for each in results["contenders"].values()), default=0)
    rounds = (
        "medians over rounds, with the least and the greatest beside them"
        if most > 1
        else "those of one round, so that some are off by a tenth"
    )
    parts = [INTRODUCTION.format(rounds=rounds).strip()]
    if results["quick"]:
        parts.append("**A quick run: a few short requests, to see that everything runs. None of these figures can be quoted.**")
    parts.append(
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}, "
        f"Python {machine['python']}; {results['threads']} threads; {results['time'][:10]}; Octavo {results['octavo']}.\n\n"
        f"```\n{results['command']}\n```"
    )
    plots = {file: f"![{title}](benchmarks/{file})" for title, file in drawn}
    if results["contenders"] and any(each["rounds"] for each in results["contenders"].values()):
        parts += _offline(results, notes)
    if results["servers"] and any(each["rounds"] for each in results["servers"].values()):
        parts += _servers(results, notes, plots)
    if "kernels" in results:
        parts += _kernels(results["kernels"], notes, plots)
    if notes.lines or problems:
        parts += ["## What could not be measured", "\n\n".join(part for part in (notes.text(), *problems) if part)]
    return "\n\n".join(parts) + "\n"


def _offline(results: dict[str, Any], notes: tables.Notes) -> list[str]:
    return [
        "## Figures",
        tables.figures_table(results, notes),
        "One stream: 128 tokens after a prompt of 32, those after the first by the time after the first. Prompt: 1,024 tokens by the time "
        "to the first token. chat64: 64 requests at once, 11,633 prompt and 6,317 output tokens, without HTTP and without a prefix cache. "
        "Start: from the start of the process until the model is loaded.",
        "## Against the best peer",
        "The best of the others with weights of the same kind: of 4 or 8 bits, or of 16.",
        tables.ratios_table(results),
        "## Distance from the machine's limit",
        tables.rates_sentence(results) + " [What the limit is](benchmarking.md#the-machines-limit).",
        tables.limits_table(results, notes),
        "## What ran",
        tables.contenders_table(results, notes),
        "Every contender is asked what the opposite of hot is; an answer is right if its tokens are those of the model in float32.",
    ]


def _servers(results: dict[str, Any], notes: tables.Notes, plots: dict[str, str]) -> list[str]:
    parts = [
        "## Over HTTP",
        "chat64 from 64 clients that stream, by `octavo bench serve`; times are medians over requests.",
        tables.servers_table(results, notes),
        *(plots[file] for file in ("clients.svg", "rates.svg") if file in plots),
    ]
    for title, table in tables.sweeps_tables(results, notes):
        parts += [f"### {title}", table]
    return parts


def _kernels(kernels: dict[str, Any], notes: tables.Notes, plots: dict[str, str]) -> list[str]:
    if "error" in kernels:
        mark = notes.mark(f"octavo bench kernels: {tables.said(kernels['error'])}")
        return ["## Kernels", f"Not measured.{mark}"]
    shape = f"{kernels['settings']['outputs']} × {kernels['settings']['inner']}"
    return [
        "## Kernels",
        f"Products of packed weights of {shape} alone, by `octavo bench kernels`, against the limit of their instruction set.",
        *(plots[file] for file in ("kernels.svg",) if file in plots),
        tables.kernels_table(kernels),
    ]
