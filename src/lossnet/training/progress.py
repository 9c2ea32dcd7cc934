"""A progress bar for training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """A progress bar per epoch with losses, gradient norms and the validation metric."""

    def __init__(self, shown: bool = True) -> None:
        console = Console(stderr=True)
        shown = shown and (console.is_terminal or console.is_jupyter)  # a file would get empty lines
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[values]}"),
            console=console,
            disable=not shown,
            transient=True,
        )
        self._task = self._bar.add_task("", values="")
        self._metric, self._values = "", ""
        self._shown_at = 0.0
        self.shown = shown

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *error: object) -> None:
        if self.shown:  # a bar that is off would still print an empty line before rich 14.3
            self._bar.stop()

    def start_epoch(self, stage: str, epoch: int, epochs: int, batches: int, done: int) -> None:
        """Show a new epoch of ``batches`` batches, of which ``done`` have been taken."""
        description = f"{stage}: epoch {epoch + 1}/{epochs}"
        self._bar.update(self._task, description=description, total=batches, completed=done)

    def step(self, done: int, averages: dict[str, dict[str, float]]) -> None:
        """Show that ``done`` batches have been taken, with these mean losses and gradient norms."""
        if not self.shown or time.monotonic() - self._shown_at < 0.1:
            return
        self._shown_at = time.monotonic()
        self._values = "  ".join(
            f"{name} {average['loss']:.4g} (|g| {average['gradient_norm']:.3g})"
            for name, average in averages.items()
        )
        self._bar.update(self._task, completed=done, values=f"{self._values}  {self._metric}")

    def epoch(self, monitor: str, value: float, best: float) -> None:
        """Show an epoch's validation metric and the best so far."""
        self._metric = f"valid {monitor} {value:.4f} (best {best:.4f})"
        self._bar.update(self._task, values=f"{self._values}  {self._metric}")


@contextmanager
def counted_bar(what: str, total: int, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar while ``total`` things are done, and yield a function that counts some more of them."""
    console = Console(stderr=True)
    shown = shown and (console.is_terminal or console.is_jupyter)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Bar(*columns, console=console, disable=not shown, transient=True)
    task = bar.add_task(what, total=total)
    if shown:
        bar.start()
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        if shown:
            bar.stop()
