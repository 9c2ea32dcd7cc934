"""Every ``mean ± standard deviation`` of a page of results is that of the runs beside it."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks import auto, small
from benchmarks.grid import markdown

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGES = sorted(page.stem for page in RESULTS.glob("*.md") if page.with_suffix(".jsonl").exists())


def spreads(runs: list[dict]) -> set[str]:
    """What may be said of these runs, with one digit or two."""
    groups = defaultdict(list)
    for run in runs:
        shallow = run["title"] == "cross-entropy" and run.get("network")  # auto trains two of it
        groups[run["dataset"], run["title"], run.get("goal"), shallow].append(run["metrics"])
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


def test_the_page_on_small_data_has_the_benchmarks_tables():
    page, runs = (RESULTS / "small.md").read_text(), (RESULTS / "small.jsonl").read_text()
    results = [json.loads(line) for line in runs.splitlines()]
    assert small.tables(results) in page
    assert small.verdict(results) in page


def test_the_page_on_auto_has_the_benchmarks_tables():
    page, runs = (RESULTS / "auto.md").read_text(), (RESULTS / "auto.jsonl").read_text()
    results = [json.loads(line) for line in runs.splitlines()]
    for table in (auto.compare(results), auto.summarise(results)):
        assert markdown(*table) in page


def test_there_are_pages_to_check():
    assert {"auto", "implicit", "mlc", "segmentation"} <= set(PAGES)
