import numpy as np
import pytest

from benchmarks import auto


def result(seed, chosen="stack, shallow", f1=(0.5, 0.6)):
    members = [("cross-entropy", f1[0]), ("cross-entropy, shallow", f1[0] / 2), ("stack, shallow", f1[1])]
    metrics = {
        name: {"test": {"f1_expected": value, "exact_match_tuned": value / 10}} for name, value in members
    }
    candidates = [
        {
            "name": name,
            "metrics": metrics[name],
            "seconds": 2.0,
            "method": "m",
            "loss": "none",
            "settings": {},
            "score": 0.1,
            "scores": [0.1],
            "best_epoch": 1,
            "steps": 3,
            "cut": False,
        }
        for name, _ in members
    ]
    about = {"dataset": "wine", "split": "s", "goal": "f1", "seed": seed, "versions": {}, "commit": None}
    choice = {"chosen": chosen, "folds": 5, "candidates": candidates}
    return {**about, "metrics": metrics[chosen], "seconds": 6.0, "choice": choice}


def test_a_run_has_a_row_for_auto_and_for_each_member():
    rows = [*auto.rows_of(result(0))]
    assert [row["title"] for row in rows] == ["auto", "cross-entropy", "cross-entropy", "stack"]
    assert [row.get("network") for row in rows] == [None, "", "shallow", "shallow"]
    assert rows[0]["metrics"] == rows[3]["metrics"] != rows[1]["metrics"]
    assert [row["seconds"] for row in rows] == [6.0, 2.0, 2.0, 2.0]


def test_the_table_has_means_over_seeds():
    lines = [*auto.rows_of(result(0)), *auto.rows_of(result(1, f1=(0.7, 0.8)))]
    heading, rows = auto.summarise(lines)
    table = {row[2]: dict(zip(heading, row, strict=True)) for row in rows}
    assert [*table] == ["auto", "cross-entropy", "cross-entropy, shallow", "stack"]
    assert table["auto"]["F1, expected"] == "70.00 ± 14.14"
    assert table["cross-entropy"]["exact match"] == "6.00 ± 1.41"
    assert table["auto"]["seeds"] == "0, 1"


def test_auto_is_compared_with_the_best_member_seed_by_seed():
    lines = [*auto.rows_of(result(0)), *auto.rows_of(result(1, chosen="cross-entropy", f1=(0.6, 0.9)))]
    heading, (row,) = auto.compare(lines)
    found = dict(zip(heading, row, strict=True))
    assert found["auto"] == "60.00 ± 0.00"
    assert found["best member"] == "stack 75.00 ± 21.21"
    assert found["auto − best"] == "−15.00 (s.e. 15.00)"
    assert found["time"] == "3 ×"


def test_what_each_member_loses_over_the_sets():
    lines = [*auto.rows_of(result(0))]
    for line in [*auto.rows_of(result(0, chosen="cross-entropy", f1=(0.9, 0.7)))]:
        lines.append({**line, "dataset": "cancer"})
    lines += [{**line, "goal": "exact-match"} for line in lines]
    heading, rows = auto.regret(lines)
    table = {row[0]: dict(zip(heading, row, strict=True)) for row in rows}
    assert table["cross-entropy"]["f1: mean"] == "−5.00"
    assert table["cross-entropy"]["f1: worst"] == "−10.00"
    assert table["auto"]["f1: mean"] == "+0.00"
    assert table["stack"]["exact-match: worst"] == "−2.00"


@pytest.mark.parametrize(("name", "shape"), [("cancer", (569, 10, 12)), ("wine", (178, 6, 9))])
def test_sets_are_made_of_tables_of_scikit_learn_and_divided_by_the_seed(name, shape):
    data, other = auto.made(name, seed=0), auto.made(name, seed=1)
    parts = data.train, data.valid, data.test
    assert (sum(map(len, parts)), data.train.inputs, data.train.labels) == shape
    y = np.vstack([_labels(part) for part in parts])
    assert 0.1 < y.mean(0).min() < 0.6
    assert data.split_name != other.split_name
    assert len(other.test) != len(data.test) or (_labels(other.test) != _labels(data.test)).any()
    assert auto.made("emotions") is None


def _labels(part):
    matrix = part.target.matrix
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
