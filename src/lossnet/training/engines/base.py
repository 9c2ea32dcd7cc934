"""The interface between the training loop and what takes its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from lossnet.methods.base import Method, Stage
from lossnet.spaces import Batch
from lossnet.training.evaluation import Dataset, Views

__all__ = ["Engine", "Job", "Readings", "RunBatch"]

#: measurements of a batch's updates, as pairs of network and quantity, and their values ``(readings, jobs)``
Readings = tuple[list[tuple[str, str]], Tensor]
#: takes a batch's steps, with random keys ``(jobs, n)`` where there are any
RunBatch = Callable[[Batch, Tensor | None], Readings]


class Job(NamedTuple):
    """One stage of one training: whose updates to take, with which optimizers and clipping.

    A network without an optimizer is frozen: its updates are passed over.
    """

    method: Method
    stage: Stage
    optimizers: Mapping[str, Optimizer]
    clip: float


class Engine(ABC):
    """Takes the optimizer steps of batches, for one training or several at once.

    `lossnet.training.Trainer` knows where training is and when it stops; an engine knows devices, random
    numbers, processes and how the steps of a batch run.  A training opens it once and then, for each stage,
    calls `begin`; for each epoch `start_epoch`, `step` for every batch and `evaluate`; and `finish`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.jobs: Sequence[Job] = ()

    @contextmanager
    def opened(self, methods: Sequence[Method], seeds: Sequence[int]) -> Iterator[None]:
        """Seed random numbers; they are as they were before when this is left."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seeds[0])
            yield

    def own(self, number: int) -> AbstractContextManager[None]:
        """Make torch's random numbers those of the ``number``-th training that it was opened for."""
        return nullcontext()

    def prepare(self, optimizer: Optimizer) -> None:  # noqa: B027
        """Change an optimizer that was just made to what the engine needs."""

    @abstractmethod
    def begin(self, jobs: Sequence[Job], numbers: Sequence[int], train: Dataset) -> None:
        """Get ready for a stage of some trainings, of those ``numbers`` that it was opened for."""

    @abstractmethod
    def start_epoch(self, seeds: Sequence[int], batches: int) -> None:
        """Put networks into training mode; ``seeds``, one for each job, are of this epoch only."""

    @abstractmethod
    def step(self, batch: Batch, number: int) -> Readings:
        """Take the steps of the epoch's batch ``number``, each job's rows after those of the one before."""

    @abstractmethod
    def evaluate(self, valid: Dataset, views: Views | None) -> list[dict[str, float]]:
        """Return each job's metrics."""

    def finish(self) -> None:  # noqa: B027
        """Leave the jobs' networks and optimizers as if each had been trained alone."""
