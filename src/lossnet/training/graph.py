"""Whole batches as CUDA graphs: launching kernels for networks this small costs more than running them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lossnet.spaces import Batch

__all__ = ["GraphRunner", "Readings", "RunBatch"]

#: what a batch's updates measured: pairs of network and quantity, and their values ``(readings,)``
Readings = tuple[list[tuple[str, str]], Tensor]
RunBatch = Callable[[Batch], Readings]


class GraphRunner:
    """Runs batches eagerly a few times, then captures all of a batch's updates as one graph and replays it.

    Only batches of the first batch's shape are captured; others, such as an epoch's last, run eagerly.
    Where capture is impossible (gradient-based inference looks at its own progress), it says why once
    and goes on eagerly.  Optimizers must be capturable, and generators other than the device's own are to be
    named.
    """

    def __init__(self, run: RunBatch, warm_up: int = 3, generators: Sequence[torch.Generator] = ()) -> None:
        self._run = run
        self._generators = generators
        self._eager_left = warm_up
        self._graph: torch.cuda.CUDAGraph | None = None
        self._impossible = False
        self._input: Batch | None = None
        self._output: Readings | None = None

    def __call__(self, batch: Batch) -> Readings:
        """Takes the batch's optimizer steps."""
        if self._impossible or (self._input is not None and batch.x.shape != self._input.x.shape):
            return self._run(batch)
        if self._input is None:
            self._input = Batch(*(None if part is None else part.clone() for part in batch))  # type: ignore[arg-type]
        if self._eager_left > 0:
            self._eager_left -= 1
            return self._warm_up(batch)
        for place, part in zip(self._input, batch, strict=True):
            if place is not None and part is not None:
                place.copy_(part)
        if self._graph is None and not self._capture():
            return self._run(batch)
        assert self._graph is not None
        assert self._output is not None
        self._graph.replay()
        names, values = self._output
        return names, values.clone()

    def _warm_up(self, batch: Batch) -> Readings:
        """A real step on a side stream, as capture needs it, so that optimizers have their state."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._run(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self) -> bool:
        assert self._input is not None
        device = self._input.x.device
        index = torch.cuda.current_device() if device.index is None else device.index
        random = [(one, one.get_state()) for one in (torch.cuda.default_generators[index], *self._generators)]
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        gc.collect()
        gc.disable()  # an older graph that is freed during capture would break it
        try:
            with torch.cuda.graph(graph):
                self._output = self._run(self._input)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warnings.warn(f"steps run one by one, not as a CUDA graph: {reason}", stacklevel=3)
            self._impossible = True
            torch.cuda.synchronize(device)
            for generator, state in random:
                _renew(generator, state)
            return False
        finally:
            gc.enable()
        self._graph = graph
        return True


def _renew(generator: torch.Generator, state: Tensor) -> None:
    """A failed capture leaves a generator believing that it is still being captured."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
