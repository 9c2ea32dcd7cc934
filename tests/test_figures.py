"""Figures on pages are those of the results that they name."""

import json
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import figures  # noqa: E402

#: pages on which every figure names its source
SOURCED = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("index.md", "faq.md", "methods/choose.md")),
]


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_figures_are_current(page):
    text = page.read_text(encoding="utf-8")
    assert figures.filled(text, page.name) == text, "results have changed: python docs/tools/figures.py"


def unsourced(text):
    """What looks like a measured figure and names no source: a spread, or a number with one decimal."""
    text = re.sub(r"```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", figures.MARKED.sub("", text))
    return re.findall(r"\d+(?:\.\d+)?\s±\s\d+(?:\.\d+)?|[+−]\d+\.\d\b|(?<![\w.-])[1-9]\d*\.\d\b", text)


@pytest.mark.parametrize("page", SOURCED, ids=lambda page: page.name)
def test_all_figures_name_their_source(page):
    assert unsourced(page.read_text(encoding="utf-8")) == []


def test_figures_without_a_source_are_found():
    marked = "44.9 ± 0.2<!-- mlc / bibtex / CE, tuned / f1_tuned -->"
    assert unsourced(f"it has {marked} at 0.5, with Python 3.11 and `--lr 2.5`") == []
    for wrong in ("44.9 ± 0.2", "it is 44.9", "by +0.3", f"{marked}, and 46.0 ± 0.3 there"):
        assert len(unsourced(wrong)) == 1, wrong


def test_mean_and_deviation_are_those_of_the_runs():
    lines = (ROOT / "docs" / "results" / "mlc.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["dataset"] == "bibtex"]
    values = {
        title: {run["seed"]: 100 * run["metrics"]["test"]["f1"] for run in runs if run["title"] == title}
        for title in ("CE, tuned", "CE + soft-F1")
    }
    ce, soft = values["CE, tuned"], values["CE + soft-F1"]
    mean, deviation = statistics.mean(soft.values()), statistics.stdev(soft.values())
    assert figures.figure("mlc / bibtex / CE + soft-F1 / f1") == f"{mean:.1f} ± {deviation:.1f}"
    gains = [soft[seed] - ce[seed] for seed in ce]
    gain = f"+{statistics.mean(gains):.1f} ± {statistics.stdev(gains):.1f}"
    assert figures.figure("mlc / bibtex / CE + soft-F1 - CE, tuned / f1") == gain
    loss = figures.figure("mlc / bibtex / CE, tuned - CE + soft-F1 / f1")
    assert loss == gain.replace("+", "−")


def test_a_stale_figure_is_replaced():
    source = "<!-- mlc / bibtex / CE, tuned / f1_tuned -->"
    assert figures.filled(f"a 1.0 ± 1.0{source} b") == figures.filled(f"a ?{source} b")
    assert "1.0 ± 1.0" not in figures.filled(f"a 1.0 ± 1.0{source} b")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("mlc / bibtex / CE / f1", "no run of 'CE' on bibtex"),
        ("mlc / bibtex / CE, tuned / f2", "f2"),
        ("nothing / bibtex / CE, tuned / f1", "nothing.jsonl"),
        ("mlc / bibtex / CE, tuned / f1 / seed=0", "two seeds"),
        ("mlc / bibtex / CE, tuned", "CE, tuned"),
    ],
)
def test_what_is_not_in_the_results_is_an_error(source, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        figures.filled(f"?<!-- {source} -->", "page")


def test_runs_that_cannot_be_told_apart_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    run = {"dataset": "d", "title": "t", "metrics": {"test": {"f1": 0.5}}}
    lines = [json.dumps({**run, "seed": seed, "goal": goal}) for seed in (0, 1) for goal in ("f1", "hamming")]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="several runs"):
        figures.figure("two / d / t / f1")
    assert figures.figure("two / d / t / f1 / goal=f1") == "50.0 ± 0.0"
