"""Many runs on the same data: seeds and values of settings, at once where that is possible."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lossnet.files import write_text
from lossnet.loading import Loaded
from lossnet.run import (
    Fitted,
    Run,
    check_folder,
    find_device,
    finish,
    identity_of,
    new_model,
    read,
    resolve,
    settled,
    source_of,
    train,
    trainer_of,
    tune_and_measure,
)
from lossnet.scores import headlines
from lossnet.settings import Settings, checked
from lossnet.training import NonFiniteLoss, fit_together, stacking_blocker

__all__ = ["markdown", "parse_sweep", "spread", "summary", "train_many", "variants"]

#: settings in which runs that are trained together may differ
NUMBERS = (
    "energy_weight",
    "ce_weight",
    "score_weight",
    "implicit_weight",
    "energy_lr",
    "task_lr",
    "weight_decay",
    "clip",
    "epochs",
    "patience",
    "plateau_patience",
    "plateau_factor",
)


def variants(run: Run, seeds: int = 1, sweep: Mapping[str, Sequence[Any]] | None = None) -> list[Run]:
    """The run with so many seeds, from its own on, and each combination of the settings in ``sweep``.

    Each has a folder of its own in ``run.output``.

    >>> run = Run("digits-pairs", settings=Settings(), seed=3, output="runs/two")
    >>> [(one.seed, one.settings.task_lr, one.output.name) for one in variants(run, 2, {"task_lr": [0.1]})]
    [(3, 0.1, 'task_lr=0.1-seed=3'), (4, 0.1, 'task_lr=0.1-seed=4')]
    """
    if seeds < 1:
        raise ValueError(f"--seeds must be 1 or more, not {seeds}")
    run = resolve(run)
    sweep = sweep or {}
    made = []
    for values in itertools.product(*sweep.values()):
        changes = dict(zip(sweep, values, strict=True))
        changed = Settings.of({**dataclasses.asdict(settled(run)[2]), **changes})
        for seed in range(run.seed, run.seed + seeds):
            words = [f"{name}={value}" for name, value in {**changes, "seed": seed}.items()]
            folder = re.sub(r"[^\w.=+-]", "-", "-".join(words))
            output = None if run.output is None else Path(run.output) / folder
            made.append(dataclasses.replace(run, settings=changed, seed=seed, output=output))
    return made


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """A setting's name and the values that it is to have, from ``NAME=A,B,C``.

    >>> parse_sweep("task_lr=1e-3,0.1")
    ('task_lr', [0.001, 0.1])
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not all(value.strip() for value in values.split(",")):
        raise ValueError(f"--sweep {text}: write a setting and its values as NAME=A,B,C")
    try:
        found = [checked({name: yaml.safe_load(value)})[name] for value in values.split(",")]
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"--sweep {text}: {error}") from error
    if len(set(found)) < len(found):
        raise ValueError(f"--sweep {text}: a value is given twice")
    return name, found


def train_many(
    runs: Sequence[Run], data: Loaded | None = None, say: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Trains runs that differ in seed and settings; their results, in order.

    Those that differ in seeds and `NUMBERS` only are trained together where their networks can be stacked,
    else one after another, and ``say`` is told why.  Each run leaves in its folder what `lossnet.run.train`
    leaves, as soon as it has ended; the folder around them has ``results.jsonl`` and ``table.md``.

    With ``resume``, runs with a result are not repeated and others go on from their checkpoints.  If some
    diverge, the others are finished before `NonFiniteLoss` names them.

    >>> run = Run("digits-pairs", "cross-entropy", settings=Settings(epochs=1), progress=False)
    >>> results = train_many(variants(run, seeds=2))
    >>> [result["seed"] for result in results]
    [0, 1]
    """
    if not runs:
        return []
    say = say or (lambda line: print(line, file=sys.stderr))
    runs = [resolve(run) for run in runs]
    _check_folders(runs)
    find_device(runs[0].device)
    results: dict[int, dict[str, Any]] = {}
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        finished = _finished(run)
        if finished is not None:
            results[index] = finished
        else:
            groups.setdefault(_structure(run), []).append(index)
    titles = _titles(runs)
    diverged: dict[int, NonFiniteLoss] = {}
    loaded: dict[str, Loaded] = {}
    for group in groups.values():
        first = runs[group[0]]
        features = (settled(first)[2]).features  # of tokens, which are read with the data
        if data is None and features not in loaded:
            loaded[features] = read(first)
        own = data or loaded[features]
        _check_digests(runs, results, own)
        for place, outcome in _outcomes([runs[index] for index in group], own, say):
            index = group[place]
            if isinstance(outcome, NonFiniteLoss):
                diverged[index] = outcome
                say(f"{titles[index]} diverged: {outcome}")
                continue
            results[index] = outcome
            if runs[index].progress:
                say(f"{titles[index]} is finished after {outcome['epochs']} epochs")
            _write_summary(runs, results)
    if diverged:
        named = "; ".join(f"{titles[index]}: {error}" for index, error in diverged.items())
        raise NonFiniteLoss(f"{len(diverged)} of {len(runs)} runs diverged ({named})")
    return [results[index] for index in range(len(runs))]


def _check_folders(runs: Sequence[Run]) -> None:
    """Refuses folders that hold something, unless it is to be continued, and runs that are not comparable."""
    if any(source_of(run) != source_of(runs[0]) for run in runs):
        raise ValueError("runs that are trained together must be on the same data, split and labels")
    folders = [Path(run.output) for run in runs if run.output is not None and not run.resume]
    for folder in folders:
        if (folder / "result.json").exists() or (folder / "checkpoint.safetensors").exists():
            raise ValueError(f"{folder} holds a run; continue with --resume, or choose another --output")
    if any(run.resume and run.output is None for run in runs):
        raise ValueError("resuming needs the folder of the interrupted runs: give their --output")
    for run in runs:
        check_folder(run.output)


def _finished(run: Run) -> dict[str, Any] | None:
    """The result in a run's folder, if it is that run's."""
    path = None if run.output is None else Path(run.output) / "result.json"
    if path is None or not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("source") != source_of(run):
        what = f"{path.parent} holds a run on other data ({result.get('source')}, not {source_of(run)})"
        raise ValueError(f"{what}; choose another --output")
    wanted = (run.method, run.loss, run.seed, dataclasses.asdict(settled(run)[2]))
    if tuple(result.get(name) for name in ("method", "loss", "seed", "settings")) != wanted:
        raise ValueError(f"{path.parent} holds a run with other settings; choose another --output")
    return result


def _check_digests(runs: Sequence[Run], results: Mapping[int, Mapping[str, Any]], data: Loaded) -> None:
    """Refuses to train more runs beside those that were trained on something else under the same name."""
    for index, result in results.items():
        before = result.get("data_digest")
        if before != data.digest:
            what = f"on data of this name with another content (digest {before}, now {data.digest})"
            if before is None:
                what = "of an older version, which did not note its data_digest"
            raise ValueError(f"{runs[index].output} holds a run {what}; choose another --output")


def _structure(run: Run) -> str:
    """What runs that are trained together have in common."""
    settings = dataclasses.asdict(settled(run)[2])
    same = {name: value for name, value in settings.items() if name not in NUMBERS}
    return json.dumps([run.method, run.loss, bool(settings["implicit_weight"]), same])


def _titles(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its folder, or what tells it from the others."""
    swept, titles = _swept(runs), []
    for run in runs:
        settings = dataclasses.asdict(settled(run)[2])
        words = [*(f"{name}={settings[name]}" for name in swept), f"seed {run.seed}"]
        titles.append(", ".join(words) if run.output is None else Path(run.output).name)
    return titles


def _swept(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ."""
    first, *others = (dataclasses.asdict(settled(run)[2]) for run in runs)
    return [name for name in first if any(settings[name] != first[name] for settings in others)]


def _outcomes(
    runs: Sequence[Run], data: Loaded, say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any] | NonFiniteLoss]]:
    """Results of runs of one structure by their index, as they end."""
    why = _why_one_by_one(runs, data) if len(runs) > 1 else ""
    if why is None:
        yield from _together(runs, data)
        return
    if why:
        say(f"{len(runs)} runs one after another: {why}")
    for index, run in enumerate(runs):
        started = run.output is not None and (Path(run.output) / "checkpoint.safetensors").exists()
        try:
            yield index, train(dataclasses.replace(run, resume=run.resume and started), data)
        except NonFiniteLoss as error:
            yield index, error


def _why_one_by_one(runs: Sequence[Run], data: Loaded) -> str | None:
    if runs[0].track is not None:
        return "trackers follow one run at a time"
    if find_device(runs[0].device) == "cpu" and getattr(data.train.source, "is_sparse", False):
        return "a CPU is busy with a single run on sparse inputs"
    return stacking_blocker([trainer_of(new_model(run, data), run) for run in runs[:2]])


def _together(runs: Sequence[Run], data: Loaded) -> Iterator[tuple[int, dict[str, Any] | NonFiniteLoss]]:
    device = find_device(runs[0].device)
    models = [new_model(run, data) for run in runs]
    trainers = [trainer_of(model, run, identity_of(data)) for model, run in zip(models, runs, strict=True)]
    parts = data.train.on(device), data.valid.on(device)
    ended = fit_together(trainers, *parts, resume=runs[0].resume, progress=runs[0].progress)
    for index, outcome in ended:
        if isinstance(outcome, NonFiniteLoss):
            yield index, outcome
            continue
        started = time.monotonic()
        metrics = tune_and_measure(models[index], data, device)
        seconds = round(trainers[index].seconds + time.monotonic() - started, 2)
        fitted = Fitted(models[index], metrics, outcome, trainers[index].steps_taken, seconds)
        yield index, finish(runs[index], data, fitted)
        models[index].method.to("cpu")  # make room


# ---------------------------------------------------------------- tables


def summary(
    results: Sequence[Mapping[str, Any]], swept: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of a table: for each combination of the swept settings, mean ± std over its seeds.

    >>> run = {"seed": 0, "settings": {"clip": 1.0}, "metrics": {"valid": {"f1": 0.5}, "test": {"f1": 0.25}}}
    >>> summary([run, {**run, "seed": 1}], ["clip"])
    (['clip', 'valid f1', 'test f1', 'seeds'], [['1.0', '0.5000 ± 0.0000', '0.2500 ± 0.0000', '0, 1']])
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(tuple(str(result["settings"][name]) for name in swept), []).append(result)
    parts = [(part, metric) for part in ("valid", "test") for metric in headlines()]
    parts = [(p, m) for p, m in parts if all(m in result["metrics"].get(p, {}) for result in results)]
    rows = []
    for values, mine in groups.items():
        figures = [spread([result["metrics"][p][m] for result in mine], digits=4) for p, m in parts]
        rows.append([*values, *figures, ", ".join(str(result["seed"]) for result in mine)])
    return [*swept, *(f"{part} {metric}" for part, metric in parts), "seeds"], rows


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation, as a table has them.

    >>> spread([1.0, 2.0]), spread([3.0])
    ('1.50 ± 0.71', '3.00 (one seed)')
    """
    if len(values) == 1:
        return f"{values[0]:.{digits}f} (one seed)"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [heading, ["---"] * len(heading), *rows]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    text[1] = "|" + "---|" * len(heading)
    return "\n".join(text)


def _write_summary(runs: Sequence[Run], results: Mapping[int, Mapping[str, Any]]) -> None:
    """What is finished so far, in the folder around the runs' own."""
    if runs[0].output is None:
        return
    folder, found = Path(runs[0].output).parent, [results[index] for index in sorted(results)]
    lines = "".join(json.dumps(result) + "\n" for result in found)
    write_text(folder / "results.jsonl", lines)
    write_text(folder / "table.md", markdown(*summary(found, _swept(runs))) + "\n")
