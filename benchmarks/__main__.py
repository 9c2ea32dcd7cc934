"""The benchmarks' command line: ``python -m benchmarks NAME``, from a checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks
from benchmarks import tables
from benchmarks.catalogue import BENCHMARKS
from lossnet.cli import exit_status

TABLES = "tables"
#: the names of all benchmarks
NAMES = tuple(sorted([*BENCHMARKS, TABLES]))


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
        "--methods", help="those of 'small', 'citations' or 'peers', separated by commas (default: all)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="of 'tables': only list what is missing, with the time it takes",
    )
    given = parser.parse_args(arguments)

    def run() -> None:
        if given.name == TABLES:
            tables.run(given, given.dry_run)
        else:
            BENCHMARKS[given.name].run(given)

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
