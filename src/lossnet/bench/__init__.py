"""The papers' tables and our own measurements, as runnable benchmarks.

=================  =====================================================================================
``digits``         completed digits: cross-entropy, soft-F1 and SEAL-NCE, with a picture
``hypergradient``  implicit gradients against betty and TorchOpt: the same answer, time and memory
``implicit``       each objective without and with the implicit term, on four sets (UAI Table 5)
``mlc``            feature-based multi-label classification on bibtex, delicious and cal500
``overhead``       a SEAL-NCE epoch against the same steps written as bare PyTorch
``scenes``         digits pasted into photographs: cross-entropy and SEAL, with a picture
``segmentation``   Weizmann horses (SEAL Table 4, UAI supplement Table 5), with a picture
``solvers``        what each solver of implicit gradients gets right, as a picture
=================  =====================================================================================
"""

from __future__ import annotations

from pathlib import Path

from lossnet.bench import digits, hypergradient, implicit, mlc, overhead, segmentation, solvers

__all__ = ["NAMES", "run"]

NAMES = ("digits", "hypergradient", "implicit", "mlc", "overhead", "scenes", "segmentation", "solvers")


def run(name: str, output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs a benchmark and leaves its results in ``output``."""
    if name == "overhead":
        overhead.run(output, data_dir)
    elif name == "hypergradient":
        hypergradient.run(output, data_dir, device)
    elif name == "solvers":
        solvers.run(output)
    elif name == "digits":
        digits.run(output, seeds, device, jobs)
    elif name == "implicit":
        implicit.run(output, seeds, data_dir, device, jobs)
    elif name in ("scenes", "segmentation"):
        data = {"scenes": "digits-scenes", "segmentation": "horses"}[name]
        segmentation.run(data, output, seeds, data_dir, device, jobs)
    else:
        mlc.run(output, seeds, data_dir, device, jobs)
