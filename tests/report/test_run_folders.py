import json
import math

import pytest

from lossnet.report.runs import compare, read_run

RESULT = {
    "dataset": "digits",
    "split": "fixed",
    "method": "seal",
    "loss": "nce",
    "seed": 0,
    "settings": {"samples": 20},
    "metrics": {"valid": {"f1": 0.4}, "test": {"f1": 0.5}},
    "seconds": 3.5,
}


@pytest.fixture
def make(tmp_path):
    def make(name="run", **changes):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps({**RESULT, **changes}))
        return folder

    return make


def runs(make, *changes):
    return [read_run(make(f"run{number}", **each)) for number, each in enumerate(changes)]


# ---------------------------------------------------------------- refusals


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file: a file; give a folder"):
        read_run(tmp_path / "file")
    with pytest.raises(ValueError, match=r"not a run's folder \(result.json is missing\)"):
        read_run(tmp_path)
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(ValueError, match="not finished; continue it with 'lossnet train … --resume'"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{half", "[]", "3", "{}", "null", '"text"', json.dumps({**RESULT, "metrics": {}})]
    + [json.dumps({**RESULT, "metrics": {"test": {"f1": float("nan")}}})]
    + [json.dumps({**RESULT, key: value}) for key in RESULT for value in (None, [1], "word", {"a": {}})
       if (key, value) not in [("settings", None), ("settings", {"a": {}})] and key not in
       ("dataset", "split", "method", "loss")],
)  # fmt: skip
def test_a_damaged_result_is_one_clear_error(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ValueError, match="not a run's result"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": math.inf},
        {"stages": [3]},
        {"stages": [{"stage": "net", "best_epoch": 1, "epochs": 2}]},
        {"stages": [{"stage": "net", "best_epoch": math.inf, "epochs": 2, "ended": "so"}]},
        {"remarks": 3},
        {"columns": {"used": ["a"]}},
        {"columns": {"used": ["a"], "dropped": ["b"]}},
        {"choice": [1]},
        {"choice": {"goal": "f1", "metric": "f1", "chosen": "a", "candidates": [{"score": 1}]}},
        {"choice": {"goal": "f1", "metric": "f1", "chosen": "a", "candidates": [{"name": 1, "score": "b"}]}},
    ],
    ids=str,
)
def test_a_damaged_account_of_training_is_one_clear_error(make, changes):
    with pytest.raises(ValueError, match="not a run's result"):
        read_run(make(**changes))


def test_what_is_not_finite_has_no_figure(make):
    candidate = {"name": "a", "score": math.inf, "error": None}
    choice = {"goal": "f1", "metric": "f1", "chosen": "a", "candidates": [candidate]}
    (read,) = read_run(make(choice=choice)).result["choice"]["candidates"]
    assert all(math.isnan(read[name]) for name in ("score", "error", "seconds"))


def test_older_results_say_less(make):
    result = read_run(make()).result
    assert (result["stages"], result["remarks"], result["columns"], result["choice"]) == ([], [], None, None)


@pytest.mark.parametrize("line", ["{half", "3", "{}", '{"valid": {"f1": "high"}}', '{"valid": 3}'])
def test_a_damaged_history_is_one_clear_error(make, line):
    folder = make()
    (folder / "history.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match="not a run's history"):
        read_run(folder)


def test_runs_on_different_data_are_refused(make):
    with pytest.raises(ValueError, match=r"different data sets .*run0 is about digits, .*run1 about bibtex"):
        compare(runs(make, {}, {"dataset": "bibtex"}))


def test_runs_on_different_splits_are_refused(make):
    with pytest.raises(ValueError, match="different splits"):
        compare(runs(make, {}, {"split": "other.json", "seed": 1}))


def test_the_same_run_twice_is_refused(make):
    """Else its seed would count twice, and the interval would be too narrow."""
    with pytest.raises(ValueError, match=r"run0 and .*run1 are the same run \(seed 0\)"):
        compare(runs(make, {}, {}))


def test_figures_of_different_parts_are_refused(make):
    with pytest.raises(ValueError, match="same part of the data"):
        compare(runs(make, {}, {"seed": 1, "metrics": {"valid": {"f1": 0.4}}}))


# ---------------------------------------------------------------- groups


def test_seeds_are_grouped_in_order(make):
    found = compare(runs(make, {"seed": 2}, {"method": "dvn"}, {"seed": 0}))
    assert [(group.title, [run.seed for run in group.runs]) for group in found.groups] == [
        ("seal (nce)", [0, 2]),
        ("dvn (nce)", [0]),
    ]
    assert found.subject.values("f1") == [0.5, 0.5]
    assert found.subject.values("iou") == []


def test_titles_tell_settings_apart(make):
    other = {"settings": {"samples": 5}, "seed": 0}
    found = compare(runs(make, {}, other, {"method": "cross-entropy", "loss": "none"}))
    assert [group.title for group in found.groups] == [
        "seal (nce), samples 20",
        "seal (nce), samples 5",
        "cross-entropy",
    ]


PLAIN = {"method": "cross-entropy", "loss": "none"}
SOFT = {"method": "cross-entropy", "loss": "soft-f1"}


@pytest.mark.parametrize(
    ("changes", "subject", "baseline"),
    [
        ([{}], "seal (nce)", None),
        ([PLAIN], "cross-entropy", None),
        ([{}, PLAIN], "seal (nce)", "cross-entropy"),
        ([PLAIN, {}], "seal (nce)", "cross-entropy"),
        ([PLAIN, SOFT], "cross-entropy", "cross-entropy (soft-f1)"),
        ([{"method": "dvn"}, {}], "dvn (nce)", "seal (nce)"),
        ([{"method": "dvn"}, {}, PLAIN], "dvn (nce)", "cross-entropy"),
    ],
    ids=str,
)
def test_cross_entropy_is_the_baseline_where_it_can_be(make, changes, subject, baseline):
    found = compare(runs(make, *changes))
    assert found.subject.title == subject
    assert (found.baseline and found.baseline.title) == baseline
