"""The list of all benchmarks: how each is run, and where its results are kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from benchmarks import (
    ablations,
    auto,
    citations,
    costs,
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
    peers,
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

__all__ = ["BENCHMARKS", "Benchmark"]

#: what the command line gives: output, seeds, data_dir, device, jobs, methods
Options = argparse.Namespace


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark is run, and the file of ``docs/results/`` with what it found, if any is kept."""

    run: Callable[[Options], Any]
    file: str = ""


def _grid(module: ModuleType, file: str = "", first: tuple[str, ...] = ()) -> Benchmark:
    """Return a benchmark that is run over seeds."""
    return Benchmark(
        lambda given: module.run(*first, given.output, given.seeds, given.data_dir, given.device, given.jobs),
        file,
    )


def _of_methods(module: ModuleType, file: str = "") -> Benchmark:
    """Return a benchmark that can be asked for some methods only."""
    return Benchmark(
        lambda given: module.run(
            given.output,
            given.seeds,
            given.data_dir,
            given.jobs,
            given.methods.split(",") if given.methods else (),
        ),
        file,
    )


#: all benchmarks by their names on the command line
BENCHMARKS = {
    "ablations": _grid(ablations),
    "auto": _grid(auto, "auto.jsonl"),
    "citations": _of_methods(citations, "citations.jsonl"),
    "costs": Benchmark(lambda given: costs.run(given.output, given.data_dir), "costs.json"),
    "digits": Benchmark(
        lambda given: digits.run(given.output, given.seeds, given.device, given.jobs), "digits.jsonl"
    ),
    "encoders": Benchmark(lambda given: encoders.run(given.output), "encoders.json"),
    "energies": _grid(energies, "energies.jsonl"),
    "few-labels": _grid(few_labels, "few-labels.jsonl"),
    "hypergradient": Benchmark(
        lambda given: hypergradient.run(given.output, given.data_dir, given.device), "hypergradient.json"
    ),
    "implicit": _grid(implicit, "implicit.jsonl"),
    "known": _grid(known, "known.jsonl"),
    "mlc": _grid(mlc, "mlc.jsonl"),
    "names": _grid(names, "names.jsonl"),
    "ner": _grid(ner, "tagging.jsonl"),
    "overhead": Benchmark(lambda given: overhead.run(given.output, given.data_dir), "overhead.json"),
    "parsing": _grid(parsing, "parsing.jsonl"),
    "peers": _of_methods(peers, "peers.jsonl"),
    "pos": _grid(pos, "tagging.jsonl"),
    "pulls": _grid(pulls),
    "residuals": _grid(residuals, "residuals.jsonl"),
    "roles": _grid(roles, "roles.jsonl"),
    "scenes": _grid(segmentation, "segmentation.jsonl", ("digits-scenes",)),
    "seal": _grid(seal, "seal.jsonl"),
    "seeds": Benchmark(lambda given: seeds.run(given.output, given.data_dir, given.device)),
    "segmentation": _grid(segmentation, "segmentation.jsonl", ("horses",)),
    "serve": Benchmark(lambda given: serving.run(given.output), "serving.json"),
    "small": _of_methods(small, "small.jsonl"),
    "solvers": Benchmark(lambda given: solvers.run(given.output), "solvers.json"),
    "speed": Benchmark(lambda given: speed.run(given.output, given.data_dir, given.device), "speed.json"),
    "streaming": Benchmark(lambda given: streaming.run(given.output), "streaming.json"),
    "structure": _grid(structure, "structure.jsonl"),
    "tagging-speed": Benchmark(
        lambda given: tagging_speed.run(given.output, given.device), "tagging_speed.json"
    ),
    "text": _grid(text, "text.jsonl"),
    "text-trained": _grid(text_trained),
    "trajectories": _grid(trajectories),
}
