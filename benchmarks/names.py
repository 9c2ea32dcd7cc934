"""Taggers that see words alone, with rates tuned for each method and no run at its last epoch.

Names in news are decoded in two ways from the same predictions: each token's likeliest tag, as the papers do,
and the likeliest sequence that marks whole spans.  Learning rates are chosen on validation data with seed 0,
of the same three for each method; the CRF's and the BiLSTM's networks have the same dropout.  Of the news
3,000 sentences are for training, drawn by the seed, so that two cores can do it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grid import carried_out, chance, finished, markdown, show, with_error
from benchmarks.seal import CONTROL
from lossnet.build import default_loss
from lossnet.model import Model
from lossnet.recipes import recipe_settings
from lossnet.run import Run, carry_out, read
from lossnet.runs import spread
from lossnet.scores import meter
from lossnet.settings import Settings
from lossnet.spaces import Tags

__all__ = ["RATES", "ROWS", "SETS", "chosen", "run", "table"]

#: learning rates of all networks, in units of the recipe's
RATES = (0.5, 1.0, 2.0)
#: rows: method, loss, and what differs from the recipe
ROWS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "BiLSTM": ("cross-entropy", "", {}),
    "BiLSTM-CRF": ("crf", "", {}),
    "SEAL-NCE, weight 0": ("seal", "nce", CONTROL),
    "SEAL-NCE": ("seal", "nce", {}),
    "InfNet+, stacked": ("infnet-plus", "margin", {}),
}
#: sets with their features, and the metrics of their tables: in results, and what they are called there
SETS = {
    "conll2003": (
        "ner",
        {"span_f1_argmax": "F1, likeliest tags", "span_f1": "F1, whole spans", "accuracy": "accuracy"},
    ),
    "twitter-pos": ("pos", {"accuracy": "accuracy"}),
}
#: sentences to train on, at most
TRAINED = 3000
#: an end that no run should come to
LIMITS = {"patience": 8, "epochs": 200}


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all rows with all rates, the best of them with the other seeds; writes ``results.jsonl``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"

    def line(one: dict[str, Any]) -> str:
        value = 100 * one["metrics"]["test"][_judged(one["dataset"])]
        return f"{one['dataset']}, {one['title']}, rate × {one['rate']:g}, seed {one['seed']}: {value:.2f}"

    def carry(cases: Sequence[tuple[str, str, float, int]]) -> None:
        done = {_key(one) for one in finished(store)}
        carried_out(
            [partial(work, *case, data_dir, device) for case in cases if case not in done], store, jobs, line
        )

    carry([(data, title, rate, 0) for data in SETS for title in ROWS for rate in RATES])
    lines = finished(store)
    carry([(d, t, chosen(lines, d, t), seed) for seed in range(1, seeds) for d in SETS for t in ROWS])
    heading, rows = table(finished(store))
    (output / "table.md").write_text(f"{markdown(heading, rows)}\n", encoding="utf-8")
    show("test, in points", heading, rows)


def _key(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(one[name] for name in ("dataset", "title", "rate", "seed"))


def _judged(data: str) -> str:
    """Return the metric by which rates are chosen."""
    return [*SETS[data][1]][-1] if data == "twitter-pos" else "span_f1"


def chosen(lines: Sequence[Mapping[str, Any]], data: str, title: str) -> float:
    """Return the rate that is best on validation data with seed 0."""
    tried = {
        one["rate"]: one["metrics"]["valid"][_judged(data)]
        for one in lines
        if (one["dataset"], one["title"], one["seed"]) == (data, title, 0)
    }
    return float(max(tried, key=lambda rate: tried[rate]))


def work(
    data: str, title: str, rate: float, seed: int, data_dir: Path | None, device: str
) -> list[dict[str, Any]]:
    """Return the line of one run."""
    torch.set_num_threads(1)
    method, loss, changes = ROWS[title]
    loss = loss or default_loss(method)
    recipe = recipe_settings(data, method, loss, "")
    rates = {name: rate * recipe[name] for name in ("task_lr", "energy_lr")}
    settings = Settings(**{**recipe, **LIMITS, **changes, **rates, "features": SETS[data][0]})
    wanted = Run(data, method, loss, settings, seed=seed, data_dir=data_dir, device=device, progress=False)
    parts = read(wanted)
    drawn = np.random.default_rng(seed).permutation(len(parts.train))[:TRAINED]
    parts = dataclasses.replace(parts, train=parts.train.take(np.sort(drawn)))
    result, model, _ = carry_out(wanted, parts)
    metrics = {part: dict(result["metrics"][part]) for part in ("valid", "test")}
    if "span_f1" in metrics["test"]:
        for part, examples in (("valid", parts.valid), ("test", parts.test)):
            metrics[part]["span_f1_argmax"] = likeliest(model, examples)
    kept = ("dataset", "method", "loss", "seed", "settings", "best_epoch", "epochs", "steps", "seconds")
    about = {"title": title, "rate": rate, **{name: result[name] for name in kept}, "metrics": metrics}
    return [{**about, "stages": result["stages"], "versions": result["versions"], "commit": result["commit"]}]


def likeliest(model: Model, examples: Any) -> float:
    """Return the F1 of spans that each token's likeliest tag marks, whatever the tags beside it are."""
    relaxed, truth = model.probabilities(examples)
    space = model.method.space
    assert isinstance(space, Tags)
    assert truth is not None
    free = dataclasses.replace(space, names=())
    return meter(space).measure(free.decode(relaxed), truth)["span_f1"]


def table(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: means over seeds, and what each row has more than the BiLSTM, paired by seed."""
    names = {name: title for _, metrics in SETS.values() for name, title in metrics.items()}
    heading = ["data", "method", "rate", *names.values(), "− BiLSTM", "p", "epochs", "seeds"]
    rows = []
    for data in SETS:
        runs: dict[str, dict[int, Mapping[str, Any]]] = {}
        for title in ROWS:
            mine = [one for one in lines if (one["dataset"], one["title"]) == (data, title)]
            if not mine:
                continue
            rate = chosen(mine, data, title)
            runs[title] = {one["seed"]: one for one in mine if one["rate"] == rate}
            own = runs[title].values()
            metrics = [one["metrics"]["test"] for one in own]
            figures = [
                spread([100 * one[name] for one in metrics]) if name in metrics[0] else "" for name in names
            ]
            judged = _judged(data)
            shared = sorted(runs[title].keys() & runs["BiLSTM"].keys())
            more = [
                100
                * (runs[title][s]["metrics"]["test"][judged] - runs["BiLSTM"][s]["metrics"]["test"][judged])
                for s in shared
            ]
            compared = ["", ""] if title == "BiLSTM" or len(more) < 2 else [with_error(more), chance(more)]
            epochs = ", ".join(str(one["epochs"]) for one in own)
            seeds = ", ".join(map(str, sorted(runs[title])))
            rows.append([data, title, f"{rate:g}", *figures, *compared, epochs, seeds])
    return heading, rows
