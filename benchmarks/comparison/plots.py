"""What the plots show, as plain values that draw.py draws: a list of plots, each with panels, each with series."""

from __future__ import annotations

from typing import Any

from comparison.tables import name_of


def plots_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Those for which there are points."""
    plots = [
        _plot("clients.svg", "Throughput against number of clients", [_clients_panel(results)]),
        _plot(
            "rates.svg",
            "Latency against rate of arrivals",
            [_rate_panel(results, "ttft_s", "TTFT"), _rate_panel(results, "tpot_s", "TPOT")],
        ),
        _plot("kernels.svg", "Kernels against the machine's limit", _kernel_panels(results.get("kernels", {}))),
    ]
    return [plot for plot in plots if any(panel["series"] for panel in plot["panels"])]


def _plot(file: str, title: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {"file": file, "title": title, "panels": panels}


def _panel(title: str, x: str, y: str, series: list[dict[str, Any]], *, log_y: bool = False) -> dict[str, Any]:
    return {"title": title, "x": x, "y": y, "log_x": True, "log_y": log_y, "series": [each for each in series if each["points"]]}


def _sweeps(results: dict[str, Any], name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Of each server, the loads that went well."""
    found = []
    for key, server in results["servers"].items():
        contender = results["contenders"].get(server["contender"])
        points = [point for each in server["rounds"] for point in each.get(name, []) if "error" not in point]
        found.append((name_of(contender) if contender else key, points))
    return found


def _clients_panel(results: dict[str, Any]) -> dict[str, Any]:
    series = [
        {"name": name, "points": [[point["clients"], point["output_tokens_per_s"]] for point in points]}
        for name, points in _sweeps(results, "clients")
    ]
    return _panel("", "clients", "output tokens/s", series)


def _rate_panel(results: dict[str, Any], measure: str, title: str) -> dict[str, Any]:
    series = []
    for name, points in _sweeps(results, "rates"):
        for share, dashed in (("median", False), ("p90", True)):
            values = [[point["rate"], point[measure][share] * 1e3] for point in points if point[measure][share] is not None]
            series.append({"name": f"{name}, {share}", "points": values, "dashed": dashed})
    return _panel(title, "requests a second", "ms", series, log_y=True)


def _kernel_panels(kernels: dict[str, Any]) -> list[dict[str, Any]]:
    products = kernels.get("results", {}).get("products", [])
    panels = []
    for isa in dict.fromkeys(each["isa"] for each in products):
        layouts = dict.fromkeys(each["layout"] for each in products)
        series = [
            {
                "name": layout,
                "points": [
                    [each["rows"], each["share_of_isa_limit"] * 100] for each in products if each["isa"] == isa and each["layout"] == layout
                ],
            }
            for layout in layouts
        ]
        panels.append(_panel(isa, "rows", "% of the limit", series))
    return panels
