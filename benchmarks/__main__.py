"""The benchmarks' command line: ``python -m benchmarks NAME``, from a checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import benchmarks
from benchmarks import (
    ablations,
    auto,
    citations,
    digits,
    encoders,
    energies,
    few_labels,
    hypergradient,
    implicit,
    known,
    mlc,
    names,
    ner,
    overhead,
    parsing,
    pos,
    pulls,
    residuals,
    roles,
    seal,
    seeds,
    segmentation,
    serving,
    small,
    solvers,
    speed,
    streaming,
    structure,
    tagging_speed,
    text,
    text_trained,
    trajectories,
)
from lossnet.cli import exit_status

#: tables and pictures that are run over seeds
_GRIDS: dict[str, Callable[[Path, int, Path | None, str, int], None]] = {
    "ablations": ablations.run,
    "auto": auto.run,
    "energies": energies.run,
    "few-labels": few_labels.run,
    "implicit": implicit.run,
    "known": known.run,
    "mlc": mlc.run,
    "names": names.run,
    "ner": ner.run,
    "parsing": parsing.run,
    "pos": pos.run,
    "pulls": pulls.run,
    "residuals": residuals.run,
    "roles": roles.run,
    "seal": seal.run,
    "scenes": partial(segmentation.run, "digits-scenes"),
    "segmentation": partial(segmentation.run, "horses"),
    "structure": structure.run,
    "text": text.run,
    "text-trained": text_trained.run,
    "trajectories": trajectories.run,
}


def _of_methods(run: Callable[..., object]) -> Callable[[argparse.Namespace], object]:
    """Return a benchmark that can be asked for some methods only, as a function of the options."""
    return lambda given: run(
        given.output,
        given.seeds,
        given.data_dir,
        given.jobs,
        given.methods.split(",") if given.methods else (),
    )


#: measurements, each with the options that it takes
_OTHERS: dict[str, Callable[[argparse.Namespace], object]] = {
    "citations": _of_methods(citations.run),
    "digits": lambda given: digits.run(given.output, given.seeds, given.device, given.jobs),
    "encoders": lambda given: encoders.run(given.output),
    "hypergradient": lambda given: hypergradient.run(given.output, given.data_dir, given.device),
    "overhead": lambda given: overhead.run(given.output, given.data_dir),
    "seeds": lambda given: seeds.run(given.output, given.data_dir, given.device),
    "serve": lambda given: serving.run(given.output),
    "small": _of_methods(small.run),
    "solvers": lambda given: solvers.run(given.output),
    "speed": lambda given: speed.run(given.output, given.data_dir, given.device),
    "streaming": lambda given: streaming.run(given.output),
    "tagging-speed": lambda given: tagging_speed.run(given.output, given.device),
}
#: the names of all benchmarks
NAMES = tuple(sorted([*_GRIDS, *_OTHERS]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark and leave its results in a folder; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        epilog="example:\n  python -m benchmarks digits --output runs/digits",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME", help="which benchmark")
    parser.add_argument("--output", type=Path, default=Path("runs/bench"), help="folder for the results")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--data-dir", type=Path, help="where data sets are")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument(
        "--methods", help="those of 'small' or 'citations', separated by commas (default: all)"
    )
    given = parser.parse_args(arguments)

    def run() -> None:
        if given.name in _GRIDS:
            _GRIDS[given.name](given.output, given.seeds, given.data_dir, given.device, given.jobs)
        else:
            _OTHERS[given.name](given)

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
