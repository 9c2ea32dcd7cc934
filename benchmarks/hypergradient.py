"""What an implicit gradient costs: `lossnet.hypergradient`, betty and TorchOpt on one bilevel problem.

The problem has bibtex's shapes: the inner loss is the task loss (energy and cross-entropy) of a task net, the
outer one the soft-F1 cost of its prediction, and the gradient is that of the energy's parameters, which is
all implicit.  The task net stands near the inner minimum, after 100 steps, where the Hessian bends upwards
along all directions that the solvers meet.

What is timed is everything between a batch and the gradient: forward passes of both networks, the outer
gradient, the graph of the inner gradient, the products and the mixed product.  All solvers have the same
fixed step and number of products and start from zero.  Each library is called as is best for it:

lossnet
    gets both losses as tensors that share the forward passes.  *All parameters* is the same without the short
    cut for layers with a constant input, as it is for networks that have none.  ``auto`` measures its step.
betty
    through the functions that its engine calls with ``sync=True``.  They ask for the inner loss: it comes
    from forward passes of its own, as in betty's engine, or from *shared* ones.
TorchOpt
    through ``custom_root``, with the energy's encoding as an argument: encoded once, differentiated once.
    Its conjugate gradient starts with one product more, ``A(0)``.

One CE step is a forward pass, a backward pass and a step of the task net by AdamW as torch makes it by
default, or fused, as our trainer does.  All run in turns in one process on one thread; medians are compared,
of processor time where there is no GPU.  Memory is the most that tensors hold at a time during a call, beyond
what they held before: counted by torch's profiler, or by the allocator on a GPU.

Gradients are compared in float64.  betty's conjugate gradient makes its directions from the residual of
one iteration before, so after the first iteration its answer is another one; it is timed all the same.
"""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile

from benchmarks.overhead import training_data
from lossnet.build import build
from lossnet.data import MultiLabelData
from lossnet.energies import Energy
from lossnet.files import write_json
from lossnet.hypergradient import (
    ConjugateGradient,
    DoubleBackward,
    Identity,
    Neumann,
    Solver,
    implicit_gradient,
)
from lossnet.losses import TaskLoss
from lossnet.losses.base import EnergyFunction
from lossnet.run import find_device
from lossnet.scores import F1
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel, Prediction
from lossnet.task import Task

__all__ = ["PEERS", "Problem", "check_installed", "contestants", "costs", "difference", "peak_memory", "run"]

#: the module of each peer's distribution
PEERS = {"betty-ml": "betty", "torchopt": "torchopt"}
PRODUCTS = 5
#: our time over that of the fastest peer
LIMITS = {"Neumann": 0.85, "conjugate gradient": 0.6}
#: times one CE step
IDENTITY_LIMIT = 1.7
AGREEMENT = 1e-9
SIZES = Settings(
    task_hidden=400, task_layers=2, energy_hidden=400, energy_layers=2, global_hidden=200,
    task_dropout=0.0, energy_dropout=0.0, samples=20, batch_size=32,
)  # fmt: skip

#: the gradient of each of the energy's parameters
Gradient = Callable[[], Sequence[Tensor]]


def run(
    output: Path,
    data_dir: Path | None,
    device: str = "cpu",
    repeats: int = 40,
    peers: Sequence[str] = tuple(PEERS),
    sizes: Settings = SIZES,
) -> dict[str, Any]:
    """Compares gradients, times and memory; prints a table and writes and returns what is in it."""
    check_installed(peers)
    device = find_device(device)
    data, source = training_data(data_dir, sizes.batch_size)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peers' own, about the age of what they call
            exact = Problem(data, sizes, device, torch.float64)
            step = exact.step()
            differences = _differences(exact, step, peers)
            problem = Problem(data, sizes, device, torch.float32)
            calls = contestants(problem, step, peers)
            times = _times(
                {"CE step": problem.ce_step, "CE step, fused": partial(problem.ce_step, True), **calls},
                repeats,
                device,
            )
            memory = {name: peak_memory(call, device) for name, call in calls.items()}
    finally:
        torch.set_num_threads(threads)
    medians = {name: statistics.median(values) for name, values in times.items()}
    checks = _checks(medians, memory, differences)
    _show(source, device, medians, memory, differences, checks)
    versions = {name: importlib.metadata.version(name) for name in peers}
    content: dict[str, Any] = {
        "data": source,
        "device": device.split(":")[0],
        "torch": torch.__version__,
        "peers": versions,
    }
    content |= {"repeats": repeats, "step": step, "seconds": medians, "peak_bytes": memory}
    content |= {"difference": differences, "checks": checks}
    write_json(output / "hypergradient.json", content)
    return content


def check_installed(peers: Sequence[str]) -> None:
    """Says how to install what is missing."""
    missing = [name for name in peers if importlib.util.find_spec(PEERS[name]) is None]
    if missing:
        raise ImportError(
            f"{' and '.join(missing)} not installed: run `make bench-peers`, or\n"
            "  pip install 'lossnet[bench]'\n"
            "  pip install --no-deps --ignore-requires-python betty-ml==0.2.1\n"
            "(betty says that it does not run on Python 3.11 and later, but it does)"
        )


class Problem:
    """The two networks, a batch, and both losses."""

    def __init__(self, data: MultiLabelData, sizes: Settings, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        x, y, *_ = data.batch(np.arange(len(data)))
        method = build("seal", "nce", sizes, Task.of_sizes(data.inputs, data.labels))
        self.space = MultiLabel(data.labels)
        self.task_loss, self.score = TaskLoss(), F1()
        # The starting point in single precision, so that both precisions have the same problem.
        self._place(
            x, y, method.get_submodule("task_net"), method.get_submodule("energy"), "cpu", torch.float32
        )
        self._train()
        self._place(self.x, self.y, self.task_net, self.energy, device, dtype)
        self.trained = copy.deepcopy(self.task_net)  # what CE steps change
        self.optimizers = {
            fused: torch.optim.AdamW(self.trained.parameters(), fused=fused or None)
            for fused in (False, True)
        }

    def _place(
        self, x: Tensor, y: Tensor, task_net: nn.Module, energy: nn.Module, device: str, dtype: torch.dtype
    ) -> None:
        self.x, self.y = x.to(device, dtype), y.to(device, dtype)
        self.task_net, moved = task_net.to(device, dtype), energy.to(device, dtype)
        assert isinstance(moved, Energy)
        self.energy = moved
        self.theta, self.phi = tuple(task_net.parameters()), tuple(energy.parameters())

    def _train(self, steps: int = 100) -> None:
        """Brings the task net near the minimum of the inner loss."""
        optimizer = torch.optim.AdamW(self.theta, lr=1e-3, fused=True)
        with torch.no_grad():
            energy = self.energy.at(self.x)
        for _ in range(steps):
            optimizer.zero_grad()
            self.inner(self.prediction(), energy).backward(inputs=self.theta)
            optimizer.step()
        optimizer.zero_grad()

    def prediction(self) -> Prediction:
        """The task net's, with a live graph."""
        return Prediction(self.space, self.task_net(self.x))

    def inner(self, prediction: Prediction, energy: EnergyFunction) -> Tensor:
        """What the task net minimises."""
        return self.task_loss(prediction, self.y, energy)

    def outer(self, prediction: Prediction) -> Tensor:
        """What the energy should make small."""
        return self.score.cost(prediction.relaxed.unsqueeze(1), self.y).mean()

    def ce_step(self, fused: bool = False) -> None:
        """One step of ordinary training."""
        loss = self.task_loss(Prediction(self.space, self.trained(self.x)), self.y)
        self.optimizers[fused].zero_grad()
        loss.backward()
        self.optimizers[fused].step()

    def implicit(self, solver: Solver, thin: bool = True) -> Sequence[Tensor]:
        """The gradient by lossnet."""
        prediction = self.prediction()
        losses = self.outer(prediction), self.inner(prediction, self.energy.at(self.x))
        products = DoubleBackward(thin)
        return implicit_gradient(*losses, self.theta, self.phi, solver, products=products).gradients

    def step(self) -> float:
        """``1 / |λ|max`` of the inner Hessian."""
        prediction = self.prediction()
        losses = self.outer(prediction), self.inner(prediction, self.energy.at(self.x))
        found = implicit_gradient(*losses, self.theta, self.phi, Neumann(30))
        assert found.curvature is not None
        return 1 / found.curvature.item()


def contestants(
    problem: Problem, step: float, peers: Sequence[str], products: int = PRODUCTS
) -> dict[str, Gradient]:
    """By solver and library, what finds the gradient."""
    ours = problem.implicit
    calls: dict[str, Gradient] = {
        "identity, lossnet": partial(ours, Identity(step)),
        "identity, lossnet, auto": partial(ours, Identity()),
        "Neumann, lossnet": partial(ours, Neumann(products, step)),
        "Neumann, lossnet, auto": partial(ours, Neumann(products)),
        "Neumann, lossnet, all parameters": partial(ours, Neumann(products, step), thin=False),
    }
    if "betty-ml" in peers:
        calls["Neumann, betty"] = _Betty(problem, "neumann", products, step, shared=False)
        calls["Neumann, betty, shared"] = _Betty(problem, "neumann", products, step, shared=True)
    if "torchopt" in peers:
        calls["Neumann, TorchOpt"] = _TorchOpt(problem, "neumann", products, step)
    calls["conjugate gradient, lossnet"] = partial(ours, ConjugateGradient(products))
    calls["conjugate gradient, lossnet, all parameters"] = partial(
        ours, ConjugateGradient(products), thin=False
    )
    if "betty-ml" in peers:
        calls["conjugate gradient, betty"] = _Betty(problem, "cg", products, step, shared=False)
        calls["conjugate gradient, betty, shared"] = _Betty(problem, "cg", products, step, shared=True)
    if "torchopt" in peers:
        calls["conjugate gradient, TorchOpt"] = _TorchOpt(problem, "cg", products, step)
    return calls


class _Betty:
    """betty's functions, called as its engine calls them."""

    def __init__(self, problem: Problem, kind: str, products: int, step: float, shared: bool) -> None:
        from betty.configs import Config
        from betty.hypergradient import jvp_fn_mapping
        from betty.problems import ImplicitProblem

        config = Config(
            type=kind, neumann_iterations=products, neumann_alpha=step, cg_iterations=products, cg_alpha=1.0
        )
        self.problem, self.shared = problem, shared
        self.function = jvp_fn_mapping[kind]
        self.inner = ImplicitProblem("inner", config, problem.task_net)
        self.outer = ImplicitProblem("outer", Config(), problem.energy)

    def __call__(self) -> list[Tensor]:
        problem = self.problem
        prediction = problem.prediction()
        loss = problem.outer(prediction)
        if self.shared:
            inner = problem.inner(prediction, problem.energy.at(problem.x))
            self.inner.training_step = lambda batch: inner
        else:
            self.inner.training_step = self._inner_loss
        first = torch.autograd.grad(loss, problem.theta, retain_graph=self.shared)
        del loss, prediction
        self.function(first, self.inner, self.outer, True)
        self.inner.training_step = None
        gradients = [parameter.grad for parameter in problem.phi]
        for parameter in problem.phi:
            parameter.grad = None
        return [gradient for gradient in gradients if gradient is not None]

    def _inner_loss(self, batch: object) -> Tensor:
        return self.problem.inner(self.problem.prediction(), self.problem.energy.at(self.problem.x))


class _TorchOpt:
    """TorchOpt's implicit differentiation of a solver that leaves the task net as it is."""

    def __init__(self, problem: Problem, kind: str, products: int, step: float) -> None:
        from torchopt.diff.implicit import custom_root
        from torchopt.linear_solve import solve_cg, solve_inv

        solve = {
            "neumann": solve_inv(ns=True, maxiter=products, alpha=step),
            "cg": solve_cg(maxiter=products, rtol=0.0, atol=0.0),
        }[kind]
        self.problem = problem
        self.names = [name for name, _ in problem.task_net.named_parameters()]
        self.scorer = _Scorer(problem.energy)

        def objective(theta: tuple[Tensor, ...], encoded: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
            energy = partial(self.scorer.functional, encoded, weights)
            return problem.inner(self.prediction(theta), energy)

        def solved(
            theta: tuple[Tensor, ...], encoded: Tensor, weights: tuple[Tensor, ...]
        ) -> tuple[Tensor, ...]:
            return theta

        self.solved = custom_root(torch.func.grad(objective), argnums=(1, 2), solve=solve)(solved)

    def prediction(self, theta: tuple[Tensor, ...]) -> Prediction:
        problem = self.problem
        logits = functional_call(problem.task_net, dict(zip(self.names, theta, strict=True)), (problem.x,))
        return Prediction(problem.space, logits)

    def __call__(self) -> Sequence[Tensor]:
        problem = self.problem
        encoded = problem.energy.encode(problem.x)
        theta = tuple(parameter.detach() for parameter in problem.theta)
        solution = self.solved(theta, encoded[0], self.scorer.weights)
        return torch.autograd.grad(problem.outer(self.prediction(solution)), problem.phi)


class _Scorer(nn.Module):
    """An energy of encoded inputs as a function of the parameters that scoring uses."""

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.energy = energy
        used = energy.get_submodule("terms.1").named_parameters(prefix="energy.terms.1")
        self.names, self.weights = zip(*used, strict=True)

    def forward(self, encoded: Tensor, y: Tensor) -> Tensor:
        energies: Tensor = self.energy.evaluate((encoded, None), y)
        return energies

    def functional(self, encoded: Tensor, weights: tuple[Tensor, ...], y: Tensor) -> Tensor:
        """The energy with these weights in place of its own."""
        energies: Tensor = functional_call(self, dict(zip(self.names, weights, strict=True)), (encoded, y))
        return energies


# ---------------------------------------------------------------- measurements


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """``‖found − expected‖ / ‖expected‖``.

    >>> difference([torch.tensor([0.0, 3.0])], [torch.tensor([0.0, 2.0])])
    0.5
    """
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (found, expected))
    return float((one - other).norm() / other.norm())


def _differences(problem: Problem, step: float, peers: Sequence[str]) -> dict[str, float]:
    """How far each gradient is from ours of the same solver, as a part of its norm."""
    calls = contestants(problem, step, peers)
    found = {}
    for name, call in calls.items():
        solver, *rest = name.split(", ")
        if rest and "auto" not in rest and rest != ["lossnet"]:
            found[name] = difference(call(), calls[f"{solver}, lossnet"]())
    if "betty-ml" in peers:
        one = contestants(problem, step, peers, products=1)
        betty, ours = one["conjugate gradient, betty"](), one["conjugate gradient, lossnet"]()
        found["conjugate gradient, betty, one iteration"] = difference(betty, ours)
    return found


def _times(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 2):
        for name, call in calls.items():
            started = _now(device)
            call()
            taken = _now(device) - started
            if repeat >= 2:  # the first turns warm up
                times[name].append(taken)
    return times


def peak_memory(call: Callable[[], object], device: str) -> int:
    """The most bytes that tensors hold at a time during a call, beyond those that they held before."""
    call()
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    assert record.profiler is not None
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps the profiler from telling standard error when it starts and stops."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _now(device: str) -> float:
    """Seconds: of this process on a CPU, so that other programs do not count; of the clock on a GPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _checks(
    times: dict[str, float], memory: dict[str, int], differences: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Each value with the limit that it should not exceed."""
    checks = {
        f"identity, lossnet over a {step}": {
            "value": times["identity, lossnet"] / times[step],
            "limit": IDENTITY_LIMIT,
        }
        for step in ("CE step", "CE step, fused")
    }
    for solver, limit in LIMITS.items():
        ours = f"{solver}, lossnet"
        peers = [name for name in times if name.startswith(solver) and not name.startswith(ours)]
        if peers:
            fastest, least = min(times[name] for name in peers), min(memory[name] for name in peers)
            checks[f"{ours} over the fastest peer"] = {"value": times[ours] / fastest, "limit": limit}
            checks[f"{ours}, memory over the least of a peer"] = {"value": memory[ours] / least, "limit": 1.0}
    # betty's conjugate gradient is another algorithm from its second iteration on.
    compared = [
        value
        for name, value in differences.items()
        if not name.startswith("conjugate gradient, betty") or "one iteration" in name
    ]
    checks["difference between gradients"] = {"value": max(compared), "limit": AGREEMENT}
    return checks


def costs(content: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: each solver in steps of cross-entropy, and beside the faster or smaller peer."""
    heading = ["", "CE steps", "fused CE steps", "limit", "of the faster peer", "limit", "of its memory"]
    checks, rows = content["checks"], []
    for solver in ("identity", *LIMITS):
        ours = f"{solver}, lossnet"
        steps = [
            content["seconds"][ours] / content["seconds"][step] for step in ("CE step", "CE step, fused")
        ]
        peer = checks.get(f"{ours} over the fastest peer")
        memory = checks.get(f"{ours}, memory over the least of a peer")
        rows.append(
            [
                solver,
                *(f"{ratio:.2f}" for ratio in steps),
                f"{IDENTITY_LIMIT:g}" if peer is None else "",
                *(("", "") if peer is None else (f"{peer['value']:.2f}", f"{peer['limit']:g}")),
                "" if memory is None else f"{memory['value']:.2f}",
            ]
        )
    return heading, rows


def _show(
    source: str,
    device: str,
    times: dict[str, float],
    memory: dict[str, int],
    differences: dict[str, float],
    checks: dict[str, dict[str, float]],
) -> None:
    where = "one thread" if device == "cpu" else device
    title = f"implicit gradients on {source}, {PRODUCTS} products, {where}"
    table = Table("", "ms", "CE steps", "MiB", "difference", title=title)
    for name, value in times.items():
        table.add_row(
            name,
            f"{1000 * value:.2f}",
            f"{value / times['CE step']:.2f}",
            f"{memory[name] / 2**20:.1f}" if name in memory else "",
            f"{differences[name]:.0e}" if name in differences else "",
        )
    limits = Table("", "value", "limit", "holds")
    for name, check in checks.items():
        shown = f"{check['value']:.3g}", f"{check['limit']:g}"
        limits.add_row(name, *shown, "yes" if check["value"] <= check["limit"] else "no")
    console = Console()
    console.print(table)
    console.print(limits)
