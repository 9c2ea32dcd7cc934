"""From names and settings to a method: the one place where names are looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from lossnet import losses
from lossnet.energies import Energy, Sum
from lossnet.hypergradient import ConjugateGradient, Diagonal, Identity, Neumann, RankOne, Solver
from lossnet.inference import GradientInference
from lossnet.losses import Asymmetric, Dice, EnergyLoss, FixedLoss, Lovasz, Margin, Regression, TaskLoss
from lossnet.methods import (
    CRF,
    DVN,
    SEAL,
    SPEN,
    CostNet,
    CrossEntropy,
    Implicit,
    InfNet,
    InfNetPlus,
    Method,
    NCEEnergy,
    SEALStatic,
    Separated,
    Shared,
    Stacked,
)
from lossnet.scores import Score
from lossnet.settings import Settings
from lossnet.spaces import Tags
from lossnet.task import Task

__all__ = ["METHODS", "MethodEntry", "build", "check_names", "default_loss", "suits"]

ENERGY_LOSSES: dict[str, Callable[[Settings, Score], EnergyLoss]] = {
    "margin": lambda s, score: losses.Margin(score),
    "perceptron": lambda s, score: losses.Perceptron(score),
    "regression": lambda s, score: losses.Regression(score),
    "regression-s": lambda s, score: losses.RegressionS(score, s.samples, s.perturb_std),
    "nce": lambda s, score: losses.NCE(s.samples),
    "ranking": lambda s, score: losses.Ranking(s.samples),
    "cd": lambda s, score: losses.CD(s.samples, score),
}
#: what takes the place of cross-entropy, for outputs of yes and no; the others keep it
FIXED_LOSSES: dict[str, FixedLoss] = {"asymmetric": Asymmetric(), "dice": Dice(), "lovasz": Lovasz()}

SOLVERS: dict[str, Callable[[Settings], Solver]] = {
    "identity": lambda s: Identity(),
    "neumann": lambda s: Neumann(s.solver_terms),
    "conjugate-gradient": lambda s: ConjugateGradient(s.solver_terms),
    "diagonal": lambda s: Diagonal(s.solver_terms),
    "rank-one": lambda s: RankOne(),
}


@dataclass(frozen=True)
class MethodEntry:
    """A method's losses, the default first, and a line that says what it does."""

    losses: tuple[str, ...]
    summary: str


#: the methods by the names that they have on the command line
METHODS = {
    "cross-entropy": MethodEntry(
        ("none", "soft-f1", "asymmetric", "dice", "lovasz"),
        "a task net alone; soft-f1 adds a score term, the others replace cross-entropy",
    ),
    "spen": MethodEntry(("margin",), "an energy alone, trained on cost-augmented inference"),
    "dvn": MethodEntry(("regression",), "an energy alone that learns the score itself"),
    "nce-energy": MethodEntry(("nce", "ranking"), "an energy alone, against a frozen task net"),
    "crf": MethodEntry(("likelihood",), "a chain energy alone, trained by its exact likelihood (tags only)"),
    "infnet": MethodEntry(
        ("margin", "perceptron"), "a cost-augmented net against the energy, then fine-tuned"
    ),
    "infnet-plus": MethodEntry(
        ("margin",), "a cost-augmented net and the task net together against the energy"
    ),
    "seal-static": MethodEntry(
        ("nce", "margin", "regression"), "an energy trained first, frozen, then used as a loss"
    ),
    "seal": MethodEntry(
        ("nce", "margin", "regression", "regression-s", "ranking", "cd"),
        "energy and task net trained in turn",
    ),
    "implicit": MethodEntry(
        ("nce", "margin", "regression", "cd"),
        "seal, with an energy that sees what the task net will make of it",
    ),
}


def default_loss(method: str) -> str:
    """The loss that a method uses unless told.

    >>> default_loss("seal")
    'nce'
    """
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")
    return METHODS[method].losses[0]


def check_names(method: str, loss: str) -> None:
    """Refuses methods and losses that do not exist or do not go together."""
    default_loss(method)
    if loss not in METHODS[method].losses:
        known = ", ".join(METHODS[method].losses)
        raise ValueError(f"method {method} has no loss {loss!r}; it takes {known}")


def suits(method: str, loss: str, kind: str) -> bool:
    """Whether a method and loss can be had for a kind of output: labels, masks or tags.

    >>> suits("crf", "likelihood", "labels"), suits("cross-entropy", "dice", "tags")
    (False, False)
    """
    return loss not in FIXED_LOSSES if kind == "tags" else method != "crf"


def build(method: str, loss: str, settings: Settings, task: Task) -> Method:
    """A method for a task.

    >>> from lossnet.inputs import Features
    >>> from lossnet.outputs import Labels
    >>> type(build("seal", "nce", Settings(), Task(Features.of_size(4), Labels.of_size(3)))).__name__
    'SEAL'
    """
    check_names(method, loss)
    if not suits(method, loss, task.kind):
        raise ValueError(f"method {method} with loss {loss} is not for {task.kind}")
    if task.own.frozen and method != "seal":
        raise ValueError(
            f"a frozen energy can only teach a task net, by method seal; {method} does not do that"
        )
    if task.own.energy is not None and method in ("cross-entropy", "crf"):
        raise ValueError(
            f"method {method} takes no energy of your own; leave energy= out, or use method seal"
        )
    return _Builder(loss, settings, task).build(method)


class _Builder:
    def __init__(self, loss: str, settings: Settings, task: Task) -> None:
        self.loss, self.settings, self.task = loss, settings, task
        self.space = task.space(settings)

    def build(self, method: str) -> Method:
        s = self.settings
        steps: dict[str, Any] = {"energy_steps": s.energy_steps, "task_steps": s.task_steps}
        if method == "cross-entropy":
            return CrossEntropy(self.task_net(), self.space, self.task_loss())
        if method == "infnet":
            loss = self.energy_loss()
            assert isinstance(loss, Margin)
            return InfNet(
                self.task_net(),
                self.energy(),
                self.space,
                loss,
                self.task_loss(),
                **steps,
                truncated=s.zero_truncation,
            )
        if method == "infnet-plus":
            loss, task_net = self.energy_loss(), self.task_net()
            assert isinstance(loss, Margin)
            return InfNetPlus(
                task_net,
                self.cost_net(task_net),
                self.energy(),
                self.space,
                loss,
                self.task_loss(),
                **steps,
                weight=s.perceptron_weight,
                truncated=s.zero_truncation,
            )
        if method == "crf":
            energy = self.energy()
            assert isinstance(energy, Sum)
            assert isinstance(self.space, Tags)
            return CRF(energy, self.space)
        if method == "seal":
            loss = self.energy_loss()
            if self.task.own.frozen:
                steps["energy_steps"] = 0
            return SEAL(self.task_net(), self.energy(), self.space, loss, self.task_loss(), **steps)
        if method == "implicit":
            # The paper's L_NCE has the cost in its exponents, which SEAL's has not.
            score = self.task.score
            loss = losses.NCE(s.samples, score) if self.loss == "nce" else self.energy_loss()
            return Implicit(
                self.task_net(),
                self.energy(),
                self.space,
                loss,
                self.task_loss(),
                **steps,
                score=score,
                through=s.implicit_through,
                solver=SOLVERS[s.solver](s),
                weight=s.implicit_weight,
                ratio=s.implicit_cap or None,
                every=s.implicit_every or s.energy_steps,
            )
        if method == "seal-static":
            teacher = {"margin": "spen", "regression": "dvn", "nce": "nce-energy"}[self.loss]
            return SEALStatic(
                self.task_net(),
                self.energy_method(teacher),
                self.space,
                self.task_loss(),
                s.task_steps,
            )
        return self.energy_method(method)

    def energy_method(self, method: str) -> SPEN | DVN | NCEEnergy:
        loss = self.energy_loss()
        if method == "spen":
            assert isinstance(loss, Margin)
            return SPEN(self.energy(), self.space, loss, self.inference())
        if method == "dvn":
            assert isinstance(loss, Regression)
            return DVN(self.energy(), self.space, loss, self.inference())
        return NCEEnergy(self.energy(), self.task_net(), self.space, loss, self.inference())

    def energy_loss(self) -> EnergyLoss:
        return ENERGY_LOSSES[self.loss](self.settings, self.task.score)

    def task_net(self) -> nn.Module:
        return self.task.task_net(self.settings)

    def cost_net(self, task_net: nn.Module) -> CostNet:
        if self.settings.cost_net == "separated":
            return Separated(self.task_net())
        if self.settings.cost_net == "shared":
            return Shared(task_net.head)  # type: ignore[arg-type]
        return Stacked(self.space)

    def energy(self) -> Energy:
        return self.task.energy(self.settings, bounded=self.loss.startswith("regression"))

    def task_loss(self) -> TaskLoss:
        s = self.settings
        score = s.score_weight
        if self.loss == "soft-f1" and not score:
            # Cross-entropy sums over labels, so the weight of one score grows with their number.
            score = 0.3 * self.task.units
        fixed = FIXED_LOSSES.get(self.loss, losses.cross_entropy)
        return TaskLoss(s.energy_weight, s.ce_weight, score, self.task.score, fixed)

    def inference(self) -> GradientInference:
        s = self.settings
        return GradientInference(
            steps=s.inference_steps,
            lr=s.inference_lr,
            update=s.inference_update,
            optimizer=s.inference_optimizer,
            start=s.inference_start,
            candidates=s.inference_candidates,
        )
