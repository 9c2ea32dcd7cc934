"""Thirty sentences, a hundred rows, twenty images: every method at its defaults, beside cheap baselines.

Each seed draws instances of its own from a data set's training part and writes them to a file, which is split
as ``lossnet train FILE`` splits it: 60 % train, 20 % choose epoch and threshold.  The rest of the file, a
fifth, is left out, and everything is measured on the data set's own test part.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.grid import carried_out, finished, is_current, markdown, show
from lossnet import scores
from lossnet.build import AUTO, METHODS, default_loss, suits
from lossnet.data import Examples, LabelTable, Pictures, Sentences, Split, find, stratified_split
from lossnet.data.registry import entry, read_raw
from lossnet.decoding import Decision
from lossnet.linear import LinearModel
from lossnet.loading import Loaded, load
from lossnet.remarks import data_remarks
from lossnet.run import Run, carry_out
from lossnet.runs import spread
from lossnet.settings import Settings
from lossnet.spaces import Mask, MultiLabel, Space, Tags

__all__ = ["DATA", "HEADING", "SmallSet", "run", "table", "tables", "verdict", "write"]


@dataclasses.dataclass(frozen=True)
class SmallSet:
    """A few instances of a data set, the metric to compare them by, and methods that cannot do them."""

    title: str
    source: str
    count: int
    metric: str
    space: Space
    without: tuple[str, ...] = ()


DATA = (
    SmallSet("30 sentences, names", "conll2003", 30, "span_f1", Tags(2)),
    SmallSet("100 rows, emotions", "emotions", 100, "f1_tuned", MultiLabel(2)),
    SmallSet("100 rows, pairs of digits", "digits-pairs", 100, "f1_tuned", MultiLabel(2)),
    # SPEN says that an energy of images needs a local term, which image_energy=unet has.
    SmallSet("20 images of 16×16, digits in scenes", "digits-scenes", 20, "iou", Mask(), ("spen",)),
)
CONSTANT, LINEAR, CRF, CE = "one prediction for all", "logistic regression", "crf", "cross-entropy"
#: what no method should be below without a warning
BASELINES = (LINEAR, CRF, CE)
HEADING = (
    "data", "method", "test", "over the best baseline", "warned", "kept epoch", "epochs", "steps", "seconds",
)  # fmt: skip
#: test instances that are measured, at most
_TESTED = 300


def run(output: Path, seeds: int, data_dir: Path | None, jobs: int, methods: Sequence[str] = ()) -> None:
    """Runs all methods, or those named, and writes ``results.jsonl`` and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    results, tasks = [one for one in finished(store) if _is_current(one)], []
    done = {_key(result) for result in results}
    there = [small for small in DATA if not entry(small.source).files or find(small.source, data_dir)]
    for small in DATA:
        if small not in there:
            Console(stderr=True).print(f"{small.title}: left out, since {small.source} is not there")
    for seed, small in itertools.product(range(seeds), there):
        for title in (CONSTANT, LINEAR, *(methods or (AUTO, *METHODS))):
            known = {"dataset": small.title, "title": title, "seed": seed}
            if _key(known) not in done and _suits(title, small):
                tasks.append(partial(_work, small, title, seed, data_dir))
    metrics = {small.title: small.metric for small in DATA}

    def line(result: dict[str, Any]) -> str:
        value = 100 * result["metrics"]["test"][metrics[result["dataset"]]]
        return f"{result['dataset']}, {result['title']}, seed {result['seed']}: {value:.2f}"

    results += carried_out(tasks, store, jobs, line)
    (output / "table.md").write_text(f"{tables(results)}\n", encoding="utf-8")
    show("test, in points", HEADING, table(results))
    Console(highlight=False).print(verdict(results))


def write(small: SmallSet, seed: int, folder: Path, data_dir: Path | None = None) -> dict[str, Any]:
    """Writes the instances that a seed draws, and those to test on, to a file; returns how a run names it."""
    parts = read_raw(small.source, data_dir, progress=False).parts
    rows = np.random.default_rng(seed).permutation(len(parts[0]))[: small.count]
    drawn, tested = parts[0].take(rows), parts[2].take(range(min(_TESTED, len(parts[2]))))
    assert drawn.target is not None
    split = stratified_split(drawn.target.stratify_by())
    tests = np.arange(small.count, small.count + len(tested))
    Split(split.train, split.valid, tests).write(folder / "split.json")
    named = {"split": folder / "split.json", "device": "cpu", "progress": False}
    if isinstance(drawn.source, Sentences):
        _write_sentences(folder / "few.conll", [drawn, tested])
        return {"data": str(folder / "few.conll"), **named}
    if isinstance(drawn.source, Pictures):
        _write_images(folder / "few.npz", [drawn, tested])
        return {"data": str(folder / "few.npz"), **named}
    _write_rows(folder / "few.csv", [drawn, tested])
    assert isinstance(drawn.target, LabelTable)
    return {"data": str(folder / "few.csv"), "labels": list(drawn.target.names), **named}


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows of means over seeds, in points; differences have their standard errors, over the same draws."""
    rows = []
    for small, runs in _grouped(results):
        best = _best_baseline(small, runs)
        for title, mine in runs.items():
            difference = ""
            if title == best:
                difference = "best"
            elif best is not None and title != CONSTANT and (found := _difference(small, mine, runs[best])):
                difference = f"{found[0]:+.1f} ({found[1]:.1f})".replace("-", "−")
                difference = f"**{difference}**" if found[0] < -found[1] else difference
            values = [_value(small, one) for one in mine]
            rows.append([small.title, title, spread(values), difference, *_course(mine)])
    return rows


def tables(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table for each set, and the verdict."""
    rows = table(results)
    parts = []
    for title in dict.fromkeys(row[0] for row in rows):
        parts.append(f"**{title}**\n\n{markdown(HEADING[1:], [row[1:] for row in rows if row[0] == title])}")
    return "\n\n".join([*parts, verdict(results)])


def verdict(results: Sequence[dict[str, Any]]) -> str:
    """How many rows are below the best baseline by more than a standard error, and how many runs warned."""
    count, below = 0, []
    for small, runs in _grouped(results):
        best = _best_baseline(small, runs)
        methods = [mine for title, mine in runs.items() if title not in (CONSTANT, LINEAR)]
        count += len(methods)
        for mine in methods:
            found = None if best is None or mine is runs[best] else _difference(small, mine, runs[best])
            below += [mine] if found and found[0] < -found[1] else []
    warned = sum(bool(one["warned"]) for mine in below for one in mine)
    silent = sum(not any(one["warned"] for one in mine) for mine in below)
    return (
        f"{len(below)} of {count} rows of methods are more than one standard error below the best baseline; "
        f"{warned} of their {sum(map(len, below))} runs warned, and {silent} of these rows have no run "
        "that did."
    )


Runs = dict[str, list[dict[str, Any]]]


def _grouped(results: Sequence[dict[str, Any]]) -> Iterator[tuple[SmallSet, Runs]]:
    """Each set's runs by their titles, as they come, in the order of seeds."""
    for small in DATA:
        own = [one for one in results if one["dataset"] == small.title]
        titles = dict.fromkeys(one["title"] for one in own)
        runs = {title: [one for one in own if one["title"] == title] for title in titles}
        if runs:
            yield small, {title: sorted(mine, key=_seed) for title, mine in runs.items()}


def _seed(result: dict[str, Any]) -> int:
    return int(result["seed"])


def _value(small: SmallSet, result: dict[str, Any]) -> float:
    return 100 * float(result["metrics"]["test"][small.metric])


def _best_baseline(small: SmallSet, runs: Runs) -> str | None:
    known = [title for title in BASELINES if title in runs]
    return max(
        known, key=lambda title: statistics.mean(_value(small, one) for one in runs[title]), default=None
    )


def _difference(
    small: SmallSet, runs: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]
) -> tuple[float, float] | None:
    """The mean of what runs have more than others of the same seeds, and its standard error."""
    other = {_seed(one): _value(small, one) for one in others}
    gains = [_value(small, one) - other[_seed(one)] for one in runs if _seed(one) in other]
    if len(gains) < 2:
        return None
    return statistics.mean(gains), statistics.stdev(gains) / len(gains) ** 0.5


def _course(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Warnings, kept epochs, epochs, steps and seconds; only the last for what has no epochs."""
    seconds = f"{statistics.mean(one['seconds'] for one in runs):.1f}"
    if not any(one["epochs"] for one in runs):
        return ["", "", "", "", seconds]
    warned = sum(bool(one["warned"]) for one in runs)
    kept = ", ".join(str(one["best_epoch"]) for one in runs)
    epochs, steps = (f"{statistics.mean(one[name] for one in runs):.0f}" for name in ("epochs", "steps"))
    return [f"{warned} of {len(runs)}", kept, epochs, steps, seconds]


def _suits(title: str, small: SmallSet) -> bool:
    """Whether a method is for a set; those that learn from instances without labels find none here."""
    if title in small.without:
        return False
    if title not in METHODS:
        return True
    return not METHODS[title].method.semi_supervised and suits(title, default_loss(title), small.space)


def _settings(title: str) -> dict[str, Any]:
    return dataclasses.asdict(Settings()) if title in METHODS or title == AUTO else {}


def _key(result: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a run at today's defaults the same run."""
    return tuple(result[name] for name in ("dataset", "title", "seed"))


def _is_current(result: dict[str, Any]) -> bool:
    """Whether a run was at today's defaults of its method."""
    title = result["title"]
    loss = default_loss(title) if title in METHODS else ""
    return is_current(result["settings"], _settings(title), title, loss)


def _work(small: SmallSet, title: str, seed: int, data_dir: Path | None) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    known = {"dataset": small.title, "title": title, "seed": seed, "settings": _settings(title)}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are among the remarks
        named = write(small, seed, Path(folder), data_dir)
        if title in (CONSTANT, LINEAR):
            return [{**known, **_baseline(small, title, named)}]
        result, _, data = carry_out(Run(method=title, seed=seed, **named))
    expected = data_remarks(data)
    one = {
        **known,
        **{name: result[name] for name in ("method", "loss", "metrics", "best_epoch", "epochs", "steps")},
        "stages": result["stages"],
        "seconds": result["seconds"],
        "warned": [remark for remark in result["remarks"] if remark not in expected],
        "versions": result["versions"],
        "commit": result["commit"],
    }
    return [one]


def _baseline(small: SmallSet, title: str, named: dict[str, Any]) -> dict[str, Any]:
    """The result of what is no method: logistic regression, or the best output that is always the same."""
    started = time.monotonic()
    data = load(named["data"], split=named["split"], labels=named.get("labels"), progress=False)
    metrics = _linear(data) if title == LINEAR else {"test": _constant(data, small.metric)}
    seconds = round(time.monotonic() - started, 2)
    return {"metrics": metrics, "seconds": seconds, "epochs": 0, "steps": 0, "warned": []}


def _linear(data: Loaded) -> dict[str, dict[str, float]]:
    space, output = data.task.space(Settings()), data.task.output
    model = LinearModel(data.train, space)
    relaxed, truth = model.predict(data.valid), _truth(data.valid)
    decision = output.decide(space, relaxed, truth, Decision())
    return {
        "valid": output.meter(decision).measure(relaxed, truth),
        "test": output.meter(decision).measure(model.predict(data.test), _truth(data.test)),
    }


def _constant(data: Loaded, metric: str) -> dict[str, float]:
    space = data.task.space(Settings())
    return {metric: scores.best_constant(space, [_truth(data.test)], metric.removesuffix("_tuned"))}


def _truth(data: Examples) -> torch.Tensor:
    truth: torch.Tensor = data.batch(torch.arange(len(data))).y
    return truth


# ---------------------------------------------------------------- files


def _write_sentences(path: Path, parts: Sequence[Examples]) -> None:
    lines = []
    for part in parts:
        source: Any = part.source
        target: Any = part.target
        for tokens, tags in zip(source.tokens, target.tags, strict=True):
            lines += [*(f"{token}\t{tag}" for token, tag in zip(tokens, tags, strict=True)), ""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_rows(path: Path, parts: Sequence[Examples]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, part in enumerate(parts):
            source: Any = part.source
            target: Any = part.target
            if number == 0:
                writer.writerow([*source.names, *target.names])
            x, y = (
                one.toarray() if hasattr(one, "toarray") else one for one in (source.matrix, target.matrix)
            )
            writer.writerows([*row, *labels] for row, labels in zip(x.tolist(), y.tolist(), strict=True))


def _write_images(path: Path, parts: Sequence[Examples]) -> None:
    """Every second pixel of every second line, so that a run takes seconds."""
    images: list[Any] = [part.source for part in parts]
    masks: list[Any] = [part.target for part in parts]
    np.savez(
        path,
        images=np.concatenate([one.images[..., ::2, ::2].transpose(0, 2, 3, 1) for one in images]),
        masks=np.concatenate([one.masks[..., ::2, ::2] for one in masks]),
    )
