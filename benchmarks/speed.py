"""How fast training is: every ratio in one command, with the machine that it was measured on.

On one core, in processor time: SEAL-NCE on bibtex against the bare loop of ``python -m benchmarks
overhead``; implicit training against SEAL; how far a step is from what its arithmetic and its memory traffic
would take; how cost grows with labels, candidates and instances; a million sparse rows.  Where there is
a GPU: an epoch of bibtex and delicious as CUDA graphs, without, and of ten seeds together.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy import sparse

from benchmarks import million, seeds
from benchmarks.overhead import BareLoop, Framework, plain_settings, training_data
from lossnet.build import build
from lossnet.data import MultiLabelData, find
from lossnet.files import write_json
from lossnet.ops import Bernoulli
from lossnet.run import find_device, versions
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.training import Trainer

__all__ = ["page", "run"]

#: what must not be exceeded
LIMITS = {
    "seal / bare loop": 0.6,
    "implicit, identity / seal": 1.3,
    "implicit, Neumann-5 / seal": 2.0,
    "gigabytes": 4.0,
}


def run(output: Path, data_dir: Path | None, device: str = "auto") -> None:
    """Measures all that this machine can, prints the page and leaves ``speed.json`` and ``speed.md``."""
    console = Console()
    parts: dict[str, Callable[[], Any]] = {
        "one core against bare PyTorch": partial(_ratios, data_dir),
        "the floor": partial(_floor, data_dir),
        "growth": _growth,
        "a million rows": lambda: {name: million.run(name) for name in ("cross-entropy", "seal")},
    }
    if find_device(device).startswith("cuda"):
        found = [name for name in seeds.DATA if find(name, data_dir) is not None]
        parts["one GPU"] = lambda: [seeds.measure(name, data_dir, device) for name in found]
    content: dict[str, Any] = {"machine": machine(), "versions": versions()}
    for name, measure in parts.items():
        console.print(f"{name} …")
        content[name] = measure()
        write_json(output / "speed.json", content)  # what was measured survives what comes later
    text = page(content)
    (output / "speed.md").write_text(text, encoding="utf-8")
    console.print(text, markup=False, highlight=False)


def machine() -> dict[str, Any]:
    """The processor, the cores that we may use, and how busy the machine was before."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


# ---------------------------------------------------------------- one core


def _ratios(data_dir: Path | None, batches: int = 5, turns: int = 40) -> dict[str, Any]:
    """Processor seconds per batch of each loop, in turns, on one thread, and medians of turns' ratios.

    Turns are short, because a machine that others use as well is now faster and now slower.
    """
    settings = plain_settings()
    parts = 4  # the rows of which come in turn
    data, source = training_data(data_dir, parts * batches * settings.batch_size)
    once = dataclasses.replace(settings, energy_steps=1, task_steps=1)
    neumann: dict[str, Any] = {"solver": "neumann", "solver_terms": 5}
    loops: dict[str, Framework | BareLoop] = {
        "bare loop": BareLoop(data, settings),
        "seal": Framework(data, settings),
        "implicit, identity": Framework(data, settings, "implicit"),
        "implicit, Neumann-5": Framework(data, dataclasses.replace(settings, **neumann), "implicit"),
        "seal, one step each": Framework(data, once),
        "implicit, identity, one step each": Framework(data, once, "implicit"),
        "implicit, Neumann-5, one step each": Framework(
            data, dataclasses.replace(once, **neumann), "implicit"
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    with _one_thread():
        for turn in range(turns + parts):
            rows = np.arange(len(data)).reshape(parts, -1)[turn % parts]
            for name, loop in loops.items():
                seconds = loop.seconds(rows) / batches
                if turn >= parts:  # the first turns warm up
                    times[name].append(seconds)
    pairs = {
        "seal / bare loop": ("seal", "bare loop"),
        "implicit, identity / seal": ("implicit, identity", "seal"),
        "implicit, Neumann-5 / seal": ("implicit, Neumann-5", "seal"),
        "implicit, identity / seal, one step each": (
            "implicit, identity, one step each",
            "seal, one step each",
        ),
        "implicit, Neumann-5 / seal, one step each": (
            "implicit, Neumann-5, one step each",
            "seal, one step each",
        ),
    }
    ratios = {
        name: statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))
        for name, (one, other) in pairs.items()
    }
    return {"data": source, "batches": batches, "seconds per batch": times, "ratios": ratios}


def _floor(data_dir: Path | None, batches: int = 20, turns: int = 3) -> dict[str, Any]:
    """What arithmetic, memory traffic and random numbers take at the rates that this core reaches."""
    s = plain_settings()
    data, _ = training_data(data_dir, batches * s.batch_size)
    framework = Framework(data, s)
    with _one_thread():
        framework.seconds()
        measured = min(framework.seconds() for _ in range(turns)) / batches
        rates = {"flops per second": _product_rate(), "bytes per second": _memory_rate()}
    rows, hidden, labels = s.batch_size, s.energy_hidden, data.labels
    candidates = rows * (1 + s.samples)
    dense = [hidden * hidden] * (s.energy_layers - 1) + [hidden * labels]
    # Forward, gradient of weights and, above the first layer, of inputs: 2 flops each for a weight and a row.
    values = rows * data.x.nnz / len(data)
    energy_flops = 6 * rows * sum(dense) + 4 * values * hidden
    energy_flops += (
        4 * rows * (labels + s.samples) * s.global_hidden / 10
    )  # candidates are sparse: a tenth at most
    energy_flops += 20 * candidates * s.global_hidden  # softplus, its derivative
    task_dense = [s.task_hidden * s.task_hidden] * (s.task_layers - 1) + [s.task_hidden * labels]
    task_flops = 6 * rows * sum(task_dense) + 4 * values * s.task_hidden + 6 * rows * labels * s.global_hidden
    energy = framework.method.get_submodule("energy")
    weights = [
        sum(p.numel() for p in net.parameters())
        for net in (energy, framework.method.get_submodule("task_net"))
    ]
    # AdamW reads gradients, weights and two moments and writes three of them; the norm reads gradients again.
    energy_bytes, task_bytes = (4 * 9 * count for count in weights)
    draws = rows * s.samples * labels
    energy_bytes += 4 * (3 * draws + 6 * candidates * s.global_hidden)
    flops = s.energy_steps * energy_flops + s.task_steps * task_flops
    traffic = s.energy_steps * energy_bytes + s.task_steps * task_bytes
    numbers = s.energy_steps * (draws + 2 * rows * hidden) + s.task_steps * 2 * rows * s.task_hidden
    rates["draws per second"] = _draw_rate()
    floor = flops / rates["flops per second"] + traffic / rates["bytes per second"]
    floor += numbers / rates["draws per second"]
    return {
        "seconds per batch": measured,
        "flops": flops,
        "bytes": traffic,
        "draws": numbers,
        "rates": rates,
        "floor seconds": floor,
        "ratio": measured / floor,
    }


def _product_rate(size: int = 512) -> float:
    matrix = torch.rand(size, size)
    return 2 * size**3 / _best(lambda: matrix @ matrix)


def _memory_rate(numbers: int = 1 << 20) -> float:
    """Of AdamW itself on a network of this size: what caches hold counts as memory."""
    weight = torch.nn.Parameter(torch.rand(numbers))
    weight.grad = torch.rand(numbers)
    optimizer = torch.optim.AdamW([weight], fused=True)
    return 4 * 7 * numbers / _best(optimizer.step)


def _draw_rate(samples: int = 20) -> float:
    chances = torch.full((32, 159), 0.02)
    with _one_thread():
        return samples * chances.numel() / _best(lambda: Bernoulli(chances)(samples))


def _best(work: Callable[[], object], times: int = 20) -> float:
    work()
    return min(_processor_seconds(work) for _ in range(times))


# ---------------------------------------------------------------- growth


def _growth() -> dict[str, Any]:
    """Processor seconds of SEAL-NCE (one energy and one task step a batch) as one size grows."""
    with _one_thread():
        return {
            "labels": _series([100, 316, 1000, 3162, 10_000], lambda n: _pass_seconds(labels=n)),
            "candidates": _series([10, 20, 40, 80, 160, 320], lambda n: _pass_seconds(samples=n)),
            "instances": _series([1000, 2000, 4000, 8000, 16_000], lambda n: _pass_seconds(rows=n)),
        }


def _series(sizes: Sequence[int], seconds: Callable[[int], float]) -> dict[str, Any]:
    """Seconds at each size and the slopes of their logarithms: over all sizes, and between the last two."""
    found = [seconds(size) for size in sizes]
    slope = np.polyfit(np.log(sizes), np.log(found), 1)[0]
    last = np.log(found[-1] / found[-2]) / np.log(sizes[-1] / sizes[-2])
    return {"sizes": list(sizes), "seconds": found, "slope": float(slope), "last slope": float(last)}


def _pass_seconds(rows: int = 320, labels: int = 159, samples: int = 20, turns: int = 3) -> float:
    """The least processor time of a pass over random rows with 30 of 1,000 inputs and 3 labels."""
    generator = np.random.default_rng(0)
    x = sparse.random_array(
        (rows, 1000), density=0.03, random_state=generator, format="csr", dtype=np.float32
    )
    y = np.zeros((rows, labels), np.uint8)
    np.put_along_axis(y, generator.integers(labels, size=(rows, 3)), 1, axis=1)
    data = MultiLabelData.from_arrays(x, y)
    settings = Settings(samples=samples, task_hidden=200, energy_hidden=200, global_hidden=200)
    torch.manual_seed(0)
    method = build("seal", "nce", settings, Task.of_sizes(data.inputs, labels))
    trainer = Trainer(method, lr=1e-3, progress=False)
    # Networks begin with half of all labels; a few steps teach them that labels are rare.
    trainer.pass_over(data.take(np.arange(min(rows, 320))))
    return min(_processor_seconds(lambda: trainer.pass_over(data)) for _ in range(turns))


# ---------------------------------------------------------------- the page


def page(content: dict[str, Any]) -> str:
    """The page of results, made of what was measured."""
    sections = [_about(content)]
    for name, section in _SECTIONS.items():
        if name in content:
            sections.append(section(content[name]))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _about(content: dict[str, Any]) -> list[str]:
    where = content["machine"]
    return [
        "# Speed and scale",
        "",
        "Made by `python -m benchmarks speed`; every figure is from [speed.json](speed.json). Processor",
        "time of one thread, loops in short turns in one process, medians of times and of turns' ratios,",
        "unless it says otherwise.",
        f"{where['processor']}, {where['cores']} cores, load average {where['load']:.1f} before it began;",
        ", ".join(f"{name} {version}" for name, version in content["versions"].items()) + ".",
    ]


def _about_ratios(against: dict[str, Any]) -> list[str]:
    middle = {name: statistics.median(found) for name, found in against["seconds per batch"].items()}
    return [
        f"## One core, {against['data']}",
        "",
        "SEAL-NCE with its authors' settings (12 energy and 5 task steps a batch of 32, grouped; 20 samples)",
        "against the same steps as a plain PyTorch loop; implicit training with the same settings, its term",
        "in one of the 12 energy steps, and with one step of each network a batch.",
        "",
        "| | ratio | limit | |",
        "|---|---|---|---|",
        *[_judged(name, ratio, LIMITS.get(name)) for name, ratio in against["ratios"].items()],
        "",
        "| | milliseconds per batch |",
        "|---|---|",
        *[f"| {name} | {1000 * seconds:.1f} |" for name, seconds in middle.items()],
    ]


def _about_floor(floor: dict[str, Any]) -> list[str]:
    rates = floor["rates"]
    return [
        "## The floor",
        "",
        f"A batch of SEAL has {floor['flops'] / 1e9:.2f} GFLOP of arithmetic, {floor['bytes'] / 1e6:.0f} MB",
        f"of memory traffic (AdamW's above all) and {floor['draws'] / 1e6:.2f} million random numbers. At",
        "the rates that the same core reaches on each alone",
        f"({rates['flops per second'] / 1e9:.0f} GFLOP/s in a product of 512 × 512 matrices,",
        f"{rates['bytes per second'] / 1e9:.1f} GB/s in AdamW,",
        f"{rates['draws per second'] / 1e6:.0f} million draws a second) that takes",
        f"{1000 * floor['floor seconds']:.1f} ms; it took {1000 * floor['seconds per batch']:.1f} ms,",
        f"{floor['ratio']:.2f} times as long. The rest is small products, elementwise functions, and what",
        "some 400 operations a step cost before they compute anything.",
    ]


def _about_growth(growth: dict[str, Any]) -> list[str]:
    return [
        "## Growth",
        "",
        "One pass of SEAL-NCE (one energy and one task step a batch) over 320 rows with 1,000 inputs, 30 of",
        "them not zero, 159 labels and 20 samples, unless it is that which grows. Slopes of log seconds over",
        "log size: 1 is linear, less is better.",
        "",
        "| | sizes | seconds | slope | slope at the end |",
        "|---|---|---|---|---|",
        *[_grown(name, series) for name, series in growth.items()],
    ]


def _about_million(found: dict[str, Any]) -> list[str]:
    limit = LIMITS["gigabytes"]
    return [
        "## A million sparse rows",
        "",
        "1,000,000 rows of 50,000 inputs, 30 of them not zero, 100 labels; networks with one layer of 100,",
        "batches of 4,096. Peak resident memory of the whole process, data included.",
        "",
        "| | seconds of an epoch | of the processors | GB | limit | |",
        "|---|---|---|---|---|---|",
        *[
            f"| {name} | {one['seconds']:.0f} | {one['processor_seconds']:.0f} | {one['gigabytes']:.2f} | "
            f"{limit:g} | {_verdict(one['gigabytes'], limit)} |"
            for name, one in found.items()
        ],
    ]


def _about_gpu(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"## One GPU: {found[0]['device']}, torch {found[0]['torch']}",
        "",
        "Seconds of an epoch of SEAL-NCE with its authors' settings: one seed step by step, one seed as CUDA",
        "graphs, and ten seeds together in one process. Steps are grouped.",
        "",
        "| | step by step | one seed | limit | | ten seeds | ratio | limit | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        eager, alone, together = (one[name]["epoch"] for name in ("eager", "alone", "together"))
        seconds, times = one["limits"]["seconds"], one["limits"]["together"]
        lines.append(
            f"| {one['data']} | {eager:.2f} | {alone:.3f} | {seconds} | {_verdict(alone, seconds)} "
            f"| {together:.3f} | {one['ratio']:.2f} | {times} | {_verdict(one['ratio'], times)} |"
        )
    remarks = dict.fromkeys(one["remark"] for one in found if "remark" in one)
    return [*lines, *(line for remark in remarks for line in ("", remark))]


#: what is said of each part that was measured
_SECTIONS: dict[str, Callable[[Any], list[str]]] = {
    "one core against bare PyTorch": _about_ratios,
    "the floor": _about_floor,
    "growth": _about_growth,
    "a million rows": _about_million,
    "one GPU": _about_gpu,
}


def _judged(name: str, ratio: float, limit: float | None) -> str:
    if limit is None:
        return f"| {name} | {ratio:.2f} | | |"
    return f"| {name} | {ratio:.2f} | {limit:g} | {_verdict(ratio, limit)} |"


def _grown(name: str, series: dict[str, Any]) -> str:
    sizes = " ".join(f"{size:,}" for size in series["sizes"])
    seconds = " ".join(f"{value:.2f}" for value in series["seconds"])
    return f"| {name} | {sizes} | {seconds} | {series['slope']:.2f} | {series['last slope']:.2f} |"


def _verdict(value: float, limit: float) -> str:
    return "met" if value <= limit else "**missed**"


# ---------------------------------------------------------------- small things


class _one_thread:  # noqa: N801
    """One thread in here, as many as before afterwards."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


def _processor_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
