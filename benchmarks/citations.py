"""Fields of references from 5, 10 and 50 labels: UAI Table 4, with our split, inputs and rules.

Every row is given the same: the labelled references of a draw, the others without labels, twenty references
that choose epochs and settings, and our rules if it can use any.  Each has as many trials, at ten labels of
two draws that the table does not use; the trial with the best mean accuracy on the twenty counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.grid import carried_out, finished, is_current, markdown, show
from lossnet.build import METHODS, default_loss
from lossnet.data import Examples, Sentences
from lossnet.data.citations import tokens_of
from lossnet.data.registry import read_raw
from lossnet.inputs import Words
from lossnet.loading import Loaded, keep_labels
from lossnet.recipes import recipe_settings
from lossnet.run import Run, fit, versions
from lossnet.runs import spread
from lossnet.settings import Settings

__all__ = ["LABELLED", "ROWS", "Row", "loaded", "run", "table", "trials_table"]

DATA = "cora-citations"
LABELLED = (5, 10, 50)
#: draws of labels that choose among trials, and of how many labels
TRIAL_DRAWS, TRIAL_LABELLED = (100, 101), 10
#: references of UMass that a row may have besides
FURTHER = 1000

Changes = Mapping[str, Any]


class Row(NamedTuple):
    """A row of the table: a method, and what its trials change of its recipe."""

    method: str
    trials: Sequence[Changes]
    published: Sequence[str] = ("", "", "")
    further: int = 0
    #: the row whose best trial it takes, with changes of its own
    like: str = ""


_NETWORK: tuple[Changes, ...] = ({}, {"task_dropout": 0.6}, {"task_lr": 5e-3}, {"word_dropout": 0.0})
_TEACHER: tuple[Changes, ...] = (
    {},
    {"unlabelled_weight": 0.3},
    {"unlabelled_weight": 3.0},
    {"teacher_decay": 0.95},
)
_SPEN: tuple[Changes, ...] = (
    {},
    {"unlabelled_weight": 0.1},
    {"energy_lr": 5e-4},
    {"tag_models": "forward"},
)
_REWARD: tuple[Changes, ...] = (
    {},
    {"energy_weight": 0.1},
    {"reward_scale": 15.0},
    {"tag_models": "forward"},
)
ROWS = {
    "cross-entropy": Row("cross-entropy", _NETWORK),
    "CRF": Row("crf", ({}, {"energy_dropout": 0.6}, {"energy_lr": 5e-3}, {"word_dropout": 0.0})),
    "pseudo-labels": Row("pseudo-labels", _TEACHER),
    "mean teacher": Row("mean-teacher", _TEACHER),
    "GE": Row(
        "expectation",
        ({}, {"unlabelled_weight": 0.3}, {"unlabelled_weight": 3.0}, {"unlabelled_weight": 10.0}),
        ("54.7", "57.9", "68.0"),
    ),
    "R-SPEN": Row("r-spen", _SPEN, ("55.0", "65.0", "81.5")),
    "SG-SPEN": Row("sg-spen", _SPEN, ("53.0", "62.4", "82.6")),
    "DVN": Row(
        "reward-dvn",
        ({}, {"inference_lr": 10.0}, {"reward_scale": 15.0}, {"energy_lr": 5e-4}),
        ("57.4", "60.9", "79.4"),
    ),
    "SEAL": Row("reward-seal", _REWARD),
    "implicit NCE": Row("reward-implicit", _REWARD, ("58.9", "67.8", "82.9")),
    "corrected mean teacher": Row(
        "corrected-teacher", ({}, {"correction": 1.0}, {"correction": 0.25}, {"unlabelled_weight": 3.0})
    ),
    "rules": Row(
        "rules",
        (
            {"teacher_power": 0.1},
            {"teacher_power": 0.3},
            {},
            {"teacher_power": 0.1, "unlabelled_weight": 3.0},
        ),
    ),
    "rules and UMass": Row("rules", ({"epochs": 8},), further=FURTHER, like="rules"),
}


def run(output: Path, seeds: int, data_dir: Path | None, jobs: int, titles: Sequence[str] = ()) -> None:
    """Runs all rows, or those named, and writes ``results.jsonl`` and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store, titles = output / "results.jsonl", titles or tuple(ROWS)
    results = [one for one in finished(store) if _is_current(one)]
    wanted = [
        (title, trial, TRIAL_LABELLED, draw)
        for title in dict.fromkeys(ROWS[title].like or title for title in titles)
        for trial in range(len(ROWS[title].trials))
        for draw in TRIAL_DRAWS
    ]
    results += _carried_out(wanted, results, store, data_dir, jobs)
    wanted = [
        (title, chosen(results, ROWS[title].like or title), labelled, draw)
        for draw, labelled, title in itertools.product(range(seeds), LABELLED, titles)
    ]
    results += _carried_out(wanted, results, store, data_dir, jobs)
    (output / "table.md").write_text(f"{table(results)}\n\n{trials_table(results)}\n", encoding="utf-8")
    show("test, in points", HEADING, rows_of(results))


def chosen(results: Sequence[Mapping[str, Any]], title: str) -> int:
    """The trial with the best mean accuracy on validation references; the first until all have been made."""
    means = _trial_means(results, title)
    return 0 if None in means else max(range(len(means)), key=lambda trial: (means[trial], -trial))


def loaded(labelled: int, draw: int, data_dir: Path | None, further: int = 0) -> Loaded:
    """References of which so many are labelled, by a draw, and those that validate and test."""
    raw = read_raw(DATA, data_dir, progress=False)
    kept, others = keep_labels(raw.parts[0], labelled, draw)
    if further:
        others = _with_further(others, further, draw, data_dir)
    fitting = _fitting(data_dir)
    rules = raw.entry.rules()
    parts = kept, raw.parts[1], raw.parts[2]
    return Loaded.from_parts(*parts, fitting, DATA, raw.split_name, unlabelled=others, rules=rules)


@cache
def _fitting(data_dir: Path | None) -> Any:
    raw = read_raw(DATA, data_dir, progress=False)
    sources: Any = [part.source for part in raw.parts]
    return Words.fitting(raw.entry, sources, data_dir, None, None)


def _with_further(others: Examples, count: int, draw: int, data_dir: Path | None) -> Examples:
    """Adds references of UMass, their tokens cut as Cora's are."""
    source: Any = read_raw("umass-citations", data_dir, progress=False).parts[0].source
    rows = np.random.default_rng(draw).permutation(len(source.tokens))[:count]
    texts = tuple(tokens_of(" ".join(source.tokens[row])) for row in rows)
    mine: Any = others.source
    more: Any = Sentences(texts)
    return Examples(mine.join([more]))


Task = tuple[str, int, int, int]


def _carried_out(
    wanted: Sequence[Task],
    results: Sequence[Mapping[str, Any]],
    store: Path,
    data_dir: Path | None,
    jobs: int,
) -> list[dict[str, Any]]:
    done = {_task_of(one) for one in results}
    tasks = [partial(_work, *one, data_dir) for one in wanted if one not in done]

    def line(result: dict[str, Any]) -> str:
        value = 100 * result["metrics"]["test"]["accuracy"]
        return f"{result['title']}, {result['labelled']} labels, draw {result['seed']}: {value:.1f}"

    return carried_out(tasks, store, jobs, line)


def _known(title: str, trial: int, labelled: int, draw: int) -> dict[str, Any]:
    row = ROWS[title]
    like = ROWS[row.like].trials[trial] if row.like else {}
    changes = {**like, **row.trials[0 if row.like else trial]}
    settings = {**recipe_settings(DATA, row.method, default_loss(row.method)), **changes}
    whole = dataclasses.asdict(Settings(**settings))
    shown = f"{title}, trial {trial + 1}" if draw in TRIAL_DRAWS else title
    return {
        "dataset": f"{DATA}, {labelled} labels",
        "title": shown,
        "row": title,
        "trial": trial,
        "labelled": labelled,
        "seed": draw,
        "method": row.method,
        "loss": default_loss(row.method),
        "further": row.further,
        "settings": whole,
    }


def _task_of(result: Mapping[str, Any]) -> Task:
    return result["row"], result["trial"], result["labelled"], result["seed"]


def _is_current(result: Mapping[str, Any]) -> bool:
    """Whether a result is of a row, trial and settings that there are now."""
    row = ROWS.get(result["row"])
    if row is None or result["trial"] >= len(ROWS[row.like or result["row"]].trials):
        return False
    known = _known(*_task_of(result))
    return is_current(result["settings"], known["settings"], known["method"], known["loss"])


def _work(title: str, trial: int, labelled: int, draw: int, data_dir: Path | None) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    known = _known(title, trial, labelled, draw)
    data = loaded(labelled, draw, data_dir, ROWS[title].further)
    if not METHODS[known["method"]].method.semi_supervised:
        data = dataclasses.replace(data, unlabelled=None)
    names, settings = (known["method"], known["loss"]), Settings(**known["settings"])
    run = Run(DATA, *names, settings, seed=draw, device="cpu", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = fit(run, data)
    measured = {
        "metrics": fitted.metrics,
        "best_epoch": fitted.stages[-1]["best_epoch"],
        "epochs": len(fitted.history),
        "steps": fitted.steps,
        "seconds": fitted.seconds,
    }
    return [{**known, **measured, "versions": versions()}]


# ---------------------------------------------------------------- tables

HEADING = ("data", "method", *(f"{labelled} labels" for labelled in LABELLED), "seconds", "published")


def rows_of(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of token accuracy and segment F1 on test references, in points, over the draws of labels."""
    rows = []
    for title, row in ROWS.items():
        best = chosen(results, row.like or title)
        mine = [one for one in _of(results, title) if one["seed"] not in TRIAL_DRAWS and one["trial"] == best]
        cells = [_cell([one for one in mine if one["labelled"] == labelled]) for labelled in LABELLED]
        if any(cells):
            seconds = f"{statistics.mean(one['seconds'] for one in mine):.0f}"
            rows.append([DATA, title, *cells, seconds, " / ".join(row.published).strip(" /")])
    return rows


def _cell(mine: Sequence[Mapping[str, Any]]) -> str:
    """Both metrics, and the draws where they are not the five that they are to be."""
    if not mine:
        return ""
    values = ([100 * one["metrics"]["test"][name] for one in mine] for name in ("accuracy", "span_f1"))
    draws = sorted(one["seed"] for one in mine)
    text = " / ".join(spread(each) if len(each) > 1 else f"{each[0]:.2f}" for each in values)
    return (
        text
        if draws == list(range(5))
        else f"{text} (draw{'s' * (len(draws) > 1)} {', '.join(map(str, draws))})"
    )


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The table of the page."""
    return markdown([name.capitalize() for name in HEADING[1:]], [row[1:] for row in rows_of(results)])


def trials_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Every row's trials: what they change, and the accuracy on validation references that chose."""
    rows = []
    for title, row in ROWS.items():
        if row.like or None in _trial_means(results, title):
            continue
        means, best = _trial_means(results, title), chosen(results, title)
        for trial, changes in enumerate(row.trials):
            what = ", ".join(f"{name} {value}" for name, value in changes.items()) or "the recipe"
            rows.append([title, what, f"{means[trial]:.1f}", "chosen" if trial == best else ""])
    return markdown(["Method", "Trial", "Validation accuracy", ""], rows)


def _of(results: Sequence[Mapping[str, Any]], title: str) -> list[Mapping[str, Any]]:
    """The results of a row."""
    return [one for one in results if one["row"] == title]


def _trial_means(results: Sequence[Mapping[str, Any]], title: str) -> list[Any]:
    """Mean accuracies of a row's trials, None where a draw is missing."""
    mine = [one for one in _of(results, title) if one["seed"] in TRIAL_DRAWS]
    values = [
        [100 * one["metrics"]["valid"]["accuracy"] for one in mine if one["trial"] == trial]
        for trial in range(len(ROWS[title].trials))
    ]
    return [statistics.mean(each) if len(each) == len(TRIAL_DRAWS) else None for each in values]
