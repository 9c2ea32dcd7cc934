"""Every benchmark that a page stands on, the cheapest first: only runs that are missing or outdated.

The lines of ``docs/results/`` are where each begins.  A run is outdated if its settings are no longer those
of its row, as far as its method uses them.  Times are those of earlier runs that are like a missing one, on
whatever machine they ran; measurements of time and memory, which are one file each, are kept as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks.catalogue import BENCHMARKS
from benchmarks.grid import expected_seconds, finished, listing, markdown

__all__ = ["Missing", "missing", "overview", "run"]

RESULTS = Path(__file__).parents[1] / "docs" / "results"
HEADING = ("benchmark", "runs there", "runs missing or outdated", "expected")


class Missing(NamedTuple):
    """What a benchmark lacks: runs, and their seconds, None where no earlier run tells."""

    name: str
    there: int
    runs: int
    seconds: float | None
    #: whether what is missing chooses what is run next
    more: bool


def run(given: argparse.Namespace, dry_run: bool = False) -> None:
    """Lists what is missing and runs it, each benchmark in a folder of its file's name in ``output``."""
    console = Console(stderr=True, highlight=False)
    found = sorted(missing(given), key=lambda one: (one.seconds is None, one.seconds or 0.0))
    Console(highlight=False).print(overview(found), markup=False)
    for place, one in enumerate(() if dry_run else (one for one in found if one.runs or one.more)):
        left = [other.seconds or 0.0 for other in found[found.index(one) :]]
        console.print(
            f"{place + 1}: {one.name}; {_duration(sum(left) / given.jobs)} left for all", style="bold"
        )
        begin(one.name, given.output)
        BENCHMARKS[one.name].run(_own(given, one.name, given.output))


def begin(name: str, output: Path) -> Path:
    """Copies what is kept of a benchmark to where it goes on, unless it is there, and returns the place."""
    store = _folder(name, output) / "results.jsonl"
    store.parent.mkdir(parents=True, exist_ok=True)
    if not store.exists():
        shutil.copyfile(RESULTS / BENCHMARKS[name].file, store)
    return store


def missing(given: argparse.Namespace) -> Iterator[Missing]:
    """Yield what each benchmark with runs of a page lacks."""
    for name, benchmark in BENCHMARKS.items():
        if not benchmark.file.endswith(".jsonl") or not (RESULTS / benchmark.file).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            store, own = begin(name, Path(folder)), _folder(name, given.output) / "results.jsonl"
            if own.exists():
                shutil.copyfile(own, store)
            lines = finished(store)
            more = False
            with listing() as tasks, contextlib.redirect_stdout(io.StringIO()):
                try:
                    benchmark.run(_own(given, name, Path(folder)))
                except (LookupError, ValueError, TypeError):
                    if not tasks:
                        raise
                    more = True  # what comes next depends on runs that are missing
        seconds = [expected_seconds(task, lines) for _, task in tasks]
        known = [one for one in seconds if one is not None]
        total = sum(known) / len(known) * len(tasks) if known else None if tasks else 0.0
        yield Missing(name, len(lines), len(tasks), total, more)


def overview(found: list[Missing]) -> str:
    """Return what is missing as a table, and the sum of it."""
    rows = [
        [
            one.name,
            str(one.there),
            f"{'at least ' * one.more}{one.runs}",
            "unknown" if one.seconds is None else _duration(one.seconds) if one.seconds else "",
        ]
        for one in found
    ]
    total = sum(one.seconds or 0.0 for one in found)
    last = [
        "all",
        str(sum(one.there for one in found)),
        str(sum(one.runs for one in found)),
        _duration(total),
    ]
    return markdown(HEADING, [*rows, last])


def _folder(name: str, output: Path) -> Path:
    """Where a benchmark goes on; two that keep their results in one file share it."""
    return output / Path(BENCHMARKS[name].file).stem


def _own(given: argparse.Namespace, name: str, output: Path) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(given), "output": _folder(name, output), "methods": None})


def _duration(seconds: float) -> str:
    """Return seconds in words: of a core, so that more jobs take less."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
