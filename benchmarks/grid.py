"""Runs a grid of cells over seeds, several at a time, and keeps what is finished."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

from lossnet.build import METHODS, default_loss
from lossnet.recipes import recipe_settings
from lossnet.run import Run, find_device, train
from lossnet.runs import markdown, spread, structure_of, train_many
from lossnet.settings import Settings

__all__ = [
    "Cell",
    "carried_out",
    "chance",
    "differences",
    "expected_seconds",
    "finished",
    "gains",
    "is_current",
    "listing",
    "markdown",
    "models_are_there",
    "of_sets",
    "publish",
    "run_folder",
    "run_grid",
    "show",
    "summarise",
    "with_error",
]

#: columns of a table: metric, heading
COLUMNS = (("f1", "F1 at 0.5"), ("f1_tuned", "F1 tuned"), ("f1_expected", "F1 expected"))
#: what runs did before there was a setting for it, where that is not today's default
EARLIER = {"schedule": "grouped", "regression_term": "energy"}
Task = Callable[[], list[dict[str, Any]]]


@dataclass(frozen=True)
class Cell:
    """One row of a table: a data set, a method, and what differs from its recipe."""

    title: str
    data: str
    method: str
    loss: str = ""
    recipe: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    published: str = ""

    def settings(self) -> Settings:
        """The named recipe, or the data set's own, with this cell's changes."""
        loss = self.loss or default_loss(self.method)
        recipe = recipe_settings(self.data, self.method, loss, self.recipe)
        return Settings(**{**recipe, **self.changes})


def run_folder(output: Path, cell: Cell, seed: int) -> Path:
    """Where a cell's run leaves its model."""
    letters = "".join(c if c.isalnum() else " " for c in cell.title.lower())
    return output / "-".join([cell.data, *letters.split(), str(seed)])


def run_grid(
    cells: Sequence[Cell],
    seeds: int,
    output: Path,
    data_dir: Path | None = None,
    device: str = "auto",
    jobs: int = 1,
    keep_models: bool = False,
    columns: Sequence[tuple[str, str]] = COLUMNS,
) -> list[dict[str, Any]]:
    """All results, in ``output/results.jsonl`` too; those already there with the same settings are kept."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    results, wanted = finished(store), {}
    for seed in range(seeds):
        for cell in cells:
            wanted[_key(cell, seed)] = dataclasses.asdict(cell.settings())
    # Results of other settings may lie in the same file: a table must not mix them.
    results = [one for one in results if _is_wanted(one, wanted)]
    done = {_key_of(one) for one in results}
    groups: dict[tuple[object, ...], list[tuple[str, Run]]] = {}
    together = find_device(device) != "cpu" and not keep_models
    for seed in range(seeds):
        for cell in cells:
            if _key(cell, seed) in done:
                continue
            folder = run_folder(output, cell, seed) if keep_models else None
            run = Run(
                cell.data,
                cell.method,
                cell.loss or default_loss(cell.method),
                cell.settings(),
                seed=seed,
                output=folder,
                data_dir=data_dir,
                device=device,
                progress=False,
            )
            # A GPU trains as many seeds as there are in the time of two or three, a core does not.
            group = (cell.data, structure_of(run)) if together else (cell.title, cell.data, seed)
            groups.setdefault(group, []).append((cell.title, run))
    metric, heading = columns[0]

    def line(result: dict[str, Any]) -> str:
        value = f"{heading} {_value(result, metric):.2f}"
        return f"{result['dataset']}, {result['title']}, seed {result['seed']}: {value}"

    return results + carried_out([partial(_work, group) for group in groups.values()], store, jobs, line)


_LISTED: list[list[tuple[Path, Task]]] = []


@contextmanager
def listing() -> Iterator[list[tuple[Path, Task]]]:
    """List the tasks that `carried_out` is given, with their stores, instead of carrying them out."""
    _LISTED.append([])
    try:
        yield _LISTED[-1]
    finally:
        _LISTED.pop()


def carried_out(
    tasks: Sequence[Task], store: Path, jobs: int, line: Callable[[dict[str, Any]], str]
) -> list[dict[str, Any]]:
    """Results of tasks, several at a time; a task's go to the end of ``store`` as soon as they are there."""
    if _LISTED:
        _LISTED[-1].extend((store, task) for task in tasks)
        return []
    results: list[dict[str, Any]] = []
    earlier = finished(store)
    context = multiprocessing.get_context("spawn")
    console = Console(stderr=True)
    with (
        # Runs take minutes: the time left is judged by all of them, not by the last half minute.
        Progress(console=console, disable=not tasks, speed_estimate_period=7 * 86400) as progress,
        ProcessPoolExecutor(jobs, mp_context=context) as pool,
    ):
        seconds = {pool.submit(task): expected_seconds(task, earlier) or 1.0 for task in tasks}
        bar = progress.add_task("runs", total=sum(seconds.values()))
        try:
            for future in as_completed(seconds):
                found = future.result()
                results += found
                with store.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(result) + "\n" for result in found)
                progress.advance(bar, seconds[future])
                for result in found:
                    progress.console.print(f"{line(result)} in {result['seconds']:.0f} s", highlight=False)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def expected_seconds(task: Task, earlier: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean time of the earlier runs that have most in common with a task, None without any.

    In common are names (data set, title, method, loss) and numbers (seed, labels) among its arguments.

    >>> earlier = [{"dataset": "a", "seed": 0, "seconds": 2.0}, {"dataset": "b", "seed": 0, "seconds": 8.0}]
    >>> expected_seconds(partial(finished, ("b", 1)), earlier)
    8.0
    """
    wanted = _words(task)
    likeness = [
        sum(3 if isinstance(value, str) else 1 for value in wanted & _words([*one.values()]))
        for one in earlier
        if "seconds" in one
    ]
    pairs = zip(likeness, (one["seconds"] for one in earlier if "seconds" in one), strict=True)
    nearest = [seconds for count, seconds in pairs if count == max(likeness)]
    return statistics.fmean(nearest) if nearest else None


def _words(value: Any) -> set[str | int]:
    """Return the names and whole numbers of a task's arguments."""
    if isinstance(value, str | int):
        return {value}
    parts: Sequence[Any] = ()
    if isinstance(value, partial):
        parts = value.args
    elif isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, Mapping):
        parts = [*value.values()]
    elif isinstance(value, Run):
        parts = value.method, value.loss, value.data, value.seed
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, "title", "")]
    return set().union(*map(_words, parts))


def models_are_there(cells: Sequence[Cell], seeds: int, output: Path) -> bool:
    """Whether all models of some cells are there: results that were made elsewhere come without."""
    return all(run_folder(output, cell, seed).is_dir() for cell in cells for seed in range(seeds))


def _work(group: Sequence[tuple[str, Run]]) -> list[dict[str, Any]]:
    torch.set_num_threads(1)  # these networks are too small to share
    runs = [run for _, run in group]
    results = train_many(runs) if len(runs) > 1 else [train(runs[0])]
    return [{"title": title, **result} for (title, _), result in zip(group, results, strict=True)]


def finished(store: Path) -> list[dict[str, Any]]:
    """Results that are in a file, if there is one."""
    if not store.exists():
        return []
    return [json.loads(line) for line in store.read_text(encoding="utf-8").splitlines() if line]


Key = tuple[str, str, str, str, int]


def settings_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result's settings, and defaults of those that are younger than it: these change nothing."""
    return {**dataclasses.asdict(Settings()), **result["settings"]}


def _key(cell: Cell, seed: int) -> Key:
    """What makes a run the same run, if its settings are current."""
    return cell.title, cell.data, cell.method, cell.loss or default_loss(cell.method), seed


def _key_of(result: Mapping[str, Any]) -> Key:
    title, data, method, loss, seed = (
        result[name] for name in ("title", "dataset", "method", "loss", "seed")
    )
    return title, data, method, loss, seed


def _is_wanted(result: Mapping[str, Any], wanted: Mapping[Key, Mapping[str, Any]]) -> bool:
    now = wanted.get(_key_of(result))
    return now is not None and is_current(result["settings"], now, result["method"], result["loss"])


def is_current(then: Mapping[str, Any], now: Mapping[str, Any], method: str, loss: str) -> bool:
    """Whether a run with settings ``then`` would be the same with those of today, for what its method uses.

    Settings that have come since then had their default, or what runs did before that.

    >>> now = dataclasses.asdict(Settings(inference_steps=7))
    >>> is_current({"clip": 10.0}, now, "seal", "nce"), is_current({"clip": 1.0}, now, "seal", "nce")
    (True, False)
    >>> is_current({"clip": 10.0}, now, "spen", "margin")  # which infers
    False
    """
    then = {**dataclasses.asdict(Settings()), **EARLIER, **then}
    unused = _unused(method, loss)
    if then["energy_steps"] == then["task_steps"] == 1:
        unused = (*unused, "schedule")  # there is but one order
    return all(then[name] == value for name, value in now.items() if not name.startswith(unused))


def _unused(method: str, loss: str) -> tuple[str, ...]:
    """Return how the names of settings begin that a method has no use for."""
    if method not in METHODS:  # auto, which tries several
        return ()
    spec = METHODS[method]
    used = (*signature(spec.method).parameters, *spec.search)
    unused = [name for name in ("inference", "schedule") if not any(one.startswith(name) for one in used)]
    unused += [] if "regression" in loss else ["regression_term"]
    return (*unused, *([] if "implicit" in method else ["implicit_", "solver"]))


# ---------------------------------------------------------------- tables


def summarise(
    cells: Sequence[Cell],
    results: Sequence[dict[str, Any]],
    columns: Sequence[tuple[str, str]] = COLUMNS,
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: mean ± standard deviation over seeds, in points.

    Metrics are those of test data, or of validation data where a column says ``valid.NAME``.
    """
    heading = ["data", "method", *(name for _, name in columns), "seconds", "seeds", "published"]
    rows = []
    for cell in cells:
        mine = [r for r in results if (r["title"], r["dataset"]) == (cell.title, cell.data)]
        if not mine:
            continue
        values = [spread([_value(r, metric) for r in mine]) for metric, _ in columns]
        seconds = f"{statistics.mean(r['seconds'] for r in mine):.0f}"
        seeds = ", ".join(str(r["seed"]) for r in sorted(mine, key=lambda r: int(r["seed"])))
        rows.append([cell.data, cell.title, *values, seconds, seeds, cell.published])
    return heading, rows


def of_sets(
    title: str,
    sets: Sequence[str],
    seeds: int,
    work: Callable[[str, int], list[dict[str, Any]]],
    heading: Sequence[str],
    table: Callable[[Sequence[dict[str, Any]]], list[list[str]]],
    output: Path,
    jobs: int,
) -> None:
    """Do some work for each data set and seed; write ``results.jsonl`` and ``table.md``, and show it."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    results = finished(store)
    done = {(one["dataset"], one["seed"]) for one in results}
    cases = [(name, seed) for seed in range(seeds) for name in sets if (name, seed) not in done]
    tasks = [partial(work, *case) for case in cases]
    results += carried_out(tasks, store, jobs, lambda one: f"{one['dataset']}, seed {one['seed']}")
    (output / "table.md").write_text(f"{markdown(heading, table(results))}\n", encoding="utf-8")
    show(title, heading, table(results))


def _value(result: dict[str, Any], metric: str) -> float:
    """In points, of test data or, as ``valid.NAME``, of validation data."""
    part, _, name = metric.rpartition(".")
    return 100 * float(result["metrics"][part or "test"][name])


def gains(results: Sequence[dict[str, Any]], cell: Cell, other: Cell, metric: str) -> list[float]:
    """What a cell has more than another, in points, seed by seed."""
    first, second = (
        {r["seed"]: _value(r, metric) for r in results if (r["title"], r["dataset"]) == (one.title, one.data)}
        for one in (cell, other)
    )
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def with_error(values: Sequence[float], digits: int = 2) -> str:
    """The mean of differences, and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):+.{digits}f} ({error:.{digits}f})".replace("-", "−")


def chance(values: Sequence[float]) -> str:
    """The p-value of a paired t-test over differences, where they differ."""
    return f"{stats.ttest_1samp(values, 0).pvalue:.2f}" if len(set(values)) > 1 else ""


def differences(
    pairs: Sequence[tuple[Cell, Cell]],
    results: Sequence[dict[str, Any]],
    columns: Sequence[tuple[str, str]],
    tested: str,
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: what the first cell of a pair has more than the second, paired by seed.

    Means with their standard errors, and the p-value of one metric.
    """
    heading = ["data", "method", *(name for _, name in columns), f"p, {dict(columns)[tested]}", "seeds"]
    rows = []
    for cell, other in pairs:
        found = {metric: gains(results, cell, other, metric) for metric, _ in columns}
        if len(found[tested]) > 1:
            shown = [with_error(found[metric]) for metric, _ in columns]
            rows.append([cell.data, cell.title, *shown, chance(found[tested]), str(len(found[tested]))])
    return heading, rows


def publish(
    title: str,
    cells: Sequence[Cell],
    results: Sequence[dict[str, Any]],
    output: Path,
    columns: Sequence[tuple[str, str]] = COLUMNS,
) -> None:
    """The table of some cells, as ``output/table.md`` and on the terminal."""
    heading, rows = summarise(cells, results, columns)
    (output / "table.md").write_text(markdown(heading, rows) + "\n", encoding="utf-8")
    show(title, heading, rows)


def show(title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The same table on the terminal, one for each data set."""
    for data in dict.fromkeys(row[0] for row in rows):
        mine = [list(row[1:]) for row in rows if row[0] == data]
        filled = [i for i in range(len(heading) - 1) if any(row[i] for row in mine)]
        table = Table(*(heading[i + 1] for i in filled), title=f"{data}: {title}")
        for row in mine:
            table.add_row(*(row[i] for i in filled))
        Console(highlight=False).print(table)
