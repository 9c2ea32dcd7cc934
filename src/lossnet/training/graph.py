"""Whole batches as CUDA graphs: launching kernels for networks this small costs more than running them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lossnet.spaces import Batch

__all__ = ["GraphRunner", "Readings", "RunBatch"]

#: what a batch's updates measured: pairs of network and quantity, and their values ``(readings,)``
Readings = tuple[list[tuple[str, str]], Tensor]
#: takes a batch's steps, with random words ``(R, n)`` for `lossnet.ops`
RunBatch = Callable[[Batch, Tensor | None], Readings]


class GraphRunner:
    """Runs batches eagerly a few times, then captures all of a batch's updates as one graph and replays it.

    Each shape of batches has its own graph, captured when the shape has been seen before; of so many shapes
    at most as ``graphs`` says.  Where capture is impossible (a method looks at its own
    progress), it says why once and goes on eagerly.  Optimizers must be capturable, and ``generators``
    names those other than the device's own that have been drawn from.
    """

    def __init__(
        self,
        run: RunBatch,
        generators: Callable[[], Sequence[torch.Generator]] = tuple,
        warm_up: int = 3,
        graphs: int = 32,
    ) -> None:
        self._run = run
        self._generators = generators
        self._eager_left = warm_up
        self._most = graphs
        self._seen: set[torch.Size] = set()
        self._graphs: dict[torch.Size, _Captured] = {}
        self._impossible = False

    def __call__(self, batch: Batch, words: Tensor | None) -> Readings:
        """Takes the batch's optimizer steps."""
        shape = batch.x.shape
        captured = self._graphs.get(shape)
        if captured is None:
            if self._impossible or (len(self._graphs) == self._most and self._eager_left == 0):
                return self._run(batch, words)
            if self._eager_left > 0 or shape not in self._seen:
                self._eager_left = max(0, self._eager_left - 1)
                self._seen.add(shape)
                return self._warm_up(batch, words)
            captured = self._capture(batch, words)
            if captured is None:
                return self._run(batch, words)
            self._graphs[shape] = captured
        for place, part in zip(captured.read, (*batch, words), strict=True):
            if place is not None and part is not None:
                place.copy_(part)
        captured.graph.replay()
        names, values = captured.readings
        # At once: graphs share their memory, and the next one may use this.
        return names, values.clone()

    def _warm_up(self, batch: Batch, words: Tensor | None) -> Readings:
        """A real step on a side stream, as capture needs it, so that optimizers have their state."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._run(batch, words)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self, batch: Batch, words: Tensor | None) -> _Captured | None:
        device = batch.x.device
        read = [None if part is None else part.clone() for part in (*batch, words)]
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
                readings = self._run(Batch(*read[:-1]), read[-1])  # type: ignore[arg-type]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warnings.warn(f"steps run one by one, not as a CUDA graph: {reason}", stacklevel=3)
            self._impossible = True
            torch.cuda.synchronize(device)
            for generator, state in random:
                _renew(generator, state)
            return None
        finally:
            gc.enable()
        return _Captured(graph, read, readings)


class _Captured(NamedTuple):
    """A graph, the tensors that it reads, and what it measured last."""

    graph: torch.cuda.CUDAGraph
    read: Sequence[Tensor | None]
    readings: Readings


def _renew(generator: torch.Generator, state: Tensor) -> None:
    """A failed capture leaves a generator believing that it is still being captured."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
