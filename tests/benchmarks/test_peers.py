import dataclasses

import numpy as np
import pytest
import torch

from benchmarks import peers
from benchmarks.text import case, chosen
from lossnet.data import MultiLabelData
from lossnet.loading import load
from lossnet.scores import metrics
from lossnet.spaces import MultiLabel

TINY = {"task_hidden": 16, "epochs": 8, "task_lr": 1e-2}


def rows(count, seed=0):
    """Features and three labels that follow from them, a fourth that nobody has and a fifth that all have."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    y = (x[:, :3] + 0.3 * rng.normal(size=(count, 3)) > 0).astype(np.uint8)
    return x, np.column_stack([y, np.zeros(count, np.uint8), np.ones(count, np.uint8)])


@pytest.fixture
def few(monkeypatch):
    """A small set in the place of all, and networks of seconds."""
    data = load("few", data=MultiLabelData.from_arrays(*rows(150)), seed=0)
    monkeypatch.setattr(peers, "load", lambda name, **given: data)
    small = tuple(
        row if row.peer else dataclasses.replace(row, trials=tuple({**one, **TINY} for one in row.trials))
        for row in peers.ROWS
    )
    monkeypatch.setattr(peers, "ROWS", small)
    return data


def test_neighbours_are_counted_as_the_paper_says():
    (x, y), (others, _), k = rows(25), rows(6, seed=1), 3
    y = y[:, :4].astype(np.int64)

    def nearest(to, among):
        return sorted(among, key=lambda row: np.sum((x[row] - to) ** 2))[:k]

    found, n = peers.Neighbours(x, y, k)(others), len(y)
    for label in range(y.shape[1]):
        prior = (1 + y[:, label].sum()) / (2 + n)
        with_it, without = np.zeros(k + 1), np.zeros(k + 1)
        for row in range(n):
            count = y[nearest(x[row], [one for one in range(n) if one != row]), label].sum()
            (with_it if y[row, label] else without)[count] += 1
        for row, one in enumerate(others):
            count = y[nearest(one, range(n)), label].sum()
            yes = prior * (1 + with_it[count]) / (k + 1 + with_it.sum())
            no = (1 - prior) * (1 + without[count]) / (k + 1 + without.sum())
            assert found[row, label] == pytest.approx(yes / (yes + no))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", [row.title for row in peers.ROWS])
def test_every_row_learns_and_has_all_figures(few, title):
    (line,) = peers.work("few", title, 2, 1, None)
    assert case(line) == ("few", title, 2, 1)
    test = line["metrics"]["test"]
    assert {name for name, _ in peers.COLUMNS} <= set(test)
    # The label that all have alone makes 0.57; 0.75 is that of all labels.
    assert test["f1_tuned"] > 0.78


def test_all_rows_have_the_same_budget():
    assert {len(row.trials) for row in peers.ROWS} == {4}
    assert all(len({str(one) for one in row.trials}) == 4 for row in peers.ROWS)


def test_figures_are_those_of_the_library_and_of_validation_data():
    torch.manual_seed(0)
    truth = (torch.rand(60, 3) < 0.4).float()
    relaxed = (0.25 + 0.3 * truth + 0.3 * torch.rand(60, 3)).clamp(0, 1)
    parts = {"valid": (relaxed[:30], truth[:30]), "test": (relaxed[30:], truth[30:])}
    found = peers.measured(*({part: pair[which] for part, pair in parts.items()} for which in (0, 1)))
    own = metrics(MultiLabel(3), *parts["test"])
    assert {name: found["test"][name] for name in ("f1", "exact_match")} == {
        name: own[name] for name in ("f1", "exact_match")
    }
    other = {"valid": parts["valid"], "test": (relaxed[30:] * 0, truth[30:])}
    changed = peers.measured(*({part: pair[which] for part, pair in other.items()} for which in (0, 1)))
    assert changed["valid"] == found["valid"]
    assert changed["test"]["threshold"] == found["test"]["threshold"]


@pytest.mark.filterwarnings("ignore")
def test_the_chosen_trial_is_repeated_where_seeds_matter(few, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "find", lambda name, data_dir: name == "emotions")
    asked = []

    def pretend(name, title, trial, seed, data_dir):
        asked.append((title, trial, seed))
        figures = dict.fromkeys([name for name, _ in peers.COLUMNS], 0.1 * (trial == 2) + 0.5)
        known = {"dataset": name, "title": title, "trial": trial, "seed": seed, "seconds": 1.0}
        return [{**known, "metrics": {"valid": figures, "test": figures}}]

    monkeypatch.setattr(
        peers, "carried_out", lambda tasks, *given: [line for task in tasks for line in task()]
    )
    monkeypatch.setattr(peers, "work", pretend)
    titles = ("MLkNN", "random forest")
    peers.run(tmp_path, 3, None, 1, titles)
    assert [one for one in asked if one[2] == 0] == [(t, trial, 0) for t in titles for trial in range(4)]
    assert [one for one in asked if one[2]] == [("random forest", 2, 1), ("random forest", 2, 2)]
    assert "| emotions | random forest | 60.00 ± 0.00 |" in (tmp_path / "table.md").read_text()
    assert "genbase" in capsys.readouterr().err


def test_trials_are_chosen_by_the_tuned_threshold():
    def line(trial, tuned, expected):
        valid = {"f1_tuned": tuned, "f1_expected": expected}
        return {"dataset": "d", "title": "t", "trial": trial, "seed": 0, "metrics": {"valid": valid}}

    lines = [line(0, 0.5, 0.9), line(1, 0.6, 0.8)]
    assert chosen(lines, peers.CHOICE) == {("d", "t"): 1}
    assert chosen(lines) == {("d", "t"): 0}


def test_the_best_are_chosen_on_validation_data_and_compared_on_test_data():
    def line(title, seed, valid, test):
        parts = (("valid", valid), ("test", test))
        figures = {part: dict.fromkeys([name for name, _ in peers.COLUMNS], value) for part, value in parts}
        return {"dataset": "cal500", "title": title, "trial": 0, "seed": seed, "metrics": figures}

    lines = [line("MLkNN", 0, 0.6, 0.5), line("random forest", 0, 0.5, 0.9)]
    lines += [line("MLP, cross-entropy", seed, 0.4, 0.52 + 0.01 * seed) for seed in range(3)]
    _, ((data, _, peer, network, gap, says), *_) = peers.compare(lines)
    assert (data, peer, network) == ("cal500", "MLkNN 50.00", "MLP, cross-entropy 53.00")
    assert gap == "+3.00 ± 2.48"
    assert "ahead" in says
    lines += [line("MLkNN", seed, 0.6, 0.5 - 0.1 * seed) for seed in (1, 2)]
    assert peers.compare(lines)[1][0][-1] == "level"
