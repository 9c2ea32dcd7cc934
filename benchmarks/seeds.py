"""What many seeds cost: an epoch of SEAL-NCE alone and of ten replicas together, on one device.

One process, one after another: a lone run as it is usually made (on a GPU: CUDA graphs, data on the device),
ten together, and a lone run step by step.  An epoch is its training and its validation.  The first two epochs
of each run warm up and capture; step by step, where one takes as long as all of the others', only the first.
The lone run of seed 0 and replica 0 should tell the same story, so that the first epoch's losses of both are
kept beside the times.
"""

from __future__ import annotations

import dataclasses
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.overhead import plain_settings
from lossnet.data import Dataset, MultiLabelData, find
from lossnet.files import write_json
from lossnet.loading import Loaded, load
from lossnet.run import Run, find_device, new_model, trainer_of
from lossnet.settings import Settings
from lossnet.training import Trainer, fit_together
from lossnet.training.engines import Eager
from lossnet.training.tracking import Tracker

__all__ = ["measure", "run"]

#: ten seeds together may take this many times one seed's time, and one seed so many seconds, on a GPU
LIMITS = {"together": 2.5, "seconds": 0.35}
DATA = ("bibtex", "delicious")


def run(
    output: Path, data_dir: Path | None, device: str = "auto", replicas: int = 10
) -> list[dict[str, Any]]:
    """Measures every data set at hand, prints a table, writes ``output/seeds.json`` and returns its content.

    A CPU, where an epoch takes half a minute, is given ten batches.
    """
    device = find_device(device)
    found = [name for name in DATA if find(name, data_dir) is not None]
    if not found:
        raise ValueError(f"neither {' nor '.join(DATA)} is at hand: give the folder with --data-dir")
    batches = None if device.startswith("cuda") else 10
    results = []
    for name in found:
        results.append(measure(name, data_dir, device, replicas, batches))
        write_json(output / "seeds.json", results)
    headings = ("", "step by step", "alone", f"{replicas} together", "ratio")
    table = Table(*headings, title="seconds of an epoch, SEAL-NCE")
    for result in results:
        times = [f"{result[name]['epoch']:.3f}" for name in ("eager", "alone", "together")]
        table.add_row(result["data"], *times, f"{result['ratio']:.2f}")
    Console().print(table)
    return results


def measure(
    data: str = "bibtex",
    data_dir: Path | str | None = None,
    device: str = "auto",
    replicas: int = 10,
    batches: int | None = None,
    epochs: int = 5,
) -> dict[str, Any]:
    """Seconds of an epoch in each of the three ways, and the ratio of the last two.

    Args:
        data: a registered set with a recipe for SEAL-NCE.
        data_dir: where data sets are.
        device: cpu, cuda or auto.
        replicas: how many together.
        batches: so many of an epoch, and a single instance to validate on; by default all.
        epochs: of each run, of which two warm up; of two that of the run step by step.
    """
    device = find_device(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = plain_settings(data, epochs=epochs, patience=epochs)
    loaded = load(data, data_dir=data_dir, progress=False)
    train, valid = loaded.train, loaded.valid
    assert isinstance(train, MultiLabelData)
    assert isinstance(valid, MultiLabelData)
    if batches is not None:
        train = train.take(np.arange(batches * settings.batch_size))
        valid = valid.take(np.flatnonzero(np.asarray(valid.y.sum(1)) > 0)[:1])
    parts = train.on(device), valid.on(device)
    try:
        alone = _lone(loaded, settings, device, *parts)
        together = _together(loaded, settings, device, *parts, replicas)
        eager = _lone(loaded, dataclasses.replace(settings, epochs=2), device, *parts, warm_up=1, eager=True)
    finally:
        torch.set_num_threads(threads)
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {
        "data": data,
        "rows": len(train),
        "replicas": replicas,
        "eager": eager,
        "alone": alone,
        "together": together,
        "ratio": together["epoch"] / alone["epoch"],
        "training_ratio": together["training"] / alone["training"],
        "limits": LIMITS,
        "device": gpu or f"one thread of {platform.machine()}",
        "torch": torch.__version__,
    }


class _Clock(Tracker):
    """Notes when epochs end."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        self.times.append(time.perf_counter())


def _trainer(loaded: Loaded, settings: Settings, device: str, seed: int) -> tuple[Trainer, _Clock]:
    run, clock = Run(loaded.name, "seal", "nce", settings, seed=seed, device=device, progress=False), _Clock()
    return trainer_of(new_model(run, loaded), run, follow=clock), clock


def _lone(
    loaded: Loaded,
    settings: Settings,
    device: str,
    train: Dataset,
    valid: Dataset,
    warm_up: int = 2,
    eager: bool = False,
) -> dict[str, Any]:
    trainer, clock = _trainer(loaded, settings, device, seed=0)
    if eager:
        trainer.engine = Eager(trainer.device)
    clock.times = [time.perf_counter()]
    return _summary(clock, trainer.fit(train, valid), 1, warm_up)


def _together(
    loaded: Loaded, settings: Settings, device: str, train: Dataset, valid: Dataset, replicas: int
) -> dict[str, Any]:
    made = [_trainer(loaded, settings, device, seed) for seed in range(replicas)]
    clock = made[-1][1]  # the last to be validated
    clock.times = [time.perf_counter()]
    histories = dict(fit_together([trainer for trainer, _ in made], train, valid, progress=False))
    first = histories[0]
    assert isinstance(first, list)
    return _summary(clock, first, replicas, 2)


def _summary(clock: _Clock, history: list[dict[str, Any]], replicas: int, warm_up: int) -> dict[str, Any]:
    """Median seconds of an epoch and of its training, and what seed 0's first epoch came to."""
    whole = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    return {
        "epoch": statistics.median(whole[warm_up:]),
        "training": statistics.median(replicas * entry["seconds"] for entry in history[warm_up:]),
        "first_losses": history[0]["losses"],
        "first_valid": history[0]["valid"]["f1"],
    }
