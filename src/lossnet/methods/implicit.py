"""Implicit training: the energy knows what the task net will make of it (UAI 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lossnet import ops
from lossnet.energies import Energy
from lossnet.hypergradient import SOLVERS, FiniteDifference, Identity, Solver, implicit_gradient
from lossnet.losses import CD, NCE, EnergyLoss, Margin, Regression, TaskLoss
from lossnet.losses.base import EnergyFunction
from lossnet.methods.base import Update, trained
from lossnet.methods.seal import SEAL
from lossnet.methods.spec import SEARCH, MethodSpec, Parts, named
from lossnet.nets import TextEncoder
from lossnet.nets.recurrent import is_recurrent, without_dropout
from lossnet.scores import F1, Score
from lossnet.spaces import Batch, Prediction, Space, Weights, mean

#: where the task net's parameters θ enter the primary loss
GradientPath = Literal["cost", "prediction", "everything"]


class Implicit(SEAL):
    """`SEAL` as a bilevel problem: the energy's gradient has an implicit term (UAI Eq. 3 and Algorithm 1).

    ``min_φ L_Prim(θ(φ), φ)`` with ``θ(φ) = argmin_θ L_Aux(θ, φ)``: ``L_Prim`` is the energy loss (`Margin` is
    the paper's SSVM, `Regression` its DVN, `CD`, `NCE`), ``L_Aux`` the task loss.  The energy descends

    ``∂φ L_Prim − μ · ∂φ∂θ L_Aux · [∂θ² L_Aux]⁻¹ · ∂θ L_Prim``

    where SEAL has only the first term.  The task net's steps of a batch come first, as in Algorithm 1: they
    are the inner problem, and the energy's steps see its answer.  What ``∂θ L_Prim`` means is a choice,
    because not every way in which the primary loss could fall is a better prediction:

    ``cost``
        θ enters through a term ``cost(ŷ, y)`` beside the energy loss and nowhere else: the energy is asked
        to lead the task net to better predictions.
    ``prediction``
        θ enters through the candidates: the relaxed prediction, or samples of it as if they had its gradient
        (straight through).  ``P`` is held fixed.
    ``everything``
        the literal reading: through ``log P(·|x)`` as well.  It rewards an energy that makes the
        task net worse, since bad samples are easy to tell from the truth.

    The inner problem is never solved to its end, so the Hessian may be indefinite and the implicit term of
    any length; it is capped at ``max_norm_ratio`` times the explicit term.  Second derivatives are exact, but
    for recurrent networks they are differences of gradients: many times faster, and cuDNN has no others.

    Args:
        score: whose cost the predictions should have little of, for ``gradient_path="cost"``.
        gradient_path: where θ enters.
        solver: what stands for the inverse Hessian.
        weight: ``μ``; 0 leaves `SEAL`.  With the default the implicit term is 1 to 9 times as long as the
            explicit one on the small sets that it was chosen with.
        max_norm_ratio: largest norm of the implicit term, in norms of the explicit one; None for no cap.  The
            default catches single batches; where ``capped``, the fraction of steps that it shortened, is
            near 1, the cap sets the term and objectives hardly differ.
        every: the implicit term is part of each ``every``-th energy step on a batch.

    The other arguments are `SEAL`'s; ``task_steps`` is the paper's T_inner, and steps are grouped.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = Implicit(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3), score=F1())
    >>> inner, outer = method.updates(Batch(torch.rand(5, 4), torch.ones(5, 3)))
    >>> inner.network, outer.network, sorted(outer.measured)
    ('task_net', 'energy', ['capped', 'cosine', 'curvature', 'explicit_norm', 'implicit_norm', 'residual'])
    """

    stackable = True
    partly_known = True
    per_replica = (*SEAL.per_replica, "weight")

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        space: Space,
        loss: EnergyLoss | None = None,
        task_loss: TaskLoss | None = None,
        energy_steps: int = 1,
        task_steps: int = 1,
        *,
        score: Score | None = None,
        gradient_path: GradientPath = "cost",
        solver: Solver | None = None,
        weight: float = 300.0,
        max_norm_ratio: float | None = 20.0,
        every: int = 1,
    ) -> None:
        # Algorithm 1 has all inner steps between two outer ones.
        super().__init__(task_net, energy, space, loss, task_loss, energy_steps, task_steps, "grouped")
        paths = get_args(GradientPath)
        if gradient_path not in paths:
            raise ValueError(f"gradient_path must be one of {', '.join(paths)}, not {gradient_path!r}")
        if not 1 <= every <= energy_steps:
            raise ValueError(f"every must be from 1 to energy_steps={energy_steps}, not {every}")
        self.score = score or F1()
        self.gradient_path = gradient_path
        self.solver = solver or Identity()
        self.weight = weight
        self.max_norm_ratio = max_norm_ratio
        self.every = every

    def stacking_blocker(self) -> str | None:
        if self.solver.needs_parameters:
            return f"the solver {type(self.solver).__name__} has no stacked form"
        return super().stacking_blocker()

    def updates(self, batch: Batch) -> Iterator[Update]:
        yield from self.task_updates(batch)
        yield from self.energy_updates(batch)

    def energy_updates(self, batch: Batch) -> Iterator[Update]:
        steps = range(1, self.energy_steps + 1)
        plain = [not self.weight or step % self.every != 0 for step in steps]
        explicit = self.explicit_updates(batch, sum(plain))
        for only_explicit in plain:
            yield next(explicit) if only_explicit else self.implicit_update(batch)

    def implicit_update(self, batch: Batch) -> Update:
        """Return an energy step along both terms, with products of matrices in full precision."""
        recurrent = is_recurrent(self.task_net, self.energy)
        with ops.matmul_precision(batch.y.device, rounded=False):
            prediction, energy = self.prediction(batch), self.energy.at(batch.x, batch.facts)
            outer = self.primary_loss(energy, prediction.completed(batch.y), prediction, batch.weight)
            hypergradient = implicit_gradient(
                outer,
                partial(self.inner_loss, batch)
                if recurrent
                else self.task_loss(prediction, batch.y, self.loss.task_objective(energy), batch.weight),
                trained(self.task_net),
                trained(self.energy),
                self.solver,
                products=FiniteDifference(draws=False) if recurrent else None,
                max_norm_ratio=self.max_norm_ratio,
                residual=not recurrent,
                total=self.total,
                problems=len(outer) if outer.dim() else None,
            )
        names = ("explicit_norm", "implicit_norm", "cosine", "curvature", "residual", "terms")
        values = {name: getattr(hypergradient, name) for name in names}
        if self.max_norm_ratio is not None:
            longest = self.max_norm_ratio * hypergradient.explicit_norm
            values["capped"] = (hypergradient.implicit_norm > longest).float()
        measured = {name: value for name, value in values.items() if value is not None}
        return Update("energy", outer, hypergradient.gradients, measured, whole=True)

    def inner_loss(self, batch: Batch) -> Tensor:
        """Return ``L_Aux``, ``()``, without dropout and in full precision, for finite differences."""
        cudnn = torch.backends.cudnn
        full_precision = cudnn.flags(enabled=cudnn.enabled, allow_tf32=False)
        with without_dropout(self.task_net, self.energy), full_precision:
            energy = self.loss.task_objective(self.energy.at(batch.x, batch.facts))
            return self.task_loss(self.prediction(batch), batch.y, energy, batch.weight)

    def primary_loss(
        self, energy: EnergyFunction, truth: Tensor, prediction: Prediction, weight: Weights | None = None
    ) -> Tensor:
        """Return ``L_Prim``, ``()``: ``gradient_path`` and ``weight`` change its gradient, not its value."""
        logits = prediction.logits.view_as(prediction.logits)
        if logits.requires_grad:
            # The same value, with a gradient that is ``weight`` times as long.
            logits.register_hook(lambda gradient: self.weight * gradient)
        live = Prediction(self.space, logits, prediction.mask)
        fixed = live.detach()
        if self.gradient_path == "cost":
            (explicit,) = self.loss.candidate_batches(truth, fixed, 1)
            loss = mean(explicit(energy), weight)
            cost = mean(self.score.cost(live.relaxed.unsqueeze(1), truth).squeeze(1), weight)
            return loss + (cost - cost.detach())
        candidates = self.loss.propose(live)
        if not candidates.requires_grad:
            candidates = candidates + (live.relaxed - fixed.relaxed).unsqueeze(1)
        known = live if self.gradient_path == "everything" else fixed
        return mean(self.loss(energy, truth, candidates, known), weight)


def build(parts: Parts) -> Implicit:
    """Return `Implicit`, or the subclass that the parts' spec names, from its parts."""
    s, loss = parts.settings, parts.energy_loss()
    if isinstance(loss, NCE):  # the paper's L_NCE has the cost in its exponents, which SEAL's has not
        loss = replace(loss, score=parts.task.score)
    method = parts.make(
        parts.spec.method,
        loss=loss,
        gradient_path=s.implicit_through,
        solver={solver.name: solver for solver in SOLVERS}[s.solver].with_products(s.solver_terms),
        weight=s.implicit_weight,
        max_norm_ratio=s.implicit_cap or None,
        every=s.implicit_every or s.energy_steps,
    )
    assert isinstance(method, Implicit)
    for module in method.modules():
        if isinstance(module, TextEncoder):
            module.exact()
    return method


SPEC = MethodSpec(
    "implicit",
    Implicit,
    "seal, with an energy that sees what the task net will make of it",
    losses=named(NCE, Margin, Regression, CD),
    search=(*SEARCH, "implicit_weight", "implicit_cap"),
    build=build,
    portfolio=("nce",),
)
