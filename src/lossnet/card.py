"""Model cards: what a model is, what it was trained on, and how good it is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lossnet.build import names_title
from lossnet.data import entry, names
from lossnet.decoding import Calibration, Threshold
from lossnet.model import Model
from lossnet.prediction import Predictor
from lossnet.scores import metric
from lossnet.settings import changed

__all__ = ["changed_settings", "decoding_facts", "kept_epoch", "marked_figures", "model_card", "temperature"]

#: names that a line lists at most
_MOST_NAMES = 30

#: characters that mean something in Markdown
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def model_card(result: Mapping[str, Any], model: Model, description: str) -> str:
    """Return Markdown about a run with this ``result.json``, its model, and a description of its data.

    >>> from lossnet.build import build
    >>> from lossnet.settings import Settings
    >>> from lossnet.task import Task
    >>> result = {"dataset": "mine.csv", "split": "stratified", "method": "seal", "loss": "nce", "seed": 0}
    >>> result |= {"metrics": {"valid": {"f1": 0.5}}, "settings": {"clip": 3}, "versions": {"torch": "2.13"}}
    >>> result |= {"source": {"data": "mine.csv"}, "steps": 12, "seconds": 1.5, "device": "cpu"}
    >>> result |= {"stages": [{"stage": "energy", "epochs": 3, "best_epoch": 2, "ended": "all epochs"}]}
    >>> names, settings, task = ("seal", "nce"), Settings(), Task.of_sizes(inputs=4, labels=3)
    >>> model = Model(build(*names, settings, task), names, settings, task)
    >>> card = model_card(result, model, "the file mine.csv").splitlines()
    >>> card[5], card[-1]
    ('# seal (nce) on mine.csv', '| clip | 3 |')
    """
    metrics, task = result["metrics"], model.task
    title, figures = names_title(result["method"], result["loss"]), marked_figures(metrics, model)
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    trained = f"{result['steps']} steps, {result['seconds']} s on {result['device']}"
    own = "".join(f", {part}=…" for part in task.own.names)
    lines = [
        "---",
        "library_name: lossnet",
        f"tags: [{task.input.kind}, {task.output.kind}, {result['method']}]",
        "---",
        "",
        f"# {title} on {_plain(result['dataset'])}",
        "",
        f"{task.title.capitalize()}. Weights and JSON without any code, to be read by Lossnet:",
        "",
        "```python",
        "import lossnet",
        "",
        f'model = lossnet.load("this folder"{own})',
        "```",
        *(["", "The parts to give are the author's own code, which is not in this folder."] if own else []),
        "",
        "## Data",
        "",
        f"{_plain(description)}, split: {_plain(result['split'])}.",
        *_columns(result.get("columns")),
        f"Terms of use: {_terms(result)}.",
        "",
        "## Figures",
        "",
        "Fractions of 1, on this split; the epoch and the threshold were chosen on valid. "
        "The arrow marks the metric that this model is judged by, as it predicts by default.",
        "",
        *_table(["", *metrics], figures),
        "",
        *(f"- Note: {_plain(remark)}." for remark in result.get("remarks", ())),
        *([""] if result.get("remarks") else []),
        "## Prediction",
        "",
        *_table(["", "chosen on valid"], [list(fact) for fact in decoding_facts(model).items()]),
        "",
        "## Training",
        "",
        f"Method {title}, seed {result['seed']}: {trained}; {versions}.",
        *_chosen_among(result.get("choice")),
        "",
        *(f"- {_plain(stage['stage'])}: {_plain(kept_epoch(stage))}." for stage in result["stages"]),
        "",
        *_changes(result),
    ]
    return "\n".join(lines) + "\n"


def marked_figures(metrics: Mapping[str, Mapping[str, float]], model: Predictor) -> list[list[str]]:
    """Return a row for each metric, with a column for each part of the data.

    An arrow marks the one that the model is judged by: that of its goal, decoded as it predicts by default.
    """
    judged_by = model.task.output.goal_metric(model.decision)
    return [
        ["→ " * (name == judged_by) + name, *(f"{part[name]:.4f}" for part in metrics.values())]
        for name in next(iter(metrics.values()))
    ]


def kept_epoch(stage: Mapping[str, Any]) -> str:
    """Return which epoch of a stage was kept, and why the stage ended.

    >>> kept_epoch({"stage": "task net", "epochs": 9, "best_epoch": 4, "ended": "5 without improvement"})
    'epoch 4 of 9 was kept; 5 without improvement'
    """
    return f"epoch {stage['best_epoch']} of {stage['epochs']} was kept; {stage['ended']}"


def decoding_facts(model: Model) -> dict[str, str]:
    """Return the goal, decoder, threshold and temperature that a model predicts with, as a person reads them.

    >>> from lossnet.build import build
    >>> from lossnet.settings import Settings
    >>> from lossnet.task import Task
    >>> names, settings, task = ("cross-entropy", "none"), Settings(), Task.of_sizes(inputs=4, labels=3)
    >>> decoding_facts(Model(build(*names, settings, task), names, settings, task))
    {'goal': 'none was stated', 'decoder': 'tuned', 'threshold': '0.5', 'temperature': '1'}
    """
    decision, decoder = model.decision, model.decoder()
    threshold = f"{decision.threshold:.4g}" if isinstance(decoder, Threshold) else "not used"
    facts = {
        "goal": decision.goal or "none was stated",
        "decoder": model.task.output.default_decoder(decision),
        "threshold": threshold,
        "temperature": temperature(model.calibration),
    }
    return facts | ({"doubt": decision.doubt} if decision.doubt else {})


def temperature(calibration: Calibration) -> str:
    """Return the temperature of a calibration, or the range of labels' temperatures.

    >>> temperature(Calibration((0.8,))), temperature(Calibration((0.5, 1.0, 0.8)))
    ('1.25', '1 to 2, one for each label (median 1.25)')
    """
    values = [1 / scale if scale else math.inf for scale in calibration.scales]
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{min(values):.3g} to {max(values):.3g}, one for each label (median {median(values):.3g})"


def changed_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, and parts of its author's own, that are not the default ones.

    >>> changed_settings({"settings": {"epochs": 7}, "parts": {"optimizer": "SGD", "energy": None}})
    {'epochs': 7, 'optimizer': 'SGD'}
    """
    parts = {name: part for name, part in (result.get("parts") or {}).items() if part is not None}
    return {**changed(result["settings"]), **parts}


def _changes(result: Mapping[str, Any]) -> list[str]:
    changes = changed_settings(result)
    if not changes:
        return ["All settings are the default ones."]
    text = "Settings that are not the default ones; `model.json` has all of them."
    return [text, "", *_table(["setting", "value"], [[name, str(value)] for name, value in changes.items()])]


def _columns(columns: Mapping[str, Any] | None) -> list[str]:
    """Return a line about the columns that are inputs, and one about those that are not."""
    if columns is None:
        return []
    used, dropped = columns["used"], [f"{name} ({why})" for name, why in columns["dropped"].items()]
    parts = [("Columns used", used), ("Columns left out", dropped)]
    return [f"{title} ({len(names)}): {_plain(_some(names))}." for title, names in parts if names]


def _some(names: Sequence[str]) -> str:
    more = [f"… and {len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return ", ".join([*names[:_MOST_NAMES], *more])


def _chosen_among(choice: Mapping[str, Any] | None) -> list[str]:
    """Return a line about the search in which the method was chosen, if there was one."""
    if choice is None:
        return []
    figures = {one["name"]: one["score"] for one in choice["candidates"]}
    by = f"by {metric(choice['metric']).title} for the goal {choice['goal']}"
    best = f"{figures[choice['chosen']]:.4f}"
    return ["", _plain(f"{choice['chosen']} was chosen of {len(figures)} candidates {by} ({best}).")]


def _terms(result: Mapping[str, Any]) -> str:
    name = result["source"]["data"]
    known = entry(name) if name in names() else None
    if known is None or not known.terms:
        return "not known; ask those who made the data"
    return _plain(known.terms) + (f" ({known.home})" if known.home else "")


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    marked = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in marked]


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))
