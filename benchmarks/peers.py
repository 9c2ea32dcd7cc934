"""What a user would pick instead, with equal budgets on the same splits: trees, chains, neighbours, networks.

Each row has four trials with seed 0, of which validation data choose by F1 at a tuned threshold; the chosen
one is repeated with the other seeds where seeds matter.  All are measured alike: raw probabilities at 0.5 and
at thresholds tuned on validation data, calibrated ones (on validation data, too) for expected F1.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from scipy import sparse
from torch import Tensor

from benchmarks.grid import Cell, carried_out, finished, markdown, show, summarise
from benchmarks.text import Case, case, chosen, kept
from benchmarks.verdicts import shown_estimate, verdict
from lossnet.analysis import difference, estimate
from lossnet.data import find
from lossnet.decoding import ExpectedF1, Threshold, calibrate, tune_threshold
from lossnet.loading import Loaded, load
from lossnet.run import Run, carry_out, versions
from lossnet.scores import LabelMeter
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel

__all__ = [
    "CELLS",
    "COLUMNS",
    "ROWS",
    "SETS",
    "Neighbours",
    "Row",
    "best",
    "compare",
    "measured",
    "run",
    "trials",
    "work",
]

SETS = ("emotions", "genbase", "cal500", "expr_fun", "spo_fun", "bibtex")
#: by which trials are compared, on validation data
CHOICE = "f1_tuned"
COLUMNS = (
    ("f1", "F1 at 0.5"),
    ("f1_tuned", "F1 tuned"),
    ("f1_expected", "F1 expected"),
    ("exact_match", "exact match at 0.5"),
    ("exact_match_tuned", "exact match, tuned for it"),
)
#: trees of a forest that are in memory at a time: with hundreds of labels their leaves are large
_TREES = 10

Matrix = Any  # dense, or sparse by rows
#: from features and label sets ``(n, labels)`` in {0, 1}, a trial's settings and a seed to label chances
Peer = Callable[..., Callable[[Matrix], NDArray[np.float64]]]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: a peer, or the loss of a network of ours, and the settings of its trials."""

    title: str
    trials: tuple[Mapping[str, Any], ...]
    peer: Peer | None = None
    loss: str = ""
    random: bool = True


# ---------------------------------------------------------------- peers


def _regression(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, solver="liblinear", max_iter=300)


def _one_by_one(make: Callable[[], Any], x: Matrix, y: NDArray[np.int64]) -> Any:
    """Return a function that gives chances of labels from a classifier of its own for each."""
    fitted = [make().fit(x, truth) for truth in y.T]
    return lambda x: np.column_stack([one.predict_proba(x)[:, 1] for one in fitted])


def logistic(x: Matrix, y: NDArray[np.int64], trial: Mapping[str, Any], seed: int) -> Any:
    """Fit a logistic regression for each label."""
    return _one_by_one(partial(_regression, trial["C"]), x, y)


def chain(x: Matrix, y: NDArray[np.int64], trial: Mapping[str, Any], seed: int) -> Any:
    """Fit a chain of logistic regressions in a random order (Read et al. 2009)."""
    from sklearn.multioutput import ClassifierChain

    return ClassifierChain(_regression(trial["C"]), order="random", random_state=seed).fit(x, y).predict_proba


def forest(x: Matrix, y: NDArray[np.int64], trial: Mapping[str, Any], seed: int) -> Any:
    """Fit one forest of a hundred trees for all labels."""
    from sklearn.ensemble import RandomForestClassifier

    def chances(others: Matrix) -> NDArray[np.float64]:
        total = np.zeros((others.shape[0], y.shape[1]))
        for part in range(100 // _TREES):
            state = 100 * seed + part
            trees = RandomForestClassifier(_TREES, random_state=state, n_jobs=1, **trial).fit(x, y)
            each = trees.predict_proba(others)
            total += np.column_stack([one[:, 1] for one in (each if isinstance(each, list) else [each])])
        return total * _TREES / 100

    return chances


def boosting(x: Matrix, y: NDArray[np.int64], trial: Mapping[str, Any], seed: int) -> Any:
    """Fit boosted trees for each label, on histograms of the inputs."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    def dense(matrix: Matrix) -> Any:
        return matrix.toarray() if hasattr(matrix, "toarray") else matrix

    make = partial(
        HistGradientBoostingClassifier, max_iter=50, min_samples_leaf=5, early_stopping=False, **trial
    )
    fitted = _one_by_one(make, dense(x), y)
    return lambda others: fitted(dense(others))


class Neighbours:
    """MLkNN (Zhang & Zhou 2007): what many neighbours with a label say of the label, by Bayes' rule.

    With ``C`` of the ``k`` nearest training instances having a label, its chance is that of having it times
    that of ``C`` among those who do, divided by the same sum over both; all are counted on training data,
    each count with one more (Eq. 2, s = 1).
    """

    def __init__(self, x: Matrix, y: NDArray[np.int64], count: int) -> None:
        from sklearn.neighbors import NearestNeighbors

        self.y, self.index = y, NearestNeighbors(n_neighbors=count).fit(x)
        n = len(y)
        self.prior = (1 + y.sum(0)) / (2 + n)
        having = self._having(None)[..., None] == np.arange(count + 1)
        with_it, without = ((having & (y == value)[..., None]).sum(0) for value in (1, 0))
        self.likelihoods = [(1 + one) / (count + 1 + one.sum(1, keepdims=True)) for one in (with_it, without)]

    def __call__(self, x: Matrix) -> NDArray[np.float64]:
        having, labels = self._having(x), np.arange(self.y.shape[1])
        positive = self.prior * self.likelihoods[0][labels, having]
        negative = (1 - self.prior) * self.likelihoods[1][labels, having]
        return np.asarray(positive / (positive + negative))

    def _having(self, x: Matrix | None) -> NDArray[np.int64]:
        """Return how many neighbours have each label; without ``x`` those of training instances."""
        # Asked without inputs, an instance is not among its own neighbours.
        return np.asarray(self.y[self.index.kneighbors(x, return_distance=False)].sum(1))


def neighbours(x: Matrix, y: NDArray[np.int64], trial: Mapping[str, Any], seed: int) -> Any:
    """Fit MLkNN."""
    return Neighbours(x, y, trial["k"])


_STRENGTHS = tuple({"C": strength} for strength in (0.1, 1.0, 10.0, 100.0))
#: networks of one and of two layers, with two rates or much dropout
_NETWORKS: tuple[Mapping[str, Any], ...] = (
    {},
    {"task_dropout": 0.5},
    {"task_layers": 1, "task_dropout": 0.5},
    {"task_layers": 1, "task_dropout": 0.5, "task_lr": 3e-3},
)
ROWS = (
    Row("logistic regression, one-vs-rest", _STRENGTHS, logistic, random=False),
    Row("classifier chain", _STRENGTHS, chain),
    Row("MLkNN", tuple({"k": count} for count in (5, 10, 20, 40)), neighbours, random=False),
    Row(
        "random forest",
        tuple(
            {"min_samples_leaf": leaf, "max_features": share} for leaf in (1, 3) for share in ("sqrt", 0.2)
        ),
        forest,
    ),
    Row(
        "gradient boosting, one-vs-rest",
        tuple(
            {"learning_rate": rate, "max_leaf_nodes": leaves} for rate in (0.05, 0.2) for leaves in (4, 15)
        ),
        boosting,
        random=False,
    ),
    Row("MLP, cross-entropy", _NETWORKS, loss="none"),
    Row("MLP, soft-F1", _NETWORKS, loss="soft-f1"),
    Row("MLP, asymmetric loss", _NETWORKS, loss="asymmetric"),
)
CELLS = tuple(Cell(row.title, data, "peer") for data in SETS for row in ROWS)


# ---------------------------------------------------------------- runs


def run(
    output: Path,
    seeds: int,
    data_dir: Path | None,
    jobs: int,
    titles: Sequence[str] = (),
    sets: Sequence[str] = SETS,
) -> None:
    """Runs all rows, or those named; writes ``results.jsonl`` and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    lines, there = finished(store), [name for name in sets if find(name, data_dir)]
    if missing := [name for name in sets if name not in there]:
        Console(stderr=True).print(f"{', '.join(missing)} left out, whose files are not there")

    def told(line: dict[str, Any]) -> str:
        value = 100 * line["metrics"]["test"][CHOICE]
        return f"{line['dataset']}, {line['title']}, trial {line['trial']}, seed {line['seed']}: {value:.2f}"

    for wanted in (partial(trials, there, titles), partial(_repetitions, there, titles, seeds)):
        done = set(map(case, lines))
        tasks = [partial(work, *one, data_dir) for one in wanted(lines) if one not in done]
        lines += carried_out(tasks, store, jobs, told)
    tables = best(lines), compare(lines)
    (output / "table.md").write_text("\n\n".join(markdown(*one) for one in tables) + "\n", encoding="utf-8")
    for one in tables:
        show("test, in points", *one)


def trials(sets: Sequence[str], titles: Sequence[str], lines: Sequence[dict[str, Any]]) -> list[Case]:
    """All trials, with seed 0."""
    rows = [row for row in ROWS if row.title in titles or not titles]
    return [(name, row.title, trial, 0) for name in sets for row in rows for trial in range(len(row.trials))]


def _repetitions(
    sets: Sequence[str], titles: Sequence[str], seeds: int, lines: Sequence[dict[str, Any]]
) -> list[Case]:
    """The chosen trials of random rows, with the other seeds."""
    found = chosen(lines, CHOICE)
    rows = [row for row in ROWS if row.random and (row.title in titles or not titles)]
    return [
        (name, row.title, found[name, row.title], seed)
        for seed in range(1, seeds)
        for name in sets
        for row in rows
        if (name, row.title) in found
    ]


def work(name: str, title: str, trial: int, seed: int, data_dir: Path | None) -> list[dict[str, Any]]:
    """The line of one run."""
    torch.set_num_threads(1)
    row = next(row for row in ROWS if row.title == title)
    data, started = load(name, data_dir=data_dir, progress=False), time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that a part lacks, and solvers a step short of the end
        relaxed = (
            _network(data, row, trial, seed, data_dir)
            if row.peer is None
            else chances(data, partial(row.peer, trial=row.trials[trial], seed=seed))
        )
    truths = {part: _truth(data, part) for part in relaxed}
    about = {"dataset": name, "title": title, "trial": trial, "seed": seed, "split": data.split_name}
    return [
        {
            **about,
            "settings": dict(row.trials[trial]),
            "metrics": measured(relaxed, truths),
            "seconds": round(time.monotonic() - started, 2),
            "versions": versions(),
        }
    ]


def chances(data: Loaded, fit: Callable[[Matrix, NDArray[np.int64]], Any]) -> dict[str, Tensor]:
    """Return a peer's label chances; a label that all or no training instances have keeps that."""
    # scikit-learn corrupts label sets of small integers.
    y = _truth(data, "train").numpy().astype(np.int64)
    varied = np.flatnonzero((y.min(0) == 0) & (y.max(0) == 1))
    x = [_features(data, part) for part in ("train", "valid", "test")]
    predict = fit(x[0], y[:, varied])
    others = sparse.vstack(x[1:], format="csr") if sparse.issparse(x[0]) else np.vstack(x[1:])
    own = np.tile(y[:1].astype(float), (others.shape[0], 1))
    own[:, varied] = predict(others)
    valid, test = torch.from_numpy(own.clip(0, 1)).float().split([len(data.valid), len(data.test)])
    return {"valid": valid, "test": test}


def _network(data: Loaded, row: Row, trial: int, seed: int, data_dir: Path | None) -> dict[str, Tensor]:
    run = Run(
        data.name, "cross-entropy", row.loss, Settings(**row.trials[trial]), seed=seed, data_dir=data_dir,
        device="cpu", progress=False,
    )  # fmt: skip
    _, model, _ = carry_out(run, data)
    return {part: model.probabilities(getattr(data, part))[0] for part in ("valid", "test")}


def _features(data: Loaded, part: str) -> Matrix:
    return getattr(data, part).source.matrix


def _truth(data: Loaded, part: str) -> Tensor:
    examples = getattr(data, part)
    truth: Tensor = examples.batch(torch.arange(len(examples))).y
    return truth


def measured(relaxed: Mapping[str, Tensor], truths: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Metrics of validation and test data from label chances ``(instances, labels)`` of both."""
    valid, known = relaxed["valid"], truths["valid"]
    space = MultiLabel(known.shape[1])
    calibration = calibrate(space, valid, known)
    threshold, for_sets = (tune_threshold(valid, known, goal=goal) for goal in ("f1", "exact-match"))
    found = {}
    for part, mine in relaxed.items():
        plain, tuned, expected, whole = (
            LabelMeter().measure(decoded, truths[part])
            for decoded in (
                Threshold()(mine),
                Threshold(threshold)(mine),
                ExpectedF1()(calibration(space, mine).float()),
                Threshold(for_sets)(mine),
            )
        )
        found[part] = {
            **plain,
            "f1_tuned": tuned["f1"],
            "threshold": threshold,
            "f1_expected": expected["f1"],
            "exact_match_tuned": whole["exact_match"],
        }
    return found


def best(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: the chosen trials on test data, in points."""
    heading, rows = summarise(CELLS, kept(lines, CHOICE), COLUMNS)
    return heading[:-1], [row[:-1] for row in rows]


def compare(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: the best network of ours against the best peer, both chosen on validation data.

    The difference has Welch's interval of 95 %, or Student's where the peer has no seeds.
    """
    groups: dict[tuple[str, bool], dict[str, list[dict[str, Any]]]] = {}
    for line in kept(lines, CHOICE):
        own = next(row for row in ROWS if row.title == line["title"]).peer is None
        groups.setdefault((line["dataset"], own), {}).setdefault(line["title"], []).append(line)

    def values(mine: Sequence[dict[str, Any]], part: str, metric: str) -> list[float]:
        return [100 * line["metrics"][part][metric] for line in mine]

    rows = []
    for data in (name for name in SETS if (name, True) in groups and (name, False) in groups):
        for metric, heading in COLUMNS:
            titles, figures = [], []
            for own in (False, True):
                tried = groups[data, own]
                best = max(tried, key=lambda title: (np.mean(values(tried[title], "valid", metric)), title))
                titles.append(best)
                figures.append(values(tried[best], "test", metric))
            peer, ours = figures
            gap = estimate([one - peer[0] for one in ours]) if len(peer) == 1 else difference(ours, peer)
            shown = [f"{title} {np.mean(found):.2f}" for title, found in zip(titles, figures, strict=True)]
            rows.append([data, heading, *shown, shown_estimate(gap, sign=True), verdict(gap)])
    return ["data", "metric", "best peer", "best network", "difference", "verdict of the network"], rows
