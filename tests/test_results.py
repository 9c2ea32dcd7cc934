"""Every ``mean ± standard deviation`` of a page of results is that of the runs beside it."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGES = sorted(page.stem for page in RESULTS.glob("*.md") if page.with_suffix(".jsonl").exists())


def spreads(runs: list[dict]) -> set[str]:
    """What may be said of these runs, with one digit or two."""
    groups = defaultdict(list)
    for run in runs:
        groups[run["dataset"], run["title"]].append(run["metrics"])
    said = set()
    for group in groups.values():
        for part, metrics in group[0].items():
            for metric in metrics:
                values = [100 * run[part][metric] for run in group]
                if len(values) > 1:
                    mean, deviation = statistics.mean(values), statistics.stdev(values)
                    said |= {f"{mean:.{n}f} ± {deviation:.{n}f}" for n in (1, 2)}
    return said


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_those_of_the_runs(page):
    runs = [json.loads(line) for line in (RESULTS / f"{page}.jsonl").read_text().splitlines()]
    figures = re.findall(r"\d+\.\d+ ± \d+\.\d+", (RESULTS / f"{page}.md").read_text())
    assert figures
    assert [figure for figure in figures if figure not in spreads(runs)] == []


def test_there_are_pages_to_check():
    assert {"implicit", "mlc", "segmentation"} <= set(PAGES)
