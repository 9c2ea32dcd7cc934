"""An epoch over a million sparse rows, in a process of its own, whose memory is then its own too."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.training import Trainer

__all__ = ["rows", "run"]

INPUTS, VALUES, LABELS = 50_000, 30, 100


def run(method: str, instances: int = 1_000_000) -> dict[str, float]:
    """Seconds of an epoch with ``cross-entropy`` or ``seal``, and the process's largest memory in GB."""
    code = f"from benchmarks import million; million.measure({method!r}, {instances})"
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, cwd=root
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(method: str, instances: int) -> None:
    """Prints the seconds and the memory of one epoch as JSON."""
    settings = Settings(task_hidden=100, task_layers=1, energy_hidden=100, energy_layers=1, global_hidden=100)
    data = rows(instances)
    trained = build(
        method, "none" if method == "cross-entropy" else "nce", settings, Task.of_sizes(INPUTS, LABELS)
    )
    trainer = Trainer(trained, batch_size=4096, max_epochs=1, progress=False)
    started, busy = time.monotonic(), time.process_time()
    losses = trainer.pass_over(data.on("cpu"))
    seconds, busy = time.monotonic() - started, time.process_time() - busy
    # Linux counts in KiB.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"seconds": seconds, "processor_seconds": busy, "gigabytes": memory, "losses": losses}))


def rows(instances: int, seed: int = 0) -> MultiLabelData:
    """Rows of 30 inputs of 50,000 that are 1, with the labels that three of them say.

    >>> data = rows(5)
    >>> data.x.shape, data.y.shape, bool(data.x.nnz > 4 * 30)
    ((5, 50000), (5, 100), True)
    """
    inputs = np.random.default_rng(seed).integers(INPUTS, size=(instances, VALUES), dtype=np.int32)
    labels = inputs[:, :3] % LABELS
    return MultiLabelData.from_arrays(_ones(inputs, INPUTS), _ones(labels, LABELS))


def _ones(columns: np.ndarray, width: int) -> sparse.csr_array:
    count, each = columns.shape
    starts = np.arange(0, count * each + 1, each)
    values = np.ones(count * each, np.float32)
    matrix = sparse.csr_array((values, columns.reshape(-1), starts), shape=(count, width))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix
