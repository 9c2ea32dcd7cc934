"""Steps one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from lossnet import ops, scores
from lossnet.methods.base import Update
from lossnet.spaces import Batch, MultiLabel
from lossnet.training.engines.base import Engine, Job, Readings, RunBatch
from lossnet.training.engines.descent import descend, ordered, parameters_of
from lossnet.training.evaluation import Dataset, Views, are_sets, predict

__all__ = ["Eager"]

Gradients = Sequence[Tensor | None]


class Eager(Engine):
    """Takes the steps of one training as its method yields them."""

    #: whether fused kernels may be used on a GPU, which draw random numbers from keys of their own
    fused: ClassVar[bool] = True

    def begin(self, jobs: Sequence[Job], numbers: Sequence[int], train: Dataset) -> None:
        _keep_memory()
        self.jobs = jobs
        self._keys: Tensor | None = None
        labels = isinstance(jobs[0].method.space, MultiLabel)
        self.truth_is_sets = self.has_keys and labels and are_sets(train, self.device)
        self._run = self.runner()

    @property
    def has_keys(self) -> bool:
        """Whether batches have random keys."""
        return self.fused and self.device.type == "cuda"

    def runner(self) -> RunBatch:
        """Return what takes a batch's steps: `take_steps`, or something that wraps it."""
        return self.take_steps

    def start_epoch(self, seeds: Sequence[int], batches: int) -> None:
        for job in self.jobs:
            job.method.eval()  # networks that this stage does not train are frozen: no dropout either
            for name in job.stage.networks:
                job.method.get_submodule(name).train()
        if self.has_keys:
            keys = [_keys(seed, batches) for seed in seeds]
            self._keys = torch.stack(keys, 1).to(self.device)

    def step(self, batch: Batch, number: int) -> Readings:
        return self._run(batch, None if self._keys is None else self._keys[number])

    def take_steps(self, batch: Batch, keys: Tensor | None) -> Readings:
        """Take a batch's optimizer steps; return each one's loss, gradient norm and what it measured."""
        names: list[tuple[str, str]] = []
        values: list[Tensor] = []
        with self.share(batch) as own, self.accelerated(keys):
            for update, readings in self.applied(own):
                names += [(update.network, quantity) for quantity in readings]
                values += [value.reshape(-1).float() for value in readings.values()]
        return names, torch.stack(values) if values else torch.zeros(0, len(self.jobs), device=self.device)

    @contextmanager
    def accelerated(self, keys: Tensor | None) -> Iterator[None]:
        """Let the steps in here be fast: rounded products, and fused kernels where there are keys."""
        with ops.matmul_precision(self.device, rounded=True), ops.accelerated(keys, self.truth_is_sets):
            yield

    def share(self, batch: Batch) -> AbstractContextManager[Batch]:
        """Give the part of a batch that is computed here."""
        return nullcontext(batch)

    def applied(self, batch: Batch) -> Iterator[tuple[Update, Mapping[str, Tensor]]]:
        """Take the updates' steps, and give each with its readings."""
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
                gradients = ordered(optimizer, network.parameters(), update.gradients)
            gradients, loss, measured = self.totals(update, gradients)
            norm = descend(optimizer, gradients, job.clip)
            yield update, {"loss": loss, "gradient_norm": norm, **measured}

    def totals(self, update: Update, gradients: Gradients) -> tuple[Gradients, Tensor, Mapping[str, Tensor]]:
        """Return gradients, loss and what was measured, of the whole batch."""
        return gradients, update.loss.detach(), update.measured

    def evaluate(self, valid: Dataset, views: Views | None) -> list[dict[str, float]]:
        return [self.metrics(job, valid, views) for job in self.jobs]

    def metrics(self, job: Job, valid: Dataset, views: Views | None) -> dict[str, float]:
        """Return one job's metrics."""
        job.method.eval()
        whole = job.stage.predict if views is None else views.quick(job.stage.predict)
        relaxed, truth = predict(whole, valid, self.device)
        if truth is None:
            raise ValueError(
                "validation data have no labels (y is None): there is nothing to measure against"
            )
        return scores.metrics(job.method.space, relaxed, truth)


def _keys(seed: int, batches: int) -> Tensor:
    """Return random keys of an epoch's batches, ``(batches, RNG_KEYS)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2**63 - 1, (batches, ops.RNG_KEYS), generator=generator)


def _keep_memory() -> None:
    """Let the next steps have the memory of the last ones.

    The C library of Linux gives free memory back to the system, to ask for it again page by page, once it is
    twice the largest block of its own that was ever freed, of up to 32 MiB.  So this frees one, unused.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
