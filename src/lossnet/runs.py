"""Many runs on the same data: seeds and values of settings, at once where that is possible."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lossnet.build import AUTO
from lossnet.files import write_text
from lossnet.loading import Loaded
from lossnet.run import (
    Run,
    check_folder,
    check_unused,
    find_device,
    finish,
    identity_of,
    measure,
    new_model,
    parts_of,
    read,
    resolve,
    settled,
    source_of,
    train,
    trainer_of,
)
from lossnet.scores import headlines
from lossnet.settings import Settings, all_settings, values_from_text
from lossnet.training import NonFiniteLoss, fit_together, stacking_blocker

__all__ = ["markdown", "parse_sweep", "spread", "structure_of", "summary", "train_many", "variants"]


def variants(run: Run, seeds: int = 1, sweep: Mapping[str, Sequence[Any]] | None = None) -> list[Run]:
    """Return a run for each of ``seeds`` seeds, from the run's own on, and each combination of ``sweep``.

    Each gets a folder of its own in ``run.output``.

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
        changed = Settings.of({**_values(run), **changes})
        for seed in range(run.seed, run.seed + seeds):
            words = [f"{name}={value}" for name, value in {**changes, "seed": seed}.items()]
            folder = re.sub(r"[^\w.=+-]", "-", "-".join(words))
            output = None if run.output is None else Path(run.output) / folder
            made.append(dataclasses.replace(run, settings=changed, seed=seed, output=output))
    return made


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Return the name of a setting and its values from ``NAME=A,B,C``.

    >>> parse_sweep("task_lr=1e-3,0.1")
    ('task_lr', [0.001, 0.1])
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    try:
        if not equals or not all(value.strip() for value in values.split(",")):
            raise ValueError("write a setting and its values as NAME=A,B,C")
        return name, values_from_text(name, values)
    except ValueError as error:
        raise ValueError(f"--sweep {text}: {error}") from None


def train_many(
    runs: Sequence[Run], data: Loaded | None = None, say: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Train runs that differ in seed and settings; return their results, in order.

    Those that differ in seeds and stackable settings only are trained together where their networks can be
    stacked, else one after another, and ``say`` is told why.  Each run writes its folder as
    `lossnet.run.train` does, as soon as it has ended; the folder around them gets ``results.jsonl`` and
    ``table.md``.

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
    if any(source_of(run) != source_of(runs[0]) for run in runs):
        raise ValueError("runs that are trained together must be on the same data, split and labels")
    for run in runs:
        check_unused(run.output, run.resume, several=True)
        check_folder(run.output, run.resume)
    find_device(runs[0].device)
    results: dict[int, dict[str, Any]] = {}
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        finished = _finished(run)
        if finished is not None:
            results[index] = finished
        else:
            groups.setdefault(structure_of(run), []).append(index)
    swept = _swept(runs)
    titles = [_title(run, swept) for run in runs]
    diverged: dict[int, NonFiniteLoss] = {}
    loaded: dict[tuple[str, int | None], Loaded] = {}
    for group in groups.values():
        first = runs[group[0]]
        key = settled(first)[2].features, _draw(first)  # features of tokens are read with the data
        if data is None and key not in loaded:
            loaded[key] = read(first)
        own = data or loaded[key]
        _check_digests(runs, {i: one for i, one in results.items() if _draw(runs[i]) == key[1]}, own)
        for place, outcome in _outcomes([runs[index] for index in group], own, say):
            index = group[place]
            if isinstance(outcome, NonFiniteLoss):
                diverged[index] = outcome
                say(f"{titles[index]} diverged: {outcome}")
                continue
            results[index] = outcome
            if runs[index].progress:
                say(f"{titles[index]} is finished after {outcome['epochs']} epochs")
            _write_summary(runs, results, swept)
    if diverged:
        named = "; ".join(f"{titles[index]}: {error}" for index, error in diverged.items())
        raise NonFiniteLoss(f"{len(diverged)} of {len(runs)} runs diverged ({named})")
    return [results[index] for index in range(len(runs))]


def _values(run: Run) -> dict[str, Any]:
    return dataclasses.asdict(settled(run)[2])


def _finished(run: Run) -> dict[str, Any] | None:
    """Return the result in a run's folder, if there is one; raise a ValueError for another run's."""
    path = None if run.output is None else Path(run.output) / "result.json"
    if path is None or not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("source") != source_of(run):
        what = f"{path.parent} holds a run on other data ({result.get('source')}, not {source_of(run)})"
        raise ValueError(f"{what}; choose another --output")
    wanted = {"method": run.method, "loss": run.loss, "seed": run.seed, "settings": _values(run)}
    parts = parts_of(Run(run.data)) | result.get("parts", {})  # older versions noted fewer, or none
    if any(result.get(name) != value for name, value in wanted.items()) or parts != parts_of(run):
        raise ValueError(f"{path.parent} holds a run with other settings; choose another --output")
    return result


def _check_digests(runs: Sequence[Run], results: Mapping[int, Mapping[str, Any]], data: Loaded) -> None:
    """Raise a ValueError if finished runs were trained on other data of the same name."""
    for index, result in results.items():
        before = result.get("data_digest")
        if before != data.digest:
            what = f"on data of this name with another content (digest {before}, now {data.digest})"
            if before is None:
                what = "of an older version, which did not note its data_digest"
            raise ValueError(f"{runs[index].output} holds a run {what}; choose another --output")


def structure_of(run: Run) -> str:
    """Return a key that is the same for runs on the same data that may be trained together.

    >>> runs = variants(Run("digits-pairs", "seal"), sweep={"task_lr": [0.1, 0.2]})
    >>> len({structure_of(run) for run in runs})
    1
    """
    values = _values(run)
    same = {name: values[name] for name, setting in all_settings().items() if not setting.stackable}
    return json.dumps([run.method, run.loss, bool(values["implicit_weight"]), same, _draw(run)])


def _draw(run: Run) -> int | None:
    """Return the seed that draws the instances with labels, where only some have any."""
    return None if run.labelled is None else run.seed


def _title(run: Run, swept: Sequence[str]) -> str:
    """Return the name of a run's folder, or the settings and the seed that distinguish it."""
    if run.output is not None:
        return Path(run.output).name
    return ", ".join([*(f"{name}={_values(run)[name]}" for name in swept), f"seed {run.seed}"])


def _swept(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which runs differ."""
    first, *others = map(_values, runs)
    return [name for name in first if any(values[name] != first[name] for values in others)]


def _outcomes(
    runs: Sequence[Run], data: Loaded, say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any] | NonFiniteLoss]]:
    """Yield the indices and results of runs of one structure, as they end."""
    if len(runs) > 1:
        blocker = _blocker(runs, data)
        if blocker is None:
            yield from _together(runs, data)
            return
        say(f"{len(runs)} runs one after another: {blocker}")
    for index, run in enumerate(runs):
        started = run.output is not None and (Path(run.output) / "checkpoint.safetensors").exists()
        try:
            yield index, train(dataclasses.replace(run, resume=run.resume and started), data)
        except NonFiniteLoss as error:
            yield index, error


def _blocker(runs: Sequence[Run], data: Loaded) -> str | None:
    """Return why runs cannot be trained together, or None."""
    if runs[0].method == AUTO:
        return "auto trains its methods one after another"
    if settled(runs[0])[2].conditional != "none":
        return "models with an engine for known parts are trained one after another"
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
        fitted = measure(models[index], data, trainers[index], outcome)
        yield index, finish(runs[index], data, fitted)
        models[index].method.to("cpu")  # make room


# ---------------------------------------------------------------- tables


def summary(
    results: Sequence[Mapping[str, Any]], swept: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of a table: mean ± deviation over seeds, for each combination of settings.

    The last columns have the seeds and the epoch that was kept of each.

    >>> run = {"seed": 0, "best_epoch": 7, "settings": {"clip": 1.0}, "metrics": {"valid": {"f1": 0.5}}}
    >>> summary([run, {**run, "seed": 1}], ["clip"])
    (['clip', 'valid f1', 'seeds', 'kept epochs'], [['1.0', '0.5000 ± 0.0000', '0, 1', '7, 7']])
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(tuple(str(result["settings"][name]) for name in swept), []).append(result)
    parts = [(part, metric) for part in ("valid", "test") for metric in headlines()]
    parts = [(p, m) for p, m in parts if all(m in result["metrics"].get(p, {}) for result in results)]
    rows = []
    for values, mine in groups.items():
        figures = [spread([result["metrics"][p][m] for result in mine], digits=4) for p, m in parts]
        listed = [", ".join(str(one.get(name, "–")) for one in mine) for name in ("seed", "best_epoch")]
        rows.append([*values, *figures, *listed])
    return [*swept, *(f"{part} {metric}" for part, metric in parts), "seeds", "kept epochs"], rows


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return mean and standard deviation for a table.

    >>> spread([1.0, 2.0]), spread([3.0])
    ('1.50 ± 0.71', '3.00 (one seed)')
    """
    if len(values) == 1:
        return f"{values[0]:.{digits}f} (one seed)"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    top, *lines = [f"| {' | '.join(row)} |" for row in (heading, *rows)]
    return "\n".join([top, "|" + "---|" * len(heading), *lines])


def _write_summary(
    runs: Sequence[Run], results: Mapping[int, Mapping[str, Any]], swept: Sequence[str]
) -> None:
    """Write the results so far, and a table of them, to the folder around the runs' own."""
    if runs[0].output is None:
        return
    folder, finished = Path(runs[0].output).parent, [results[index] for index in sorted(results)]
    write_text(folder / "results.jsonl", "".join(json.dumps(result) + "\n" for result in finished))
    write_text(folder / "table.md", markdown(*summary(finished, swept)) + "\n")
