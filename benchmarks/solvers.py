"""What each solver of an implicit gradient gets right: ridge regression with a learned penalty per feature.

The inner loss is ``½‖Xw − y‖²/m + ½ Σ exp(φ_j) w_j²``, the outer one ``½‖X'w − y'‖²/m`` on other rows, and
everything is known: ``H = XᵀX/m + diag(exp φ)``, ``w* = H⁻¹Xᵀy/m`` and, with the outer gradient ``b`` at
``w*``, ``dL/dφ_j = −exp(φ_j) w*_j (H⁻¹b)_j``.  Features differ in size and are a little correlated; rotated,
all of them are mixtures, and the Hessian keeps its eigenvalues but not its diagonal.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from lossnet.files import write_json
from lossnet.hypergradient import (
    ConjugateGradient,
    Diagonal,
    Exact,
    FiniteDifference,
    Identity,
    Neumann,
    RankOne,
    Solver,
)

__all__ = ["Ridge", "accuracy", "components", "differences", "draw", "measure", "run", "steps", "table"]

#: by solver: the settings measured, and how to make it from one
SOLVERS: dict[str, tuple[Sequence[int], Callable[[int], Solver]]] = {
    "Exact": ((0,), lambda _: Exact()),
    "ConjugateGradient": (range(1, 25), ConjugateGradient),
    "Neumann": (
        (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
        Neumann,
    ),
    "Identity": ((0,), lambda _: Identity()),
    "Diagonal": ((1, 2, 5, 10, 20, 50, 100), Diagonal),
    "RankOne": ((0,), lambda _: RankOne()),
}
COLOURS = {  # Okabe and Ito's, which colour-blind readers can tell apart
    "Exact": "#000000",
    "ConjugateGradient": "#0072B2",
    "Neumann": "#D55E00",
    "Identity": "#E69F00",
    "Diagonal": "#009E73",
    "RankOne": "#CC79A7",
}


def run(output: Path) -> None:
    """Measures, and writes ``solvers.json`` and ``solvers.png``."""
    numbers = measure()
    write_json(output / "solvers.json", numbers)
    draw(output / "solvers.png", numbers)
    Console().print(f"what each solver gets right is drawn in {output / 'solvers.png'}")


def table(numbers: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: some settings of each solver."""
    heading = ["solver", "products", "error", "cosine", "cosine, rotated", "residual"]
    names = ("error", "cosine", "rotated_cosine", "residual")
    shown = {"Exact": (0,), "ConjugateGradient": (5, 16), "Neumann": (5, 100), "Identity": (0,)}
    shown |= {"Diagonal": (5,), "RankOne": (0,)}
    return heading, [
        [
            f"`{row['solver']}({row['setting'] or ''})`",
            str(row["products"]),
            *(_short(row[name]) for name in names),
        ]
        for row in numbers["accuracy"]
        if row["setting"] in shown[row["solver"]]
    ]


def _short(value: float) -> str:
    return f"{value:.2f}" if 0.01 <= value < 10 else f"{value:.1g}" if value < 0.01 else f"{value:.0f}"


def measure(features: int = 16, problems: int = 20) -> dict[str, Any]:
    """Every number of the picture and of its table."""
    first = Ridge(0, features)
    return {
        "features": features,
        "problems": problems,
        "eigenvalues": first.values.tolist(),
        "accuracy": accuracy(features, problems),
        "components": components(first),
        "steps": steps(first),
        "differences": differences(first),
        "torch": torch.__version__,
    }


class Ridge:
    """One problem and its solution, in float64."""

    def __init__(self, seed: int, features: int = 16, rotated: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        rows, place = 4 * features, torch.arange(features, dtype=torch.float64)
        mixing = torch.linalg.cholesky(0.3 ** (place[:, None] - place).abs())
        size = 10 ** torch.linspace(-0.5, 1, features, dtype=torch.float64)
        size = size[torch.randperm(features, generator=generator)]
        self.x, self.valid = (normal(rows, features) @ mixing.T * size for _ in range(2))
        truth = normal(features) / size
        self.y, self.target = (x @ truth + normal(rows) for x in (self.x, self.valid))
        if rotated:
            basis, _ = torch.linalg.qr(normal(features, features))
            self.x, self.valid = self.x @ basis, self.valid @ basis
        self.phi = torch.full((features,), 0.1, dtype=torch.float64).log()
        self.hessian = self.x.T @ self.x / rows + torch.diag(self.phi.exp())
        self.values, self.vectors = torch.linalg.eigh(self.hessian)
        self.w = torch.linalg.solve(self.hessian, self.x.T @ self.y / rows)
        self.slope = self.valid.T @ (self.valid @ self.w - self.target) / rows
        self.solution = torch.linalg.solve(self.hessian, self.slope)

    def solve(self, solver: Solver) -> tuple[Tensor, int]:
        """What the solver has for ``H⁻¹b``, ``(n,)``, and how many products it made."""
        calls = 0

        def product(vector: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            image: Tensor = self.hessian @ vector
            return image

        flat = torch.zeros_like(self.slope)  # the inner gradient, at the minimum
        return solver.solve(product, self.slope, flat).vector, calls

    def gradient(self, solution: Tensor) -> Tensor:
        """The hypergradient that follows from a solution, ``(n,)``."""
        result: Tensor = -self.phi.exp() * self.w * solution
        return result


def accuracy(features: int, problems: int) -> list[dict[str, Any]]:
    """Return medians of the hypergradient's error and cosine and of the residual, rotated ones too."""
    rows: list[dict[str, Any]] = [
        {"solver": name, "setting": setting}
        for name, (settings, _) in SOLVERS.items()
        for setting in settings
    ]
    for prefix, rotated in (("", False), ("rotated_", True)):
        found: list[list[tuple[float, ...]]] = [[] for _ in rows]
        for seed in range(problems):
            problem = Ridge(seed, features, rotated)
            exact = problem.gradient(problem.solution)
            with _seeded(seed):
                for row, values in zip(rows, found, strict=True):
                    solver = SOLVERS[row["solver"]][1](row["setting"])
                    vector, row["products"] = problem.solve(solver)
                    gradient = problem.gradient(vector)
                    cosine = F.cosine_similarity(gradient, exact, dim=0).item()
                    residual = _error(problem.hessian @ vector, problem.slope)
                    values.append((_error(gradient, exact), cosine, residual))
        for row, values in zip(rows, found, strict=True):
            for name, column in zip(("error", "cosine", "residual"), zip(*values, strict=True), strict=True):
                row[f"{prefix}{name}"] = statistics.median(column)
    return rows


def components(problem: Ridge) -> dict[str, list[float]]:
    """By solver: its component along each eigenvector, as part of that of ``H⁻¹b``; flattest first."""
    step = 1 / problem.values[-1].item()
    solvers: dict[str, Solver] = {
        "Identity": Identity(step),
        "Neumann, 5": Neumann(5, step),
        "Neumann, 100": Neumann(100, step),
        "ConjugateGradient, 5": ConjugateGradient(5),
        "ConjugateGradient, 10": ConjugateGradient(10),
        "RankOne": RankOne(),
    }
    exact = problem.vectors.T @ problem.solution
    return {
        name: (problem.vectors.T @ problem.solve(solver)[0] / exact).tolist()
        for name, solver in solvers.items()
    }


def steps(problem: Ridge) -> list[dict[str, Any]]:
    """Errors of ``H⁻¹b`` by the number of Neumann terms: three steps, each with our stop and without one."""
    terms = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100, 200, 500, 1000, 2000]
    largest = problem.values[-1].item()
    result = []
    for step in (1 / largest, 2.2 / largest, 0.1):
        term = total = problem.slope
        bare = [_error(step * total, problem.solution)]
        for _ in range(terms[-1]):
            term = term - step * problem.hessian @ term
            total = total + term
            bare.append(_error(step * total, problem.solution))
            if bare[-1] > 1e6:
                break
        stopped = [_error(problem.solve(Neumann(count, step))[0], problem.solution) for count in terms]
        shown = [count for count in terms if count < len(bare)]
        result.append({"step": step, "times_largest": step * largest, "terms": terms, "stopped": stopped})
        result[-1] |= {"bare_terms": shown, "bare": [bare[count] for count in shown]}
    return result


def differences(problem: Ridge) -> dict[str, Any]:
    """Errors of Hessian products by finite differences.

    The loss is logistic, because differences of a quadratic one are exact.
    """
    epsilons = (10 ** torch.linspace(-9, 0, 37, dtype=torch.float64)).tolist()
    result: dict[str, Any] = {"epsilon": epsilons}
    for dtype in (torch.float64, torch.float32):
        default = torch.finfo(dtype).eps ** (1 / 3)
        result[str(dtype).removeprefix("torch.")] = {
            "errors": [_difference(problem, dtype, epsilon) for epsilon in epsilons],
            "default": default,
            "error_of_default": _difference(problem, dtype, None),
        }
    return result


def _difference(problem: Ridge, dtype: torch.dtype, epsilon: float | None) -> float:
    """Relative error of one product with ``Xᵀ diag(p(1 − p)) X/m``."""
    x, labels, vector = problem.x.to(dtype), (problem.y > 0).to(dtype), problem.slope.to(dtype)
    w = problem.w.to(dtype).requires_grad_()
    derivatives = FiniteDifference(epsilon).of(lambda: F.binary_cross_entropy_with_logits(x @ w, labels), [w])
    (found,) = derivatives.along([vector], [w])
    data = x.double()
    chance = (data @ w.detach().double()).sigmoid()
    return _error(found.double(), data.T @ (chance * (1 - chance) * (data @ vector.double())) / len(data))


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed; the caller's stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def draw(path: Path, numbers: dict[str, Any]) -> None:
    """Four panels: accuracy by cost, what is recovered, steps too long, finite differences."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {
        "font.size": 10,
        "lines.linewidth": 1.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    style |= {"axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    style |= {"figure.constrained_layout.h_pad": 0.12, "figure.constrained_layout.w_pad": 0.12}
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=(11.5, 10), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=[1.25, 1])
        halves = grid[0, 0].subgridspec(2, 1, hspace=0.06)
        error = figure.add_subplot(halves[0])
        _draw_accuracy(error, figure.add_subplot(halves[1], sharex=error), numbers)
        _draw_components(figure.add_subplot(grid[0, 1]), numbers)
        _draw_steps(figure.add_subplot(grid[1, 0]), numbers["steps"])
        _draw_differences(figure.add_subplot(grid[1, 1]), numbers["differences"])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def _draw_accuracy(upper: Any, lower: Any, numbers: dict[str, Any]) -> None:
    looks: dict[str, dict[str, Any]] = {
        "ConjugateGradient": {"marker": "o", "markersize": 3},
        "Neumann": {"marker": "s", "markersize": 3.5},
        "Diagonal": {"marker": "^", "markersize": 4},
        "Identity": {"marker": "D", "markersize": 7},
        "RankOne": {"marker": "v", "markersize": 8},
        "Exact": {"marker": "*", "markersize": 10},
    }
    for axes, key in ((upper, "error"), (lower, "cosine")):
        for name, look in looks.items():
            rows = [row for row in numbers["accuracy"] if row["solver"] == name]
            products = [row["products"] for row in rows]
            axes.plot(
                products, [row[key] for row in rows], color=COLOURS[name], clip_on=key == "error", **look
            )
            if name == "Diagonal":
                rotated = [row[f"rotated_{key}"] for row in rows]
                axes.plot(products, rotated, color=COLOURS[name], linestyle=":", **look)
    exact = {"marker": "v", "markersize": 6, "color": COLOURS["Exact"], "clip_on": False}
    upper.plot([numbers["features"]], [1e-4], **exact)
    best = next(row["error"] for row in numbers["accuracy"] if row["solver"] == "Exact")
    _label(upper, "Exact", f"exact: {best:.0e}", 13.5, 1.1e-4, ha="right", va="bottom")
    _label(upper, "ConjugateGradient", "conjugate gradient", 10, 0.02, ha="right")
    _label(upper, "Neumann", "Neumann", 1300, 0.2)
    _label(upper, "Diagonal", "diagonal", 6, 0.42, va="top", ha="right")
    _label(upper, "Diagonal", "diagonal, features rotated", 20, 1.9, va="center")
    _label(upper, "Identity", "identity", 3, 1.6, ha="center", va="bottom")
    _label(upper, "RankOne", "rank-one", 0, 0.4, ha="center", va="top")
    _label(lower, "Diagonal", "features rotated", 120, 0.29, va="center")
    _label(lower, "RankOne", "rank-one", 0, 0.5, ha="center", va="top")
    _label(lower, "Identity", "identity", 3.45, 0.55, va="top")
    _count_axis(upper)
    upper.set(yscale="log", ylim=(1e-4, 4), xlim=(-0.4, 5000), ylabel="relative error")
    upper.tick_params(labelbottom=False)
    upper.set_title(f"A  Hypergradient by cost (medians of {numbers['problems']} problems)")
    lower.set(
        ylim=(0, 1.03), ylabel="cosine with the exact one", yticks=[0, 0.5, 1], xlabel="Hessian products"
    )


def _draw_components(axes: Any, numbers: dict[str, Any]) -> None:
    values, found = numbers["eigenvalues"], numbers["components"]
    looks = {
        "RankOne": ("v", "-"),
        "Identity": ("D", "-"),
        "Neumann, 5": ("s", "--"),
        "Neumann, 100": ("s", "-"),
        "ConjugateGradient, 5": ("o", "--"),
        "ConjugateGradient, 10": ("o", "-"),
    }
    axes.axhline(1, color=COLOURS["Exact"], linewidth=1)
    for name, (marker, line) in looks.items():
        colour = COLOURS[name.split(",")[0]]
        axes.plot(values, found[name], marker=marker, markersize=4, linestyle=line, color=colour)
    _label(axes, "Exact", "exact", values[0], 1.02, va="bottom")
    _label(axes, "RankOne", f"rank-one\n(up to {found['RankOne'][-1]:.0f})", 1.75, 2.1, ha="right")
    _label(axes, "ConjugateGradient", "10 products", 0.55, 1.25, ha="center", va="bottom")
    _label(axes, "ConjugateGradient", "conjugate gradient,\n5 products", 9, 1.66, va="bottom")
    _label(axes, "Neumann", "Neumann,\n100 terms", 4.6, 0.93, va="top")
    _label(axes, "Neumann", "5 terms", 12, 0.52, ha="right", va="bottom")
    _label(axes, "Identity", "identity", 75, 0.45, va="top")
    axes.set(xscale="log", ylim=(-0.05, 2.4), xlabel="eigenvalue of the Hessian (curvature)")
    axes.set_ylabel("component along its eigenvector, as part of the exact one")
    axes.set_title("B  What is recovered of H⁻¹b")


def _draw_steps(axes: Any, numbers: list[dict[str, Any]]) -> None:
    for entry, colour in zip(numbers, (COLOURS["Neumann"], "0.55", "black"), strict=True):
        axes.plot(entry["terms"], entry["stopped"], color=colour)
        if entry["times_largest"] > 2:
            axes.plot(entry["bare_terms"], entry["bare"], color=colour, linestyle="--")
    axes.text(2.1, 300, "α = 0.1\nbare series", ha="right")
    axes.text(37, 300, "α = 2.2/λmax\nbare series", ha="right", color="0.4")
    axes.text(150, 1.3, "both, with the stop", va="bottom")
    _label(axes, "Neumann", "auto: α = 1/λmax", 250, 0.12, ha="right")
    _count_axis(axes)
    axes.set(yscale="log", ylim=(0.03, 1e4), xlim=(-0.1, 3000), xlabel="Neumann terms")
    axes.set_ylabel("relative error of H⁻¹b")
    axes.set_title("C  A step too long: finite, but no better than no terms")


def _draw_differences(axes: Any, numbers: dict[str, Any]) -> None:
    for name, colour, place in (("float64", "#0072B2", (2e-9, 1e-10)), ("float32", "#D55E00", (3e-9, 6))):
        entry = numbers[name]
        axes.plot(numbers["epsilon"], entry["errors"], color=colour)
        axes.plot([entry["default"]], [entry["error_of_default"]], marker="o", markersize=7, color=colour)
        axes.text(entry["default"] * 1.8, entry["error_of_default"], "default", color=colour, va="center")
        axes.text(*place, name, color=colour)
    axes.plot([5e-4, 1e-2], [5e-8, 2e-5], color="0.6", linewidth=1)
    axes.text(3e-3, 7e-7, "∝ ε²", color="0.4")
    axes.plot([3e-8, 3e-5], [1, 1e-3], color="0.6", linewidth=1)
    axes.text(1.5e-6, 4e-2, "∝ 1/ε", color="0.4")
    axes.set(xscale="log", yscale="log", xlabel="ε: how far the parameters are moved", ylim=(1e-12, 50))
    axes.set_ylabel("relative error of a Hessian product")
    axes.set_title("D  Finite differences, logistic loss")


def _count_axis(axes: Any) -> None:
    """A logarithmic axis that begins with 0."""
    axes.set_xscale("symlog", linthresh=1)
    ticks = [0, 1, 10, 100, 1000]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])


def _label(axes: Any, solver: str, text: str, x: float, y: float, **options: Any) -> None:
    axes.text(x, y, text, color=COLOURS[solver], **options)
