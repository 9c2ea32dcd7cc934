"""What a person sees while a model trains."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

__all__ = ["Progress", "silent"]


class Progress:
    """A progress bar per epoch with losses, gradient norms and the validation metric."""

    def __init__(self, shown: bool = True) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[values]}"),
            console=Console(stderr=True),
            disable=not shown,
            transient=True,
        )
        self._task = self._bar.add_task("", values="")
        self._metric = ""
        self._values = ""
        self._shown_at = 0.0
        self.shown = shown

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.shown:  # a bar that is off would still print an empty line before rich 14.3
            self._bar.stop()

    def start_epoch(self, stage: str, epoch: int, epochs: int, batches: int, done: int) -> None:
        """A new epoch of ``batches`` batches, ``done`` of them already behind us."""
        self._bar.update(
            self._task,
            description=f"{stage}: epoch {epoch + 1}/{epochs}",
            total=batches,
            completed=done,
        )

    def step(self, done: int, averages: dict[str, dict[str, float]]) -> None:
        """``done`` batches are behind us, with these mean losses and gradient norms."""
        if not self.shown or time.monotonic() - self._shown_at < 0.1:
            return
        self._shown_at = time.monotonic()
        self._values = "  ".join(
            f"{name} {average['loss']:.4g} (|g| {average['gradient_norm']:.3g})"
            for name, average in averages.items()
        )
        self._bar.update(self._task, completed=done, values=f"{self._values}  {self._metric}")

    def epoch(self, entry: dict[str, Any], monitor: str, best: float | None) -> None:
        """An epoch is over, with this history entry."""
        self._metric = f"valid {monitor} {entry[monitor]:.4f}"
        if best is not None:
            self._metric += f" (best {best:.4f})"
        self._bar.update(self._task, values=f"{self._values}  {self._metric}")


def silent() -> Progress:
    """A progress bar that shows nothing."""
    return Progress(shown=False)
