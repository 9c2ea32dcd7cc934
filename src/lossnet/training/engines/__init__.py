"""Engines: how the steps of a batch run, behind the interface of `Eager`."""

from __future__ import annotations

import torch

from lossnet.training.engines.eager import Eager
from lossnet.training.engines.graph import Graph
from lossnet.training.engines.processes import Processes, Shared, joined, launched_rank
from lossnet.training.engines.replicas import Replicas

__all__ = ["Eager", "Graph", "Processes", "Replicas", "Shared", "engine_for", "joined", "launched_rank"]


def engine_for(device: torch.device, processes: Processes) -> Eager:
    """Return the engine of one training.

    >>> type(engine_for(torch.device("cpu"), Processes())).__name__
    'Eager'
    """
    if processes.count > 1:
        return Shared(device, processes)
    return Graph(device) if device.type == "cuda" else Eager(device)
