"""Many trainings at once: replicas that differ in seed and in numbers, each as it would be alone.

A GPU spends most of its time on small networks with starting kernels.  Ten replicas whose parameters are
stacked (`lossnet.training.engines.stacked`) start as many kernels as one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from lossnet import scores
from lossnet.data.examples import Dataset
from lossnet.methods.base import Method, Update
from lossnet.spaces import Batch, MultiLabel
from lossnet.training.engines.eager import Job, Readings
from lossnet.training.engines.graph import Graph
from lossnet.training.engines.stacked import Labels, PerReplica, Stack, Streams, stacking_blocker_of
from lossnet.training.evaluation import Views, predict
from lossnet.trees import tree_map

#: largest number of predicted values that are made at once
_AT_ONCE = 1 << 26


class Replicas(Graph):
    """Engine of several trainings at once; on a GPU as CUDA graphs."""

    @contextmanager
    def opened(self, methods: Sequence[Method], seeds: Sequence[int]) -> Iterator[None]:
        with super().opened(methods, seeds):
            self._all_streams = Streams(seeds, self.device)
            yield

    def own(self, number: int) -> AbstractContextManager[None]:
        return self._all_streams.own(number)

    def begin(self, jobs: Sequence[Job], numbers: Sequence[int], train: Dataset) -> None:
        self._streams = self._all_streams.take(numbers)
        methods = [job.method for job in jobs]
        self._stacks = {
            name: Stack(
                [method.get_submodule(name) for method in methods],
                [job.optimizers[name] for job in jobs],
                [job.clips[name] for job in jobs],
                self._streams,
            )
            for name in jobs[0].stage.networks
        }
        self._method = _stacked(methods, self._stacks, self._streams)
        self._stage = self._method.stages()[0]
        super().begin(jobs, numbers, train)

    def generators(self) -> Sequence[torch.Generator]:
        return self._streams.used()

    def start_epoch(self, seeds: Sequence[int], batches: int) -> None:
        super().start_epoch(seeds, batches)
        self._method.train()

    def step(self, batch: Batch, number: int) -> Readings:
        # Weights ``(R, b)``: each replica has a mean of its own.
        weight = tree_map(lambda part: part.view(len(self.jobs), -1), batch.weighted().weight)
        return super().step(batch._replace(weight=weight), number)

    def applied(self, batch: Batch) -> Iterator[tuple[Update, Mapping[str, Tensor]]]:
        self._streams.mark()
        for update in self._stage.updates(batch):
            stack, gradients = self._stacks[update.network], update.gradients
            if gradients is None:
                # Replicas know nothing of each other: the gradient of the sum is each one's own.
                gradients = torch.autograd.grad(update.loss.sum(), stack.parameters)
            norms = stack.step(gradients)
            self._streams.mark()
            yield update, {"loss": update.loss.detach(), "gradient_norm": norms, **update.measured}

    def evaluate(self, valid: Dataset, views: Views | None) -> list[dict[str, float]]:
        """Return each replica's metrics and log loss; on a GPU they predict together, if there is room."""
        space, count = self.jobs[0].method.space, len(self.jobs)
        assert isinstance(space, MultiLabel)
        if self.device.type != "cuda" or count * len(valid) * space.labels > _AT_ONCE:
            return super().evaluate(valid, views)
        self._method.eval()
        relaxed, truth = predict(self._predict, valid, self.device, min(512, max(1, 8192 // count)))
        meter = scores.LabelMeter()
        meter.add(space.decode(relaxed), truth)
        losses = (scores.log_loss(space, each, truth) for each in relaxed.unbind(1))
        pairs = zip(meter.compute_each(), losses, strict=True)
        return [own | {scores.LOG_LOSS.name: loss} for own, loss in pairs]

    def _predict(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return each replica's predictions, ``(batch, R, labels)``."""
        count = len(self.jobs)
        masks = None if mask is None else mask.repeat(count, 1)
        together = self._stage.predict(x.repeat(count, 1), masks)
        return together.view(count, len(x), -1).transpose(0, 1)

    def finish(self) -> None:
        for stack in self._stacks.values():
            stack.release()
        for job in self.jobs:
            for name, buffer in job.method._buffers.items():
                job.method._buffers[name] = None if buffer is None else buffer.clone()


def methods_blocker(methods: Sequence[Method]) -> str | None:
    """Return why the networks of these methods cannot be stacked, or None if they can."""
    first = methods[0]
    if first.stacking_blocker() is not None:
        return first.stacking_blocker()
    if type(first.space) is not MultiLabel:
        return f"only label sets are trained together, not {type(first.space).__name__}"
    networks = [first.get_submodule(name) for name in first.stages()[0].networks]
    blockers = [blocker for network in networks if (blocker := stacking_blocker_of(network)) is not None]
    if blockers:
        return blockers[0]
    parameters = [parameter for network in networks for parameter in network.parameters()]
    if len(set(parameters)) < len(parameters):
        return "their networks share parameters"
    if not all(parameter.requires_grad for parameter in parameters):
        return "frozen parameters have no stacked form"
    differences = (_difference(first, other) for other in methods[1:])
    return next((f"they differ in {one}" for one in differences if one is not None), None)


def _stacked(methods: Sequence[Method], stacks: Mapping[str, Stack], streams: Streams) -> Method:
    """Return a method like the first, over stacked networks."""
    first = methods[0]
    twin = copy.copy(first)
    twin._modules = {name: stack.network for name, stack in stacks.items()}
    twin._buffers = {}
    for name, buffer in first._buffers.items():
        if buffer is not None:
            together = torch.stack([method.get_buffer(name) for method in methods])
            twin._buffers[name] = together
            for index, method in enumerate(methods):
                method._buffers[name] = together[index]
    assert isinstance(first.space, MultiLabel)
    twin.space = Labels(first.space.labels, streams=streams)
    for path in first.per_replica:
        _put(twin, path, PerReplica.of([attrgetter(path)(method) for method in methods], streams.device))
    return twin


def _put(owner: Any, path: str, value: object) -> None:
    """Set an attribute of a method, or with a dot in its path one of the method's data classes, in a copy."""
    name, _, inner = path.partition(".")
    setattr(owner, name, dataclasses.replace(getattr(owner, name), **{inner: value}) if inner else value)


def _difference(first: Method, other: Method) -> str | None:
    """Return the first difference that keeps two methods from being replicas of each other."""
    if type(first) is not type(other) or first.space != other.space:
        return "method or labels"
    for name in first.stages()[0].networks:
        if str(first.get_submodule(name)) != str(other.get_submodule(name)):
            return f"the layers of {name}"
    mine, its = _settings(first), _settings(other)
    return next((name for name, value in mine.items() if not _same(value, its.get(name))), None)


def _settings(method: Method) -> dict[str, Any]:
    """Return a method's attributes, without its networks and the values of numbers that may differ.

    A number of the method itself that is zero leaves steps out: whether it is must be the same for all.
    """
    twin = copy.copy(method)
    for path in method.per_replica:
        _put(twin, path, 1.0 if "." in path else bool(getattr(method, path)))
    known = vars(nn.Module())
    return {name: value for name, value in vars(twin).items() if name not in known and name != "total"}


def _same(first: object, other: object) -> bool:
    """Whether two values are equal, or objects of one class with the same content."""
    if first == other:
        return True
    mine, its = (getattr(value, "__dict__", None) for value in (first, other))
    if type(first) is not type(other) or isinstance(first, FunctionType) or mine is None or its is None:
        return False
    return mine.keys() == its.keys() and all(_same(value, its[name]) for name, value in mine.items())
