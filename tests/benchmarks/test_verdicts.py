import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import seal, verdicts
from benchmarks.grid import Cell

ROOT = Path(__file__).parents[2]


def lines(name):
    """The lines of results that are kept."""
    text = (ROOT / "docs" / "results" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def made(title, values, data="genbase", valid=None):
    """Lines of a row with one F1 for each seed."""
    return [
        {
            "dataset": data,
            "title": title,
            "seed": seed,
            "metrics": {
                part: dict.fromkeys(("f1", "f1_expected"), value)
                for part, value in (("test", value), ("valid", value if valid is None else valid))
            },
        }
        for seed, value in enumerate(values)
    ]


def test_a_verdict_is_that_of_the_paired_test(monkeypatch):
    rng = np.random.default_rng(3)
    seen = set()
    for shift in (-0.02, 0.0, 0.02):
        other, noise = rng.normal(0.5, 0.05, 6), rng.normal(0, 0.005, 6)
        own = other + noise - noise.mean() + shift + 0.001
        content = [*made("SEAL-NCE", own), *made("CE", other)[::-1]]
        monkeypatch.setattr(verdicts, "CLAIMS", (verdicts.Claim("seal", "genbase", "SEAL-NCE", "CE"),))
        heading, ((*row,),) = verdicts.claims(lambda name, content=content: content)
        p = stats.ttest_rel(own, other).pvalue
        row = dict(zip(heading[:7], row, strict=False))
        assert row["p"] == f"{p:.2f}"
        assert (row["verdict"] == "level") == (p >= 0.05)
        assert row["verdict"] == "level" or ("ahead" in row["verdict"]) == (shift > 0)
        mean = 100 * np.mean(own - other)
        assert row["difference"].split(" ± ")[0] == f"{mean:+.2f}".replace("-", "−")
        seen.add(row["verdict"])
    assert len(seen) == 3


def test_differences_are_of_the_seeds_that_both_have(monkeypatch):
    monkeypatch.setattr(verdicts, "CLAIMS", (verdicts.Claim("seal", "genbase", "a", "b", ("f1",)),))
    content = [*made("a", [0.5, 0.6, 0.9])[1:], *made("b", [0.1, 0.5, 0.7])]
    _, (row,) = verdicts.claims(lambda name: content)
    assert row[4].startswith("+15.00 ± ")
    assert row[-1] == "1, 2"
    assert verdicts.claims(lambda name: made("a", [0.5]) + made("b", [0.5]))[1] == []


def test_the_best_row_is_chosen_on_validation_data(monkeypatch):
    cells = tuple(Cell(title, "genbase", "seal") for title in ("lucky", "good", "alone"))
    task = verdicts.Best("genbase", 60.0, "theirs", ("f1",), (("seal", cells),))
    monkeypatch.setattr(verdicts, "BEST", (task,))
    content = [
        *made("lucky", [0.9, 0.9, 0.9], valid=0.5),
        *made("good", [0.7, 0.71, 0.72], valid=0.6),
        *made("alone", [0.99], valid=0.99),
    ]
    _, (row,) = verdicts.best(lambda name: content)
    assert row[4] == "good"
    assert row[5] == "71.00 ± 2.48"  # 4.303 of Student's, times 1 / √3
    assert row[-1] == verdicts.AHEAD


def test_runs_that_cannot_be_told_apart_are_an_error():
    twice = made("CE", [0.5]) * 2
    with pytest.raises(ValueError, match="several runs of 'CE' on genbase have seed 0"):
        verdicts.rows(lambda name: twice if name == "seal" else [])


def test_rows_and_their_tally_agree():
    heading, every = verdicts.rows(lines)
    _, counted = verdicts.tally(lines)
    assert int(counted[-1][1]) == len(every) > 100
    for row in every:
        ours, published = (row[heading.index(name)] for name in ("ours", "published"))
        mean, _, half = ours.partition(" ± ")
        gap = float(mean) - float(published)
        if half and abs(abs(gap) - float(half)) > 0.02:  # of rounding
            level = abs(gap) < float(half)
            assert row[-1] == ("level" if level else verdicts.AHEAD if gap > 0 else verdicts.BEHIND), row


def test_a_cell_is_counted_with_three_seeds():
    heading, before = verdicts.covered(lines)
    assert verdicts.CELLS == 96
    assert sum(cell != "" for row in before[:-1] for cell in row[1:]) == 96
    content = {name: lines(name) for name in ("seal", "mlc", "implicit")}
    content["seal"] += made("DVN", [0.5] * 3, "bibtex") + made("SPEN", [0.5] * 2, "bibtex")
    _, after = verdicts.covered(content.__getitem__)
    counts = [int(table[-1][1].split()[0]) for table in (before, after)]
    assert counts[1] == counts[0] + 1
    assert {row[0]: row[1] for row in after}["SPEN"] == "2"
    assert heading[1] == "bibtex"


def test_all_rows_of_the_papers_table_can_be_run():
    cells = [*seal.CELLS, *seal.REST]
    own = {(cell.data, cell.title) for cell in cells if not cell.title.endswith("weight 0")}
    assert own == {(data, title) for data in seal.SETS for title in seal.ROWS}
    assert all(cell.settings().patience == 10 for cell in cells)
    published = {(cell.data, cell.title): cell.published for cell in cells}
    assert published["spo_fun", "DVN"] == "29.35"
    assert published["delicious", "SEAL-NCE"] == "34.67"
