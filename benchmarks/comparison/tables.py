"""Tables of the page, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comparison.figures import MEASURES, Figure, contender_figure, limit_figure, rate_figure, ratio, server_figure

SHORT = {"stream": "one stream", "prefill": "prompt of 1,024", "chat64": "chat64", "ready": "start to ready"}
UNITS = {"stream": "tokens/s", "prefill": "tokens/s", "chat64": "output tokens/s", "ready": "s"}
HEADS = {measure: f"{SHORT[measure]}, {UNITS[measure]}" for measure in MEASURES}
DIGITS = {"stream": 0, "prefill": 0, "chat64": 0, "ready": 1}
NONE = "–"


class Notes:
    """Footnotes: what can't be put into a cell."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def mark(self, sentence: str) -> str:
        """The mark of a sentence."""
        if sentence not in self.lines:
            self.lines.append(sentence)
        return f"<sup>{self.lines.index(sentence) + 1}</sup>"

    def text(self) -> str:
        """All of them, as a numbered list."""
        return "\n".join(f"{index}. {line}" for index, line in enumerate(self.lines, 1))


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is on the left and the others on the right."""
    rule = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(heads), rule, *[list(row) for row in rows]])


def name_of(contender: dict[str, Any]) -> str:
    """Engine and weights."""
    return f"{contender['engine']} {contender['weights']}"


def said(sentence: str) -> str:
    """A message of a program as part of a Markdown line."""
    return " ".join(sentence.split()).replace("|", "\\|").replace("<", "&lt;")


def cell(figure: Figure, digits: int, notes: Notes, about: str) -> str:
    """Median, and least and greatest where rounds differ; a note for what failed."""
    mark = notes.mark(f"{about}: {said(figure.problem)}") if figure.problem else ""
    if figure.median is None or figure.least is None or figure.greatest is None:
        return NONE + mark
    middle, least, greatest = (f"{value:,.{digits}f}" for value in (figure.median, figure.least, figure.greatest))
    spread = "" if least == greatest else f" <sub>{least}–{greatest}</sub>"
    return f"{middle}{spread}{mark}"


def measured(contender: dict[str, Any], measure: str) -> bool:
    """Whether it was asked for that."""
    return measure == "ready" or measure in contender["tasks"]


def figures_table(results: dict[str, Any], notes: Notes) -> str:
    """Every contender, every measure."""
    rows = []
    for contender in results["contenders"].values():
        name = name_of(contender)
        cells = []
        for measure in MEASURES:
            if measured(contender, measure):
                cells.append(cell(contender_figure(contender["rounds"], measure), DIGITS[measure], notes, f"{name}, {HEADS[measure]}"))
            else:
                cells.append("")
        shown = f"**{name}**" if contender["engine"] == "Octavo" else name
        rows.append([shown, *cells])
    return markdown(["", *(HEADS[measure] for measure in MEASURES)], rows)


def best_peer(results: dict[str, Any], measure: str, wide: bool) -> tuple[str, Figure] | None:
    """The fastest of those that are not Octavo, with weights of 16 bits if `wide`, else of fewer; and its figure."""
    found = None
    for contender in results["contenders"].values():
        if contender["engine"] == "Octavo" or (contender["bits"] == 16) != wide or not measured(contender, measure):
            continue
        figure = contender_figure(contender["rounds"], measure)
        if figure.median is None:
            continue
        if found is None or found[1].median is None or (figure.median > found[1].median) != (measure == "ready"):
            found = (name_of(contender), figure)
    return found


def ratios_table(results: dict[str, Any]) -> str:
    """Each of Octavo's contenders against the best peer with weights of its kind. A start is compared as a speed: how many times sooner."""
    rows = []
    for contender in results["contenders"].values():
        if contender["engine"] != "Octavo":
            continue
        cells = []
        for measure in MEASURES:
            own, peer = contender_figure(contender["rounds"], measure), best_peer(results, measure, contender["bits"] == 16)
            times = None if peer is None else ratio(peer[1], own) if measure == "ready" else ratio(own, peer[1])
            cells.append(NONE if times is None or peer is None else f"{times:.2f} × {peer[0]}")
        rows.append([name_of(contender), *cells])
    return markdown(["", *(SHORT[measure] for measure in MEASURES)], rows)


def limits_table(results: dict[str, Any], notes: Notes) -> str:
    """How far each of Octavo's figures is from what the machine allows."""
    measures = [measure for measure in MEASURES if measure != "ready"]
    rows = []
    for key, contender in results["contenders"].items():
        if contender["engine"] != "Octavo":
            continue
        row = [name_of(contender)]
        for measure in measures:
            limit = limit_figure(results["limits"], key, measure)
            share = ratio(contender_figure(contender["rounds"], measure), limit)
            row.append(NONE if share is None else f"{share * 100:.0f}%")
            row.append(cell(limit, 0, notes, f"the limit of {name_of(contender)}, {HEADS[measure]}"))
        rows.append(row)
    heads = [head for measure in measures for head in (SHORT[measure], "limit, tokens/s")]
    return markdown(["", *heads], rows)


def rates_sentence(results: dict[str, Any]) -> str:
    """What the machine can do at most."""
    parts = []
    for name, unit, what in (
        ("read_bytes_s", "GB/s", "reading memory"),
        ("int8_ops_s", "GOP/s", "int8"),
        ("bf16_ops_s", "GFLOP/s", "bf16"),
    ):
        figure = rate_figure(results["limits"], name)
        if figure.median is None or figure.least is None or figure.greatest is None:
            return f"The machine's rates are not known: {said(figure.problem)}."
        parts.append(f"{what} {figure.median / 1e9:,.0f} {unit} ({figure.least / 1e9:,.0f}–{figure.greatest / 1e9:,.0f})")
    return f"Measured in the same run, with all threads: {', '.join(parts)}."


def servers_table(results: dict[str, Any], notes: Notes) -> str:
    """Servers under chat64 from 64 clients, against the same requests without HTTP."""
    rows = []
    for key, server in results["servers"].items():
        contender = results["contenders"].get(server["contender"])
        rounds = server["rounds"]
        about = f"the server {key}"
        tokens = server_figure(rounds, "load", "output_tokens_per_s")
        share = ratio(tokens, contender_figure(contender["rounds"], "chat64")) if contender else None
        rows.append(
            [
                name_of(contender) if contender else key,
                cell(tokens, 0, notes, about),
                NONE if share is None else f"{share * 100:.0f}%",
                cell(_scaled(server_figure(rounds, "load", "ttft_s", "median"), 1e3), 0, notes, about),
                cell(_scaled(server_figure(rounds, "load", "tpot_s", "median"), 1e3), 1, notes, about),
                cell(server_figure(rounds, "ready_s"), 1, notes, about),
                cell(server_figure(rounds, "first_token_s"), 1, notes, about),
            ]
        )
    heads = ["", "output tokens/s", "of offline", "TTFT, ms", "TPOT, ms", "start to ready, s", "start to first token, s"]
    return markdown(heads, rows)


def _scaled(figure: Figure, factor: float) -> Figure:
    return Figure(tuple(value * factor for value in figure.values), figure.problem)


def sweeps_tables(results: dict[str, Any], notes: Notes) -> list[tuple[str, str]]:
    """Titles and tables of the loads that the plots show."""
    found = []
    for name, title in (("clients", "Clients"), ("rates", "Arrivals a second")):
        heads = [title]
        rows: dict[float, dict[str, list[str]]] = {}
        for key, server in results["servers"].items():
            contender = results["contenders"].get(server["contender"])
            shown = name_of(contender) if contender else key
            for points in (each[name] for each in server["rounds"] if name in each):
                heads += [f"{shown}, output tokens/s", "TTFT, ms", "TPOT, ms"]
                for point in points:
                    row = rows.setdefault(point["clients"] if name == "clients" else point["rate"], {})
                    row[shown] = _point_cells(point, notes, f"{shown}, {title.lower()}")
        names = [head.rpartition(", output")[0] for head in heads[1::3]]
        if rows:
            body = [[f"{value:g}", *(text for each in names for text in row.get(each, [""] * 3))] for value, row in sorted(rows.items())]
            found.append((title, markdown(heads, body)))
    return found


def _point_cells(point: dict[str, Any], notes: Notes, about: str) -> list[str]:
    if "error" in point:
        return [NONE + notes.mark(f"{about}: {said(point['error'])}"), NONE, NONE]
    times = [point[name]["median"] for name in ("ttft_s", "tpot_s")]
    return [f"{point['output_tokens_per_s']:,.0f}", *(NONE if time is None else f"{time * 1e3:,.1f}" for time in times)]


def kernels_table(kernels: dict[str, Any]) -> str:
    """Products of the best instruction set of this machine."""
    products = kernels["results"]["products"]
    isa = products[0]["isa"]
    rows = [
        [
            each["layout"],
            str(each["rows"]),
            f"{each['read_bytes_per_s'] / 1e9:,.1f}",
            f"{each['ops_per_s'] / 1e9:,.0f}",
            f"{each['share_of_isa_limit'] * 100:.0f}%",
        ]
        for each in products
        if each["isa"] == isa
    ]
    return markdown([f"weights ({isa})", "rows", "GB/s", "GOP/s", "of limit"], rows)


def contenders_table(results: dict[str, Any], notes: Notes) -> str:
    """Versions, and how each was run."""
    rows = []
    for contender in results["contenders"].values():
        versions: dict[str, str] = next((found["versions"] for found in contender["rounds"] if "versions" in found), {})
        right = [found["answer_is_right"] for found in contender["rounds"] if "answer_is_right" in found]
        if right and not all(right):
            notes.mark(f"{name_of(contender)}: its answer to the question is not the model's.")
        size, made = contender.get("model_bytes"), contender.get("prepared_s")
        rows.append(
            [
                name_of(contender),
                ", ".join(f"{name} {version}" for name, version in versions.items()) or NONE,
                contender["how"],
                NONE if size is None else f"{size / 1e6:,.0f}",
                "" if made is None else f"{made:,.0f}",
                NONE if not right else "yes" if all(right) else "no",
            ]
        )
    return markdown(["", "versions", "how it runs", "model, MB", "made in, s", "answers right"], rows)
