"""Whole batches as CUDA graphs: launching kernels for networks this small costs more than running them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from lossnet.spaces import Batch
from lossnet.training.engines.eager import Eager, Readings, RunBatch
from lossnet.trees import first_leaf, tree_leaves, tree_map
from lossnet.warn import warn


class Graph(Eager):
    """Engine that takes steps as CUDA graphs, where optimizers can be captured; on a CPU one by one."""

    def prepare(self, optimizer: Optimizer) -> None:
        if self.device.type == "cuda":
            make_capturable(optimizer, self.device)

    def runner(self) -> RunBatch:
        if self.device.type != "cuda":
            return self.take_steps
        optimizers = [optimizer for job in self.jobs for optimizer in job.optimizers.values()]
        return graphed(self.take_steps, optimizers, self.generators)

    def generators(self) -> Sequence[torch.Generator]:
        """Return generators other than the device's own that have been drawn from."""
        return ()


def make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Let an optimizer's step be captured, if it is of a kind that can be, with its rate in a tensor."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)


def graphed(
    run: RunBatch,
    optimizers: Iterable[Optimizer],
    generators: Callable[[], Sequence[torch.Generator]] = tuple,
) -> RunBatch:
    """Return a `GraphRunner`, or ``run`` itself where an optimizer cannot be captured, and say so."""
    for optimizer in optimizers:
        if not all(group.get("capturable") for group in optimizer.param_groups):
            why = f"the optimizer {type(optimizer).__name__} cannot be captured"
            warn(f"steps run one by one, not as a CUDA graph: {why}")
            return run
    return GraphRunner(run, generators)


class GraphRunner:
    """Runs batches eagerly a few times, then capture all of a batch's updates as one graph and replay it.

    Each shape of batches has its own graph, captured when the shape has been seen before.  Where capture is
    impossible (a method looks at its own progress), it warns once and continues eagerly.  Optimizers must be
    capturable, and ``generators`` returns those other than the device's own that have been drawn from.
    """

    #: eager batches before the first capture, and the largest number of graphs
    warm_up, most = 3, 32

    def __init__(self, run: RunBatch, generators: Callable[[], Sequence[torch.Generator]] = tuple) -> None:
        self._run, self._generators = run, generators
        self._eager_left = self.warm_up
        self._seen: set[tuple[torch.Size, ...]] = set()
        self._graphs: dict[tuple[torch.Size, ...], _Captured] = {}
        self._impossible = False

    def __call__(self, batch: Batch, keys: Tensor | None) -> Readings:
        shape = tuple(part.shape for part in tree_leaves(batch))
        captured = self._graphs.get(shape)
        if captured is None:
            if self._impossible or (len(self._graphs) == self.most and self._eager_left == 0):
                return self._run(batch, keys)
            if self._eager_left > 0 or shape not in self._seen:
                self._eager_left = max(0, self._eager_left - 1)
                self._seen.add(shape)
                return self._warm_up(batch, keys)
            captured = self._capture(batch, keys)
            if captured is None:
                return self._run(batch, keys)
            self._graphs[shape] = captured
        for place, part in zip(tree_leaves(captured.read), tree_leaves((batch, keys)), strict=True):
            place.copy_(part)
        captured.graph.replay()
        names, values = captured.readings
        # At once: graphs share their memory, and the next one may use this.
        return names, values.clone()

    def _warm_up(self, batch: Batch, keys: Tensor | None) -> Readings:
        """Take real steps on a side stream, as capture needs it, so that optimizers have their state."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._run(batch, keys)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self, batch: Batch, keys: Tensor | None) -> _Captured | None:
        device = first_leaf(batch.x).device
        read = tree_map(Tensor.clone, (batch, keys))
        index = torch.cuda.current_device() if device.index is None else device.index
        others = self._generators()
        random = [(one, one.get_state()) for one in (torch.cuda.default_generators[index], *others)]
        graph = torch.cuda.CUDAGraph()
        for generator in others:
            graph.register_generator_state(generator)
        first = next(iter(self._graphs.values()), None)
        gc.collect()
        gc.disable()  # an older graph that is freed during capture would break it
        try:
            with torch.cuda.graph(graph, pool=None if first is None else first.graph.pool()):
                readings = self._run(*read)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warn(f"steps run one by one, not as a CUDA graph: {reason}")
            self._impossible = True
            torch.cuda.synchronize(device)
            for generator, state in random:
                # A failed capture leaves a generator believing that it is still being captured.
                fresh = torch.Generator(generator.device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
            return None
        finally:
            gc.enable()
        return _Captured(graph, read, readings)


class _Captured(NamedTuple):
    """A graph, the tensors that it reads, and its last readings."""

    graph: torch.cuda.CUDAGraph
    read: tuple[Batch, Tensor | None]
    readings: Readings
