import dataclasses

import pytest

from benchmarks.seal import CELLS, CONTROL, control, gained


def test_a_control_differs_by_the_energy_alone():
    for cell in CELLS:
        if cell.title == "CE" or cell.title.endswith("weight 0"):
            continue
        own, other = (dataclasses.asdict(one.settings()) for one in (cell, control(cell)))
        different = {name for name in own if own[name] != other[name]}
        assert "energy_weight" in different
        assert different <= {*CONTROL}
        assert control(cell) in CELLS


@pytest.mark.parametrize(("data", "count"), [("cal500", 9), ("bibtex", 3)])
def test_each_set_has_its_losses_and_controls(data, count):
    assert len([cell for cell in CELLS if cell.data == data]) == count


def line(title, seed, value):
    names = ("f1", "f1_tuned", "f1_expected", "micro_f1", "macro_f1", "exact_match")
    metrics = {"test": dict.fromkeys(names, value)}
    return {"dataset": "cal500", "title": title, "seed": seed, "metrics": metrics}


def test_what_the_energy_adds_is_paired_by_seed():
    lines = [line("SEAL-NCE", seed, value) for seed, value in enumerate((0.50, 0.52, 0.54))]
    lines += [line("SEAL-NCE, weight 0", seed, value) for seed, value in enumerate((0.49, 0.50, 0.51))]
    heading, rows = gained(lines)
    (row,) = (dict(zip(heading, row, strict=True)) for row in rows)
    assert row["F1 tuned"] == "+2.00 (0.58)"
    assert row["p, F1 tuned"] == "0.07"  # t = 2 / 0.577 with two degrees of freedom
    assert row["seeds"] == "3"
