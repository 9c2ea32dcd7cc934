"""Peak memory and time of ``lossnet predict`` on files of growing size, and with all rows in memory.

Files hold random sparse rows in LIBSVM's format, or random numbers in CSV; the model's weights are random
too.  Each measurement is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from lossnet.build import build
from lossnet.files import write_json
from lossnet.inputs import Features
from lossnet.model import Model
from lossnet.outputs import Labels
from lossnet.settings import Settings
from lossnet.task import Task

__all__ = ["run", "table"]

SIZES, WHOLE_UP_TO = (16, 128, 1024), 128
FEATURES, FILLED, LABELS = 5000, 80, 20
PARTS = """
import sys
from lossnet.cli import main
assert main(sys.argv[1:]) == 0
"""
REPORT = """
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
#: what a program without parts does: everything is read, then everything is predicted
WHOLE = """
import sys, lossnet
from lossnet import data
model = lossnet.load(sys.argv[1])
rows = data.read_inputs(sys.argv[2], model.feature_names, model.label_names)
probabilities = model.predict_proba(rows.x)
"""


def run(
    output: Path, sizes: tuple[int, ...] = SIZES, whole_up_to: int = WHOLE_UP_TO
) -> list[dict[str, float | str]]:
    """Prints and writes megabytes of files, of peak memory with and without parts, and seconds."""
    measured: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, write in {"svm": _write_svm, "csv": _write_csv}.items():
            inputs = FEATURES if kind == "svm" else 50
            _model(inputs, first=int(kind == "svm")).save(folder / kind)
            for size in sizes:
                file = folder / f"rows.{kind}"
                row: dict[str, float | str] = {"format": kind, "rows": write(file, size << 20)}
                row["file_mb"] = file.stat().st_size / 2**20
                out = folder / "out.csv"
                arguments = (str(folder / kind), str(file))
                row["parts_mb"], row["parts_s"] = _peak(PARTS, "predict", *arguments, "-o", str(out))
                if size <= whole_up_to:
                    row["whole_mb"], row["whole_s"] = _peak(WHOLE, *arguments)
                measured.append(row)
                write_json(output / "streaming.json", measured)
                file.unlink()
    heading, rows = table(measured)
    shown = Table(*heading)
    for cells in rows:
        shown.add_row(*cells)
    Console().print(shown)
    return measured


def table(measured: Sequence[dict[str, float | str]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: megabytes and seconds, in parts and, where that was tried, as a whole."""
    heading = ["format", "rows", "file, MB", "peak in parts, MB", "seconds", "peak as a whole, MB", "seconds"]
    names = ("rows", "file_mb", "parts_mb", "parts_s", "whole_mb", "whole_s")
    return heading, [
        [str(row["format"]), *(f"{row[name]:,.0f}" if name in row else "not tried" for name in names)]
        for row in measured
    ]


def _model(inputs: int, first: int) -> Model:
    names = tuple(f"feature_{number}" for number in range(first, inputs + first))
    task = Task(Features(names), Labels(tuple(map(str, range(LABELS)))))
    settings = Settings(task_hidden=32, task_layers=1)
    return Model(build("cross-entropy", "none", settings, task), ("cross-entropy", "none"), settings, task)


def _write_svm(path: Path, size: int) -> int:
    """Rows until the file has that many bytes; how many."""
    random = np.random.default_rng(0)
    rows = []
    for _ in range(1000):
        columns = np.sort(random.choice(FEATURES, FILLED, replace=False)) + 1
        cells = (
            f"{column}:{value:.4f}" for column, value in zip(columns, random.random(FILLED), strict=True)
        )
        rows.append(" ".join([str(random.integers(LABELS)), *cells]))
    return _repeat(path, "", rows, size)


def _write_csv(path: Path, size: int) -> int:
    rows = [
        ",".join(f"{value:.5f}" for value in row) for row in np.random.default_rng(0).normal(size=(1000, 50))
    ]
    return _repeat(path, ",".join(f"feature_{number}" for number in range(50)) + "\n", rows, size)


def _repeat(path: Path, head: str, rows: list[str], size: int) -> int:
    text = "\n".join(rows) + "\n"
    times = max(1, size // len(text))
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        for _ in range(times):
            file.write(text)
    return times * len(rows)


def _peak(code: str, *arguments: str) -> tuple[float, float]:
    """Peak resident memory of a program in MB, and its seconds."""
    started = time.monotonic()
    # What the kernel says of a child's memory includes this process, which it was before it began.
    command = [sys.executable, "-c", code + REPORT, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-2]) / 1024, time.monotonic() - started
