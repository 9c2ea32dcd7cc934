"""Few labels: digits with sums, bibtex without rules, expr_fun with its taxonomy; and labels known in part.

Draws of labels are by the seed.  Of digits, settings are those of ``lossnet demo``, epochs are fixed, and
weights are kept of the epoch in which the few labels themselves are predicted best.  Elsewhere a fifth of the
labelled rows validates, and settings are the same for all methods where they have the same ones: they are
defaults, but for dropout, and nobody tuned them.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks.grid import COLUMNS, carried_out, finished, markdown, settings_of, show, with_error
from lossnet import demo
from lossnet.data import LabelTable, hold_out
from lossnet.energies import Rule, ancestors, exactly, parents_of, sums_to
from lossnet.loading import Loaded, keep_labels, load
from lossnet.own import OwnParts
from lossnet.recipes import recipe_settings
from lossnet.run import Fitted, Run, fit, versions
from lossnet.runs import spread
from lossnet.scores import F1
from lossnet.settings import Settings
from lossnet.under_rules import UnderRules

__all__ = ["digits", "few", "partly", "partly_costs", "run", "taxonomy"]

#: draws of labels, of digits
DRAWS = 5
PAIRS, BIBTEX, FUN = "digits-pairs", "bibtex", "expr_fun"
LABELLED = (10, 30, 100)
SHARES = (0.05, 0.1)
#: the share of labels that is hidden
HIDDEN = 0.3
#: for all methods alike, but that those with a teacher pass over many more rows in an epoch
_FEW = {"epochs": 300, "patience": 30, "patience_steps": 300, "batch_size": 32, "task_dropout": 0.5}
_TEACHER = {**_FEW, "epochs": 40, "patience": 10, "batch_size": 64}
_ENERGY = {**_FEW, "energy_steps": 4, "task_steps": 2, "energy_dropout": 0.5}


@dataclasses.dataclass(frozen=True)
class Way:
    """A row of a table: how to train."""

    title: str
    method: str
    loss: str = "none"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


#: digits: the rows of ``lossnet demo`` and more of their kind
DIGITS = (
    Way("cross-entropy", "cross-entropy", settings=dict(demo.FEW[0].changes)),
    Way("pseudo-labels", "pseudo-labels", settings=dict(demo.FEW[1].changes)),
    Way("mean teacher", "mean-teacher", settings=dict(demo.FEW[1].changes)),
    Way("rules, expectation", "rules", "expectation", dict(demo.FEW[2].changes)),
    Way("rules, semantic", "rules", "semantic", dict(demo.FEW[2].changes)),
)
_PLAIN = (
    Way("cross-entropy", "cross-entropy", "none", _FEW),
    Way("cross-entropy + soft-F1", "cross-entropy", "soft-f1", _FEW),
    Way("pseudo-labels", "pseudo-labels", "none", _TEACHER),
    Way("mean teacher", "mean-teacher", "none", _TEACHER),
)
#: bibtex: nothing is known beside labels
WITHOUT = (
    *_PLAIN,
    Way("SEAL-NCE", "seal", "nce", _ENERGY),
    Way("SEAL-NCE, energy weight 0", "seal", "nce", {**_ENERGY, "energy_weight": 0.0}),
)
#: expr_fun: a label's ancestors are true where it is
TAXONOMY = (
    *_PLAIN,
    Way("taxonomy, expectation", "rules", "expectation", _TEACHER),
    Way("taxonomy, semantic", "rules", "semantic", _TEACHER),
)
#: labels that are known in part: the tuned recipe, cut short, so that all variants take minutes
_TUNED = recipe_settings(BIBTEX, "cross-entropy", "none", "bibtex/cross-entropy-none-tuned")
PARTLY = (Way("cross-entropy", "cross-entropy", settings={**_TUNED, "epochs": 30, "batch_size": 128}),)
#: what becomes of training labels
KNOWN, UNKNOWN, NEGATIVE, AT_RANDOM = (
    "all known",
    "30 % of positives unknown",
    "30 % of positives taken for negative",
    "30 % of all labels unknown",
)
VARIANTS = (KNOWN, UNKNOWN, NEGATIVE, AT_RANDOM)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Trains everything; writes ``results.jsonl`` and ``table.md``; ``seeds`` is for what has three draws."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    results = finished(store)
    done = {_key(one) for one in results}
    tasks = [task for known, task in _tasks(seeds, data_dir) if _key(known) not in done]

    def line(one: dict[str, Any]) -> str:
        test = one["metrics"]["test"]
        return f"{one['dataset']}, {one['title']}, {one['labelled']}, seed {one['seed']}: {test['f1']:.3f}"

    results += carried_out(tasks, store, jobs, line)
    tables = {"digits": digits, "bibtex": few, "expr_fun": taxonomy, "partly": partly}
    pages = []
    for name, made in tables.items():
        heading, rows = made(results)
        pages.append(f"## {name}\n\n{markdown(heading, rows)}\n")
        show(f"{name}, test, in points", ["", *heading], [["", *row] for row in rows])
    (output / "table.md").write_text("\n".join(pages), encoding="utf-8")


def _tasks(seeds: int, data_dir: Path | None) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Everything to do, and what distinguishes it."""
    for seed, count, way in itertools.product(range(DRAWS), LABELLED, DIGITS):
        settings = Settings.of(recipe_settings(PAIRS, way.method, way.loss) | dict(way.settings))
        known = _known(PAIRS, way, seed, str(count), settings)
        yield known, partial(_on_digits, known, count)
    for way, seed, variant in itertools.product(PARTLY, range(seeds), VARIANTS):
        known = _known(BIBTEX, way, seed, variant, Settings(**way.settings))
        yield known, partial(_on_partly, known, data_dir)
    for data, ways, shares in ((FUN, TAXONOMY, SHARES[:1]), (BIBTEX, WITHOUT, SHARES)):
        for share, seed, way in itertools.product(shares, range(seeds), ways):
            known = _known(data, way, seed, f"{share:.0%}", Settings(**way.settings))
            yield known, partial(_on_few, known, share, data_dir)


def _known(data: str, way: Way, seed: int, labelled: str, settings: Settings) -> dict[str, Any]:
    about = {"dataset": data, "title": way.title, "seed": seed, "labelled": labelled}
    return {**about, "method": way.method, "loss": way.loss, "settings": dataclasses.asdict(settings)}


def _key(one: Mapping[str, Any]) -> str:
    names = "dataset", "title", "seed", "labelled", "settings"
    return repr([sorted(settings_of(one).items()) if name == "settings" else one[name] for name in names])


# ---------------------------------------------------------------- what is trained


def _fitted(known: Mapping[str, Any], data: Loaded, rules: Sequence[Rule] = ()) -> Fitted:
    torch.set_num_threads(1)
    settings, own = Settings(**known["settings"]), OwnParts(rules=tuple(rules))
    asked = Run(known["dataset"], known["method"], known["loss"], settings, seed=known["seed"], device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that labels are few
        return fit(dataclasses.replace(asked, progress=False, own=own), data)


def _line(known: Mapping[str, Any], fitted: Fitted, **metrics: Any) -> list[dict[str, Any]]:
    about = {"steps": fitted.steps, "best_epoch": fitted.stages[-1]["best_epoch"], "seconds": fitted.seconds}
    return [{**known, "metrics": {**fitted.metrics, **metrics}, **about, "versions": versions()}]


def _on_digits(known: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The two likeliest digits of each test picture, and the best two that add up to what they should."""
    data = demo.pictures(count, known["seed"])
    fitted = _fitted(known, data, (exactly(2), sums_to()) if known["method"] == "rules" else ())
    relaxed, truth = fitted.model.probabilities(data.test)
    assert truth is not None
    likeliest = demo.likeliest(relaxed)
    sums = truth @ torch.arange(10.0)
    _, told = fitted.model.outputs(data.test, rules=[exactly(2), sums_to()], facts=sums)
    compared = demo.compare(likeliest, truth)
    return _line(known, fitted, test={**compared, "told": demo.compare(told, truth)["exact_match"]})


def few_rows(data: Loaded, share: float, seed: int) -> Loaded:
    """Training data of which a share is labelled, a fifth of that to validate; the rest has no labels."""
    kept, others = keep_labels(data.train, round(share * len(data.train)), seed)
    assert kept.target is not None
    train, valid = hold_out(kept.target.stratify_by(), 0.2, seed)
    return dataclasses.replace(data, train=kept.take(train), valid=kept.take(valid), unlabelled=others)


def _on_few(known: Mapping[str, Any], share: float, data_dir: Path | None) -> list[dict[str, Any]]:
    data = few_rows(load(known["dataset"], data_dir, progress=False), share, known["seed"])
    if known["dataset"] != FUN:
        return _line(known, _fitted(known, data))
    tree = ancestors(parents_of(data.task.output.names))
    fitted = _fitted(known, data, [tree] if known["method"] == "rules" else ())
    started = time.monotonic()
    relaxed, truth = fitted.model.probabilities(data.test)
    assert truth is not None
    plain = (relaxed >= fitted.model.threshold).to(relaxed)
    kept = UnderRules([tree], fitted.model.method.space)(data.test, relaxed, plain, fitted.model.threshold)
    broken = tree(None, plain.unsqueeze(1)).isinf().float().mean()
    labelled = truth.sum(1) > 0
    f1 = float(F1()(kept.unsqueeze(1), truth).squeeze(1)[labelled].mean())
    test = {**fitted.metrics["test"], "f1_told": f1, "broken": float(broken)}
    return _line(known, fitted, test=test, seconds_told=round(time.monotonic() - started, 2))


def _on_partly(known: Mapping[str, Any], data_dir: Path | None) -> list[dict[str, Any]]:
    data = load(BIBTEX, data_dir, progress=False)
    assert isinstance(data.train.target, LabelTable)
    train = data.train.replace(target=hidden(data.train.target, known["labelled"], known["seed"]))
    return _line(known, _fitted(known, dataclasses.replace(data, train=train)))


def hidden(labels: LabelTable, variant: str, seed: int) -> LabelTable:
    """Training labels as a variant of ``VARIANTS`` has them; the same positives are hidden in all.

    >>> table = LabelTable(np.ones((4, 5)))
    >>> [hidden(table, variant, 0).matrix.sum().item() for variant in VARIANTS]
    [20, 13, 13, 13]
    """
    drawn = np.random.default_rng(seed).random(labels.matrix.shape) < HIDDEN
    positive = sparse.csr_array(drawn & (labels.matrix.toarray() > 0))
    if variant == KNOWN:
        return labels
    if variant == NEGATIVE:
        return LabelTable(labels.matrix - labels.matrix.multiply(positive), labels.names)
    return labels.where_unknown(positive if variant == UNKNOWN else sparse.csr_array(drawn))


# ---------------------------------------------------------------- tables

Table = tuple[list[str], list[list[str]]]
#: metrics of label sets, and their headings
_SETS = {**dict(COLUMNS), "exact_match": "exact match"}


def _runs(results: Sequence[dict[str, Any]], data: str, way: Way, labelled: str) -> list[dict[str, Any]]:
    """The runs of a row, by their seeds."""
    row = data, way.title, labelled
    mine = [one for one in results if (one["dataset"], one["title"], one["labelled"]) == row]
    return sorted(mine, key=lambda one: int(one["seed"]))


def _cells(runs: Sequence[dict[str, Any]], names: Sequence[str], digits: int = 1) -> list[str]:
    return [spread([100 * one["metrics"]["test"][name] for one in runs], digits=digits) for name in names]


def _seeds(runs: Sequence[dict[str, Any]]) -> list[str]:
    seconds = statistics.mean(one["seconds"] for one in runs)
    return [f"{seconds:.0f}", ", ".join(str(one["seed"]) for one in runs)]


def _table(
    results: Sequence[dict[str, Any]],
    data: str,
    first: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Way, str]],
    metrics: Mapping[str, str],
    digits: int = 1,
) -> Table:
    """Metrics by their headings, of runs in rows: the cells in front, how to train, and which labels."""
    made = []
    for cells, way, labelled in rows:
        if runs := _runs(results, data, way, labelled):
            made.append([*cells, *_cells(runs, list(metrics), digits), *_seeds(runs)])
    return [*first, *metrics.values(), "seconds", "seeds"], made


def digits(results: Sequence[dict[str, Any]]) -> Table:
    """Both digits right, F1, and both right if the sum is known at prediction too."""
    metrics = {"exact_match": "both right", "f1": "F1", "told": "both right, sums known at prediction"}
    rows = (((str(n), way.title), way, str(n)) for n, way in itertools.product(LABELLED, DIGITS))
    return _table(results, PAIRS, ("labels", "trained on"), rows, metrics)


def few(results: Sequence[dict[str, Any]]) -> Table:
    """F1 on bibtex without rules."""
    shares = itertools.product((f"{share:.0%}" for share in SHARES), WITHOUT)
    rows = (((share, way.title), way, share) for share, way in shares)
    return _table(results, BIBTEX, ("labels", "trained on"), rows, _SETS)


def taxonomy(results: Sequence[dict[str, Any]]) -> Table:
    """F1 on expr_fun; last, of sets that keep the taxonomy, and how many do not before."""
    metrics = {**dict(COLUMNS), "f1_told": "tuned, under the taxonomy", "broken": "sets that break it"}
    rows = (((way.title,), way, f"{SHARES[0]:.0%}") for way in TAXONOMY)
    return _table(results, FUN, ("trained on",), rows, metrics)


def partly(results: Sequence[dict[str, Any]]) -> Table:
    """F1 on bibtex whose training labels are known in part."""
    ways = itertools.product(PARTLY, VARIANTS)
    rows = (((way.title, variant), way, variant) for way, variant in ways)
    return _table(results, BIBTEX, ("trained on", "labels"), rows, _SETS, digits=2)


def partly_costs(results: Sequence[dict[str, Any]]) -> Table:
    """What hidden labels cost, seed by seed, and the share of it that is left where they are unknown."""
    heading = [
        "trained on",
        "",
        "taken for negative",
        "unknown",
        "share of the cost",
        "30 % of all labels unknown",
    ]
    rows = []
    for way in PARTLY:
        for metric, name in (("f1", "F1 at 0.5"), ("f1_tuned", "F1 tuned"), ("f1_expected", "F1 expected")):
            lost = {}
            for variant in VARIANTS:
                runs = {one["seed"]: one for one in _runs(results, BIBTEX, way, variant)}
                lost[variant] = {seed: 100 * one["metrics"]["test"][metric] for seed, one in runs.items()}
            if not lost[KNOWN]:
                continue
            costs = {
                variant: [lost[KNOWN][seed] - value for seed, value in own.items()]
                for variant, own in lost.items()
            }
            share = statistics.fmean(costs[UNKNOWN]) / statistics.fmean(costs[NEGATIVE])
            cells = [
                with_error(own) if len(own) > 1 else ""
                for own in (costs[variant] for variant in (NEGATIVE, UNKNOWN, AT_RANDOM))
            ]
            rows.append([way.title, name, *cells[:2], f"{share:.2f}", cells[2]])
    return heading, rows
