"""Runs a grid of cells over seeds, several at a time, and keeps what is finished."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

from lossnet.build import default_loss
from lossnet.recipes import recipe_settings
from lossnet.run import Run, find_device, train
from lossnet.runs import markdown, spread, structure_of, train_many
from lossnet.settings import Settings

__all__ = [
    "Cell",
    "carried_out",
    "chance",
    "differences",
    "finished",
    "gains",
    "markdown",
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
    results = finished(store)
    done = {_key_of(result) for result in results}
    groups: dict[tuple[object, ...], list[tuple[str, Run]]] = {}
    together, wanted = find_device(device) != "cpu" and not keep_models, set()
    for seed in range(seeds):
        for cell in cells:
            folder = run_folder(output, cell, seed) if keep_models else None
            settings = cell.settings()
            run = Run(
                cell.data,
                cell.method,
                cell.loss or default_loss(cell.method),
                settings,
                seed=seed,
                output=folder,
                data_dir=data_dir,
                device=device,
                progress=False,
            )
            names = cell.method, cell.loss or default_loss(cell.method)
            key = _key(cell.title, cell.data, *names, seed, dataclasses.asdict(settings))
            wanted.add(key)
            if key not in done:
                # A GPU trains as many seeds as there are in the time of two or three, a core does not.
                group = (cell.data, structure_of(run)) if together else (cell.title, cell.data, seed)
                groups.setdefault(group, []).append((cell.title, run))
    metric, heading = columns[0]

    def line(result: dict[str, Any]) -> str:
        value = f"{heading} {_value(result, metric):.2f}"
        return f"{result['dataset']}, {result['title']}, seed {result['seed']}: {value}"

    results += carried_out([partial(_work, group) for group in groups.values()], store, jobs, line)
    # Results of other settings may lie in the same file: a table must not mix them.
    return [result for result in results if _key_of(result) in wanted]


def carried_out(
    tasks: Sequence[Callable[[], list[dict[str, Any]]]],
    store: Path,
    jobs: int,
    line: Callable[[dict[str, Any]], str],
) -> list[dict[str, Any]]:
    """Results of tasks, several at a time; a task's go to the end of ``store`` as soon as they are there."""
    results: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    console = Console(stderr=True)
    with (
        Progress(console=console, disable=not tasks) as progress,
        ProcessPoolExecutor(jobs, mp_context=context) as pool,
    ):
        bar = progress.add_task("runs", total=len(tasks))
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                found = future.result()
                results += found
                with store.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(result) + "\n" for result in found)
                progress.advance(bar)
                for result in found:
                    progress.console.print(f"{line(result)} in {result['seconds']:.0f} s", highlight=False)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


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


def _key(title: str, data: str, method: str, loss: str, seed: int, settings: dict[str, Any]) -> str:
    """What makes a run the same run."""
    return json.dumps([title, data, method, loss, seed, settings], sort_keys=True)


def _key_of(result: dict[str, Any]) -> str:
    names = (result[name] for name in ("title", "dataset", "method", "loss", "seed"))
    return _key(*names, settings_of(result))


def settings_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result's settings, and defaults of those that are younger than it: these change nothing."""
    return {**dataclasses.asdict(Settings()), **result["settings"]}


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
