"""The papers' tables and our own measurements, as runnable benchmarks.

=============  =====================================================================================
``digits``     completed digits: cross-entropy, soft-F1 and SEAL-NCE, with a picture
``mlc``        feature-based multi-label classification on bibtex, delicious and cal500
``overhead``   a SEAL-NCE epoch against the same steps written as bare PyTorch
=============  =====================================================================================
"""

from __future__ import annotations

from pathlib import Path

from lossnet.bench import digits, mlc, overhead

__all__ = ["NAMES", "run"]

NAMES = ("digits", "mlc", "overhead")


def run(name: str, output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs a benchmark and leaves its results in ``output``."""
    if name == "overhead":
        overhead.run(output, data_dir)
    elif name == "digits":
        digits.run(output, seeds, device, jobs)
    else:
        mlc.run(output, seeds, data_dir, device, jobs)
