"""The interface between the training loop and the steps of a batch, and steps one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from lossnet import ops, scores
from lossnet.data.examples import Dataset
from lossnet.methods.base import Method, Stage, Update, trained
from lossnet.spaces import Batch, MultiLabel
from lossnet.training.engines.descent import descend, ordered, parameters_of
from lossnet.training.evaluation import Views, are_sets, predict

Gradients = Sequence[Tensor | None]
#: measurements of a batch's updates: pairs of network and quantity, and their values ``(readings, jobs)``
Readings = tuple[list[tuple[str, str]], Tensor]
#: takes a batch's steps, with random keys ``(jobs, n)`` where there are any
RunBatch = Callable[[Batch, Tensor | None], Readings]


class Job(NamedTuple):
    """One stage of one training: its updates, and the optimizer and largest gradient norm of each network.

    A network without an optimizer is frozen: its updates are passed over.
    """

    method: Method
    stage: Stage
    optimizers: Mapping[str, Optimizer]
    clips: Mapping[str, float]


class Eager:
    """Engine that takes the steps of one training as its method yields them; base class of the others.

    `lossnet.training.Trainer` knows where training is and when it stops; an engine knows devices, random
    numbers, processes and how the steps of a batch run.  A training opens it once and then, for each stage,
    calls `begin`; for each epoch `start_epoch`, `step` for every batch and `evaluate`; and `finish`.
    """

    #: whether fused kernels may be used on a GPU, which draw random numbers from keys of their own
    fused: ClassVar[bool] = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.jobs: Sequence[Job] = ()

    @contextmanager
    def opened(self, methods: Sequence[Method], seeds: Sequence[int]) -> Iterator[None]:
        """Seed torch's random numbers, and restore their state at the end."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seeds[0])
            yield

    def own(self, number: int) -> AbstractContextManager[None]:
        """Make torch's random numbers those of the ``number``-th training that it was opened for."""
        return nullcontext()

    def prepare(self, optimizer: Optimizer) -> None:
        """Change an optimizer that was just made to what the engine needs."""

    def begin(self, jobs: Sequence[Job], numbers: Sequence[int], train: Dataset) -> None:
        """Get ready for a stage of some trainings, of those ``numbers`` that it was opened for."""
        # The C library of Linux returns free memory to the system, and asks for it again page by page, once
        # it is twice the largest block that was ever freed, of up to 32 MiB.  So free one.
        torch.empty(31 << 20, dtype=torch.uint8)
        self.jobs = jobs
        self._has_keys = self.fused and self.device.type == "cuda"
        self._keys: Tensor | None = None
        labels = isinstance(jobs[0].method.space, MultiLabel)
        self._truth_is_sets = self._has_keys and labels and are_sets(train, self.device)
        self._run = self.runner()

    def runner(self) -> RunBatch:
        """Return what takes a batch's steps: `take_steps`, or something that wraps it."""
        return self.take_steps

    def start_epoch(self, seeds: Sequence[int], batches: int) -> None:
        """Put networks into training mode; ``seeds``, one for each job, are of this epoch only."""
        for job in self.jobs:
            job.method.eval()  # networks that this stage does not train are frozen: no dropout either
            for name in job.stage.networks:
                job.method.get_submodule(name).train()
        if self._has_keys:
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            shape = batches, ops.RNG_KEYS
            keys = [torch.randint(2**63 - 1, shape, generator=generator) for generator in generators]
            self._keys = torch.stack(keys, 1).to(self.device)

    def step(self, batch: Batch, number: int) -> Readings:
        """Take the steps of the epoch's batch ``number``, each job's rows after those of the one before."""
        return self._run(batch, None if self._keys is None else self._keys[number])

    def take_steps(self, batch: Batch, keys: Tensor | None) -> Readings:
        """Take a batch's optimizer steps; return each one's loss, gradient norm and other measurements."""
        names: list[tuple[str, str]] = []
        values: list[Tensor] = []
        with (
            self.share(batch) as own,
            ops.matmul_precision(self.device, rounded=True),
            ops.accelerated(keys, self._truth_is_sets),
        ):
            for update, readings in self.applied(own):
                names += [(update.network, quantity) for quantity in readings]
                values += [value.reshape(-1).float() for value in readings.values()]
        return names, torch.stack(values) if values else torch.zeros(0, len(self.jobs), device=self.device)

    def share(self, batch: Batch) -> AbstractContextManager[Batch]:
        """Give the part of a batch that is computed here."""
        return nullcontext(batch)

    def applied(self, batch: Batch) -> Iterator[tuple[Update, Mapping[str, Tensor]]]:
        """Take the updates' steps, and yield each with its readings."""
        (job,) = self.jobs
        for update in job.stage.updates(batch):
            optimizer = job.optimizers.get(update.network)
            if optimizer is None:
                continue
            gradients: Gradients
            if update.gradients is None:
                # Only this network's gradients: those of the other one would pile up unused.
                parameters = parameters_of(optimizer)
                gradients = torch.autograd.grad(update.loss, parameters, allow_unused=True)
            else:
                network = job.method.get_submodule(update.network)
                gradients = ordered(optimizer, trained(network), update.gradients)
            gradients, loss, measured = self.totals(update, gradients)
            norm = descend(optimizer, gradients, job.clips[update.network])
            yield update, {"loss": loss, "gradient_norm": norm, **measured}

    def totals(self, update: Update, gradients: Gradients) -> tuple[Gradients, Tensor, Mapping[str, Tensor]]:
        """Return gradients, loss and other measurements of the whole batch."""
        return gradients, update.loss.detach(), update.measured

    def evaluate(self, valid: Dataset, views: Views | None) -> list[dict[str, float]]:
        """Return each job's metrics and log loss."""
        metrics = []
        for job in self.jobs:
            job.method.eval()
            whole = job.stage.predict if views is None else views.quick(job.stage.predict)
            relaxed, truth = predict(whole, valid, self.device)
            if truth is None:
                raise ValueError("validation data have no labels (y is None) to measure predictions against")
            space = job.method.space
            own = scores.metrics(space, relaxed, truth)
            metrics.append(own | {scores.LOG_LOSS.name: scores.log_loss(space, relaxed, truth)})
        return metrics

    def finish(self) -> None:
        """Leave the jobs' networks and optimizers as if each had been trained alone."""
