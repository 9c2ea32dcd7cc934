"""What each system of SEAL's Table 1 costs: parameters, training and inference, as ratios to cross-entropy.

SEAL's Appendix D and UAI Table 6, on bibtex with the authors' settings of each system, nested steps included.
One thread, one run: processor time of an epoch over some rows, the median of all but a stage's first, and of
probabilities for the test part.  Where training has several stages, each has its own time.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from benchmarks import seal
from benchmarks.grid import markdown
from benchmarks.speed import machine
from lossnet.build import default_loss
from lossnet.files import write_json
from lossnet.loading import Loaded, load
from lossnet.recipes import recipe_settings
from lossnet.run import Run, new_model, trainer_of, versions
from lossnet.settings import Settings
from lossnet.training.tracking import Tracker

__all__ = ["SYSTEMS", "measure", "run", "table"]

DATA = "bibtex"
#: systems by the titles of SEAL's table: method and loss
SYSTEMS = {
    **{title: (method, loss or default_loss(method)) for title, (method, loss, _) in seal.ROWS.items()},
    "implicit NCE": ("implicit", "nce"),
}


def run(output: Path, data_dir: Path | None, rows: int = 320, epochs: int = 3) -> dict[str, Any]:
    """Measures all systems, prints a table, writes ``costs.json`` and returns its content."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data, console = load(DATA, data_dir=data_dir, progress=False), Console(stderr=True)
        found = {}
        for title, (method, loss) in SYSTEMS.items():
            settings = Settings(**recipe_settings(DATA, method, loss))
            found[title] = measure(data, method, loss, settings, rows, epochs)
            console.print(f"{title}: {found[title]}", highlight=False)
    finally:
        torch.set_num_threads(threads)
    about = {"data": DATA, "rows": rows, "epochs": epochs, "machine": machine(), "versions": versions()}
    content = {**about, "systems": found}
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "costs.json", content)
    Console().print(markdown(*table(content)), markup=False)
    return content


class _Clock(Tracker):
    """Notes the processor time when epochs end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        self.times.append(time.process_time())


def measure(
    data: Loaded, method: str, loss: str, settings: Settings, rows: int, epochs: int, turns: int = 3
) -> dict[str, Any]:
    """Parameters in training and for prediction, seconds of an epoch of each stage, and of predicting."""
    train: Any = data.train
    valid: Any = data.valid
    settings = dataclasses.replace(settings, epochs=epochs, patience=epochs)
    wanted = Run(data.name, method, loss, settings, seed=0, device="cpu", progress=False)
    model, clock = new_model(wanted, data), _Clock()
    trainer = trainer_of(model, wanted, follow=clock)
    # Validation is no part of it: a single instance.
    labelled = np.flatnonzero(np.asarray(valid.y.sum(1)).ravel() > 0)[:1]
    history = trainer.fit(train.take(np.arange(min(rows, len(train)))), valid.take(labelled))
    stages = [str(entry.get("stage", "")) for entry in history]
    seconds: dict[str, list[float]] = {}
    for (before, after), (earlier, stage) in zip(pairwise(clock.times), pairwise(stages), strict=True):
        if earlier == stage:  # the first epoch of a stage warms up, and the time before it is another's
            seconds.setdefault(stage, []).append(after - before)
    predicting = []
    for turn in range(turns + 1):
        started = time.process_time()
        model.probabilities(data.test)
        if turn:  # the first warms up
            predicting.append(time.process_time() - started)
    network = model.method
    return {
        "parameters": _count(network),
        "parameters of prediction": sum(_count(network.get_submodule(name)) for name in network.predictors),
        "epoch": {stage: statistics.median(times) for stage, times in seconds.items()},
        "prediction": statistics.median(predicting),
    }


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def table(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: ratios to cross-entropy; of training, those of all stages in turn."""
    heading = ["system", "parameters in training", "for prediction", "an epoch", "inference"]
    plain = content["systems"]["CE"]
    (epoch,) = plain["epoch"].values()
    rows = []
    for title, one in content["systems"].items():
        counts = [one[name] / plain["parameters"] for name in ("parameters", "parameters of prediction")]
        stages = ", then ".join(f"{seconds / epoch:.1f}" for seconds in one["epoch"].values())
        figures = [
            *(f"{count:.2f}" for count in counts),
            stages,
            f"{one['prediction'] / plain['prediction']:.1f}",
        ]
        rows.append([title, *figures])
    return heading, rows
