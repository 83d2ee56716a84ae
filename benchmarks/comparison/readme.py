"""The README's figures: a table between two marks, made from the results."""

from __future__ import annotations

import re
from typing import Any

from comparison.figures import MEASURES, contender_figure, ratio
from comparison.tables import DIGITS, HEADS, NONE, best_peer, markdown, measured, name_of

BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
_MARKED = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def part_of(results: dict[str, Any]) -> str:
    """The part, with its marks: Octavo's figures, those of the best peers, and how many times they are."""
    machine = results["machine"]
    rows = []
    for wide in (False, True):
        for contender in results["contenders"].values():
            if contender["engine"] == "Octavo" and (contender["bits"] == 16) == wide:
                rows.append([f"**{name_of(contender)}**", *(_own(results, contender, measure) for measure in MEASURES)])
        kind = "bf16" if wide else "4 or 8 bits"
        rows.append([f"best peer, {kind}", *(_best(results, measure, wide) for measure in MEASURES)])
    sentence = (
        f"SmolLM2-135M-Instruct on {machine['cores']} cores ({machine['processor']}), {results['time'][:10]}; in brackets, how many times "
        f"as fast as the best peer. [All figures, and how to repeat them](docs/benchmarks.md)."
    )
    return "\n".join([BEGIN, markdown(["", *(HEADS[measure] for measure in MEASURES)], rows), "", sentence, END])


def placed(readme: str, part: str) -> str:
    """The README's text with `part` in the place of what stands between the marks; the same text where it has none."""
    return _MARKED.sub(lambda _: part, readme, count=1)


def found_in(readme: str) -> str | None:
    """The part that a README holds, with its marks."""
    found = _MARKED.search(readme)
    return found[0] if found else None


def _own(results: dict[str, Any], contender: dict[str, Any], measure: str) -> str:
    own = contender_figure(contender["rounds"], measure) if measured(contender, measure) else None
    if own is None or own.median is None:
        return NONE
    peer = best_peer(results, measure, contender["bits"] == 16)
    times = None if peer is None else ratio(peer[1], own) if measure == "ready" else ratio(own, peer[1])
    shown = f"{own.median:,.{DIGITS[measure]}f}"
    return shown if times is None else f"{shown} ({times:.1f} ×)"


def _best(results: dict[str, Any], measure: str, wide: bool) -> str:
    peer = best_peer(results, measure, wide)
    return NONE if peer is None or peer[1].median is None else f"{peer[1].median:,.{DIGITS[measure]}f} ({peer[0]})"
