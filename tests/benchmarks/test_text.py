import dataclasses

import numpy as np
import pytest
import torch

from benchmarks import text
from lossnet.scores import metrics
from lossnet.spaces import MultiLabel

SMALL = {"task_hidden": 8, "energy_hidden": 8, "global_hidden": 4, "samples": 3, "epochs": 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Features of a small set, and trials of a second each."""
    rng = np.random.default_rng(0)
    y = (rng.random((90, 4)) < 0.4).astype(np.uint8)
    x = (y @ rng.normal(size=(4, 6)) + 0.3 * rng.normal(size=(90, 6))).astype(np.float16)
    part = np.array(["train"] * 50 + ["valid"] * 20 + ["test"] * 20)
    (tmp_path / "features").mkdir()
    np.savez_compressed(tmp_path / "features" / "few.npz", x=x, y=y, labels=np.array([*"abcd"]), part=part)
    monkeypatch.setattr(text, "SETS", {"few": {}})
    monkeypatch.setattr(text, "find", lambda name, data_dir: None)
    monkeypatch.setattr(text, "TRAINING", SMALL)
    return tmp_path


ROWS = [row for row in text.ROWS if row not in (text.AUTO, text.WORDS)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_every_row_is_measured_in_three_ways(folder, row):
    (line,) = text.work("few", row.title, len(row.trials) - 1, 1, folder)
    assert text.case(line) == ("few", row.title, len(row.trials) - 1, 1)
    assert {name for name, _ in text.COLUMNS} <= set(line["metrics"]["test"])
    assert 0 < line["metrics"]["valid"][text.CHOICE] <= 1
    assert line["settings"] == row.trials[-1]


def test_words_are_read_beside_features(folder, monkeypatch):
    with np.load(folder / "features" / "few.npz") as file:
        x, y, part = (file[name] for name in ("x", "y", "part"))
    texts = [f"a text of {row % 7}" for row in range(len(y))]
    order = [*range(50, 90), *range(50)]  # of the parts; within a part it is the features' own

    def read(name, data_dir):
        return [texts[row] for row in order], y[order], (*"abcd",), part[order]

    monkeypatch.setattr(text, "read_texts", read)
    matrix = text.with_words("few", folder).train.source.matrix.toarray()
    np.testing.assert_allclose(matrix[:, -6:], x[:50].astype(np.float32) * 6**0.5, rtol=1e-3)
    terms = text.TfIdf.fit(texts[:50])
    np.testing.assert_allclose(matrix[:, :-6], terms.features(texts[:50]).toarray(), rtol=1e-6)
    y[:] = y[::-1].copy()
    with pytest.raises(ValueError, match="is of other texts; remove it"):
        text.with_words("few", folder)


@pytest.mark.filterwarnings("ignore")  # the package's own
def test_setfit_is_trained_where_it_is_installed(monkeypatch, tmp_path):
    pytest.importorskip("setfit")
    words = ["a good film", "a bad book", "good music", "a film with music"] * 5
    y = np.array([["film" in one, "book" in one, "music" in one] for one in words], dtype=np.uint8)
    parts = np.array(["train"] * 12 + ["valid"] * 4 + ["test"] * 4)
    monkeypatch.setattr(text, "read_texts", lambda name, data_dir: (words, y, (*"abc",), parts))
    monkeypatch.setattr(text, "SETFIT_STEPS", 2)
    (line,) = text.work("few", text.SETFIT, 1, 0, tmp_path)
    assert line["settings"] == {"body_learning_rate": 2e-5, "steps": 2, "pairs": 16}
    assert line["metrics"]["test"]["f1_expected"] > 0.6


def test_figures_are_those_of_the_library():
    torch.manual_seed(0)
    relaxed, truth = torch.rand(30, 3), (torch.rand(30, 3) < 0.5).float()
    found, own = text.measured(relaxed, truth, 0.3), metrics(MultiLabel(3), relaxed, truth)
    assert {name: found[name] for name in ("f1", "micro_f1", "macro_f1")} == {
        name: own[name] for name in ("f1", "micro_f1", "macro_f1")
    }
    assert found["f1_tuned"] == text.measured(relaxed + 0.2, truth, 0.5)["f1"]


def test_a_row_has_four_trials_as_every_other():
    assert {len(row.trials) for row in text.ROWS if row is not text.AUTO} == {4}
    assert len(text.STRENGTHS) >= 4
    soft = next(row for row in text.ROWS if row.share)
    assert soft.settings(1, labels=10).score_weight == pytest.approx(3.0)
    control = text.CONTROL.settings(0, labels=10)
    assert control.energy_weight == 0
    for row in (text.NCE, text.MARGIN, text.IMPLICIT):
        own = dataclasses.replace(row.settings(0, 10), energy_weight=0.0, task_lr=control.task_lr)
        assert own == control


def lines():
    """Trial 1 is the best one of SEAL-NCE on validation data, and the worst on test data."""
    for title, trial, seed, valid, test in (
        ("CE", 0, 0, 0.5, 0.6),
        ("CE", 0, 1, 0.5, 0.4),
        ("SEAL-NCE", 0, 0, 0.5, 0.9),
        ("SEAL-NCE", 1, 0, 0.6, 0.7),
        ("SEAL-NCE", 1, 1, 0.4, 0.6),
        (text.TFIDF, 2, 0, 0.5, 0.55),
    ):
        metrics = {"valid": {"f1_expected": valid}, "test": {name: test for name, _ in text.COLUMNS}}
        known = {"dataset": "goemotions", "title": title, "trial": trial, "seed": seed, "seconds": 1.0}
        yield {**known, "metrics": metrics}


def test_validation_data_choose_and_seeds_are_paired():
    known = [*lines()]
    assert text.chosen(known) == {
        ("goemotions", "CE"): 0,
        ("goemotions", "SEAL-NCE"): 1,
        ("goemotions", text.TFIDF): 2,
    }
    assert text.repetitions(known, seeds=3) == [("goemotions", "SEAL-NCE", 1, 2), ("goemotions", "CE", 0, 2)]
    _, rows = text.compare(known)
    assert [row[1:3] for row in rows] == [["SEAL-NCE", "+15.00 (5.00)"]]
    _, rows = text.compare(known, text.TFIDF)
    assert [row[1:3] for row in rows] == [["CE", "−5.00 (10.00)"], ["SEAL-NCE", "+10.00 (5.00)"]]


def test_what_is_there_is_not_run_again(folder):
    first = text.trials([])
    assert {title for _, title, _, _ in first} == {row.title for row in text.ROWS if not row.words}
    assert first[0][1] == "auto"
    done = [
        {"dataset": data, "title": title, "trial": trial, "seed": seed} for data, title, trial, seed in first
    ]
    assert text.trials(done[1:]) == first[:1]
