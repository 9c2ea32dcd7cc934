"""How long tagging takes: a task net, whatever trained it, Viterbi's algorithm, gradient-based inference.

All tag the same random sentences, of tweets' lengths, in turns in one process, so that a noisy machine slows
all of them.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from lossnet.build import build
from lossnet.data import Lexicon, TagSet, Vocabulary
from lossnet.files import write_json
from lossnet.inputs import Words
from lossnet.outputs import Tags
from lossnet.run import find_device
from lossnet.settings import Settings
from lossnet.task import Task

__all__ = ["run", "table"]

WORDS, WIDTH, TAGS = 10000, 100, 25
SETTINGS = Settings(task_hidden=100, energy_hidden=100, inference_steps=20)
TAGGERS = {
    "BiLSTM": ("cross-entropy", "none"),
    "InfNet+": ("infnet-plus", "margin"),
    "SEAL": ("seal", "nce"),
    "BiLSTM-CRF, Viterbi": ("crf", "likelihood"),
    "SPEN, 20 steps of inference": ("spen", "margin"),
}


def run(output: Path, device: str = "cpu", sentences: int = 512, repeats: int = 15) -> dict[str, float]:
    """Prints and writes the median seconds of each, and returns them as multiples of the first."""
    device, threads = find_device(device), torch.get_num_threads()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    words = Vocabulary(tuple(f"w{number}" for number in range(WORDS)))
    vectors = random.normal(size=(len(words), WIDTH)).astype(np.float32)
    task = Task(Words(Lexicon(words), vectors), Tags(TagSet(tuple(map(str, range(TAGS))))))
    lengths = torch.from_numpy(random.integers(4, 29, sentences))
    mask = (torch.arange(28) < lengths.unsqueeze(1)).to(device)
    x = torch.from_numpy(random.integers(1, len(words), (sentences, 28, 1))).to(device) * mask.unsqueeze(-1)
    methods = {title: build(*names, SETTINGS, task).to(device).eval() for title, names in TAGGERS.items()}
    seconds: dict[str, list[float]] = {title: [] for title in methods}
    try:
        for repeat in range(repeats + 1):
            for title, method in methods.items():
                started = time.perf_counter()
                with torch.no_grad():
                    method.predict(x, mask).sum().item()  # reading a value waits for the device
                if repeat:  # the first turn warms up
                    seconds[title].append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    medians = {title: statistics.median(found) for title, found in seconds.items()}
    ratios = {title: value / medians["BiLSTM"] for title, value in medians.items()}
    content = {"device": device, "seconds": seconds, "ratios": ratios}
    heading, rows = table(content)
    shown = Table(*heading, title=f"tagging {sentences} sentences on {device}")
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)
    write_json(output / "tagging_speed.json", content)
    return ratios


def table(content: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: the median of each, and its ratio to the first."""
    return ["", "milliseconds", "time / BiLSTM"], [
        [title, f"{1000 * statistics.median(seconds):.0f}", f"{content['ratios'][title]:.2f}"]
        for title, seconds in content["seconds"].items()
    ]
