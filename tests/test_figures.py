"""How figures on pages are written and checked; test_results.py has the pages."""

import json
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import figures  # noqa: E402

MARKED = "44.9 ± 0.2<!-- mlc / bibtex / CE, tuned / f1_tuned -->"


def test_figures_without_a_source_are_found():
    assert figures.problems(f"it has {MARKED} at 0.5, with Python 3.11 and `--lr 2.5`") == []
    for wrong in (
        "44.9 ± 0.2",
        "it is 44.9.",
        "by +0.3",
        f"{MARKED}, and 46.0 ± 0.3 there",
        "3 points",
        "0.83",
    ):
        assert len(figures.problems(wrong)) == 1, wrong


def test_all_numbers_of_results_are_figures():
    text = "80 ms with F1, an H200 and CoNLL-2003, in 1,200 of 2.5 and 4e-15 at 0.5: `k = 5`, [6](7), $8$"
    assert figures.unsourced(text, every=True) == ["80", "1,200", "2.5", "4e-15", "6"]
    assert figures.unsourced(f"# 1\n{MARKED} 5", every=True) == ["5"]


def test_stated_figures_are_those_of_their_part():
    assert figures.problems("It took 0.61 s, then 7.1. <!-- stated: 0.61 7.1; one GPU -->") == []
    for wrong in (
        "It took 0.61 s, then 7.1. <!-- stated: 7.1 0.61; one GPU -->",
        "It took 0.61 s, then 7.1. <!-- stated: 0.61; one GPU -->",
        "It took 0.61 s, then 7.1. <!-- stated: 0.61 7.1 -->",
        "It took 0.61 s, then 7.1.\n\nAnd more. <!-- stated: 0.61 7.1; one GPU -->",
    ):
        assert figures.problems(wrong) != [], wrong


def test_a_table_is_written_as_a_whole():
    page = figures.filled(
        "a\n\n<!-- made: tagging / speed -->\n?\n\n<!-- end -->\n\nb 1.5<!-- stated: 1.5; x -->"
    )
    assert "| BiLSTM | 168 | 1.00 |" in page
    assert figures.problems(page, every=True) == []
    assert len(figures.problems(page.replace("| 168 |", "| 165 |"), every=True)) == 1
    assert len(figures.problems(page.replace("| 168 | 1.00 |", "| 1.00 | 168 |"))) == 1
    with pytest.raises(ValueError, match="no block is called 'x'"):
        figures.filled("<!-- made: x -->\n?\n\n<!-- end -->")


def test_code_has_no_figures():
    page = "a\n\n```python\nx = 1.5\n\ny = 2.5\n```\n\n    Exact [0.25]\n\n    Neumann [1.50]\n\nb"
    assert figures.parts(page) == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "form", "shown"),
    [
        ("mlc / bibtex / CE, tuned / f1", "?", "42.2 ± 0.3"),
        ("mlc / bibtex / CE, tuned / f1", "0.00", "42.17"),
        ("mlc / bibtex / CE, tuned / f1 / seed=0", "0", "42"),
        ("mlc / bibtex / CE + soft-F1 - CE, tuned / f1", "0.0", "3.5"),
        ("mlc / bibtex / CE + soft-F1 - CE, tuned / f1", "−1.00", "+3.46"),
        ("mlc / bibtex / CE, tuned - CE + soft-F1 / f1", "1.0", "−3.5"),
        ("mlc / bibtex / CE, tuned - CE, tuned / f1", "+1.0", "0.0"),
        ("overhead.json / ratio", "0.00", "0.98"),
        ("segmentation_averaged.json / metrics.test.iou", "0.0", "89.6"),
    ],
)
def test_a_figure_has_the_form_of_the_one_before(source, form, shown):
    assert figures.figure(source, form) == shown
    assert figures.figure(source, shown) == shown


def test_figures_may_be_of_validation_data_and_seconds():
    lines = (ROOT / "docs" / "results" / "mlc.jsonl").read_text().splitlines()
    runs = [
        run for run in map(json.loads, lines) if run["title"] == "CE, tuned" and run["dataset"] == "bibtex"
    ]
    valid = statistics.mean(100 * run["metrics"]["valid"]["f1"] for run in runs)
    assert figures.figure("mlc / bibtex / CE, tuned / valid.f1", "0.00") == f"{valid:.2f}"
    seconds = statistics.mean(run["seconds"] for run in runs)
    assert figures.figure("mlc / bibtex / CE, tuned / seconds", "0.0") == f"{seconds:.1f}"


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
