"""Approximations of the inverse Hessian; the package's table compares them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lossnet.hypergradient.base import Solution, Solver, System, check_at_least, inverse

#: a Neumann step: a number, or ``1 / |λ|max``
Step = float | Literal["auto"]


#: products of `_largest`, of which the first is that of the solver's own first step
ESTIMATE = 3


def _largest(system: System, image: Tensor) -> Tensor:
    """Return ``λ`` with ``‖Hu‖ ≤ λ ≤ |λ|max``, ``()``, for the ``image`` ``Hu`` of a unit ``u``, ``(n,)``.

    It is ``‖Hv‖`` after `ESTIMATE` products of the power method, ``v ← Hv / ‖Hv‖`` from ``v = u``, which only
    grows.  The Hessian changes with batch and dropout, by factors of 10 and more from one step to the next;
    so nothing is carried over.

    >>> hessian = torch.tensor([1.0, -3.0])
    >>> _largest(System(lambda v: hessian * v, torch.ones(2)), hessian / 2**0.5)
    tensor(2.9837)
    """
    largest = system.norm(image)
    for _ in range(ESTIMATE - 1):
        image = system.product(image * inverse(system.norm(image)))
        largest = torch.maximum(largest, system.norm(image))
    return largest


class _Stepping(Solver):
    """Base class of solvers that go from ``v = 0`` along the residual: ``v ← v + α r`` with ``r = b − Hv``.

    With one ``α`` for all steps, that is Neumann's series ``α Σ (I − αH)ⁱ b``, whose terms are the residuals.
    ``step="auto"`` takes ``α = 1 / λ`` with an estimate of ``|λ|max`` on this very Hessian, from
    ``‖Hr‖ / ‖r‖ ≤ λ ≤ |λ|max``, the left side for every ``r`` so far: where ``λ`` is too low, terms turn to
    the steepest direction, and raise it.  Where a step would leave a residual longer than ``b`` all the same,
    it is shortened to ``r·Hr / ‖Hr‖²``, which leaves the shortest.  Where that is negative, no step along
    ``r`` makes the residual shorter, and the sum ends.

    **The residual of** ``step="auto"`` **is at most 2** for every ``H``, which here includes the damping.
    Before its last step ``‖r‖ ≤ ‖b‖``, and ``α ≤ ‖r‖ / ‖Hr‖``, so that
    ``‖b − Hv‖ = ‖r − αHr‖ ≤ ‖r‖ + α ‖Hr‖ ≤ 2 ‖r‖ ≤ 2 ‖b‖``.  Where ``H`` is positive semidefinite the sum
    never ends early, and the residual is at most 1.
    """

    step: Step
    damping: float

    def __post_init__(self) -> None:
        check_at_least(0, damping=self.damping)
        if self.step != "auto" and not (isinstance(self.step, int | float) and self.step > 0):
            raise ValueError(f'step must be a positive number or "auto", not {self.step!r}')

    def _sum(self, system: System, terms: int) -> Solution:
        """Return ``v`` after ``terms + 1`` steps: with ``auto`` one product each, and two of `_largest`."""
        scale = system.norm(system.vector)
        bound = 1 + torch.finfo(scale.dtype).eps ** 0.5
        # A right-hand side of length 1, because squares of small gradients underflow in float32.
        term = system.vector * inverse(scale)
        total = torch.zeros_like(term)  # in place from here: vectors may be large
        length = going = torch.ones_like(scale)
        largest = count = torch.zeros_like(scale)
        auto = self.step == "auto"
        step = going if self.step == "auto" else going * self.step
        for index in range(terms + auto):
            image = system.product(term)
            if auto:
                seen = system.norm(image) * inverse(length) if index else _largest(system, image)
                largest = torch.maximum(largest, seen)
            if self.damping:
                image = image.add(term, alpha=self.damping)
            if auto:
                step = inverse(largest + self.damping)
                size, bend = system.norm(image), system.dot(term, image)
                left = length.square() - 2 * step * bend + (step * size).square()
                least = bend * inverse(size) * inverse(size)
                step = torch.where((left > bound**2) & (least > 0), least, step)
            total.addcmul_(term, step * going)
            # Once the sum has ended the term stands still, lest it overflow.
            term.addcmul_(image, -step * going)
            del image
            length = system.norm(term)
            count = count + going
            going = going * (length <= bound).to(going.dtype)
        if not auto:  # the residual of the last term is not asked for
            total.addcmul_(term, step * going)
            return Solution(total.mul_(scale), terms=count + going - 1)
        if self.damping:  # ``term`` belongs to the damped system
            term.add_(total, alpha=self.damping)
            length = system.norm(term)
        return Solution(total.mul_(scale), largest, length, count - 1)


@dataclass(frozen=True)
class Identity(_Stepping):
    """``α b``: `Neumann` without terms, one inner step of gradient descent (Luketina et al. 2016).

    Args:
        step: ``α``; ``auto`` takes ``1 / (λ + damping)`` with an estimate ``λ`` of ``|λ|max`` from three
            products, and less where that leaves a shorter residual.
        damping: added to the diagonal of ``H``; counts for ``step="auto"`` only.

    >>> Identity().solve(lambda v: 2 * v, torch.ones(2)).vector
    tensor([0.5000, 0.5000])
    """

    name: ClassVar[str] = "identity"
    step: Step = "auto"
    damping: float = 0.0

    def _solve(self, system: System) -> Solution:
        return replace(self._sum(system, 0), terms=None)


@dataclass(frozen=True)
class Neumann(_Stepping):
    """``α Σ_{i≤terms} (I − αH)ⁱ b`` (UAI supplement §1.1, without ``α``; Lorraine et al. 2020).

    The series converges for positive definite ``H`` and ``α‖H‖ < 2``, and its relative residual is then at
    most ``‖I − αH‖^(terms + 1)``.  Along negative curvature, or with a given step that is too long, terms
    grow instead: the sum ends before the first term longer than ``b``, so that ``‖v‖ ≤ α (terms + 1) ‖b‖``,
    and `Solution.terms` says after how many.  With ``step="auto"`` only negative curvature ends it: a step
    that proves too long is shortened.  `ConjugateGradient` is more accurate for as many products where ``H``
    is positive definite, and less predictable where it is not.

    Args:
        terms: products, beyond the three of ``step="auto"``.
        step: ``α``; ``auto`` takes ``1 / (λ + damping)`` with an estimate ``λ`` of ``|λ|max``.
        damping: added to the diagonal of ``H``.

    >>> hessian = torch.diag(torch.tensor([1.0, 0.5]))
    >>> Neumann(terms=2, step=1.0).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 1.7500])
    """

    name: ClassVar[str] = "neumann"
    product_count: ClassVar[str] = "terms"
    terms: int = 5
    step: Step = "auto"
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(0, terms=self.terms)
        super().__post_init__()

    def _solve(self, system: System) -> Solution:
        return self._sum(system, self.terms)


@dataclass(frozen=True)
class ConjugateGradient(Solver):
    """Conjugate gradients for ``(H + damping · I) v = b`` (Hestenes & Stiefel 1952).

    A direction without positive curvature ends the solve with the answer so far, as in Steihaug (1983); if it
    is the very first, the answer is ``b ‖b‖ / ‖Hb‖`` (steepest descent, as in Nocedal & Wright, Alg. 7.1,
    with a length that scales like ``H⁻¹``).  Directions flatter than ``√ε`` times the steepest seen count as
    flat: in this precision their curvature is noise.  All ``iterations`` products are made, since to leave
    the loop early would mean to wait for the device.

    The residual comes for free; ``curvature`` is the largest ``‖Hp‖ / ‖p‖`` seen, a lower bound.

    Args:
        iterations: products.
        tolerance: relative residual below which the answer is not changed any more.
        damping: added to the diagonal of ``H``.

    >>> hessian = torch.diag(torch.tensor([1.0, 4.0]))
    >>> ConjugateGradient(iterations=2).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 0.2500])
    """

    name: ClassVar[str] = "conjugate-gradient"
    product_count: ClassVar[str] = "iterations"
    iterations: int = 5
    tolerance: float = 1e-10
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(0, tolerance=self.tolerance, damping=self.damping)
        check_at_least(1, iterations=self.iterations)

    def _solve(self, system: System) -> Solution:
        vector, dot, norm = system.vector, system.dot, system.norm
        flat = torch.finfo(vector.dtype).eps ** 0.5
        scale = norm(vector)
        # A right-hand side of length 1, because squares of small gradients underflow in float32.
        residual = vector * inverse(scale)
        direction = residual.clone()  # in place from here: vectors may be large
        answer = torch.zeros_like(vector)
        squared = dot(residual, residual)
        steepest = torch.zeros_like(squared)
        active = squared > 0
        for index in range(self.iterations):
            image = system.product(direction)
            length = norm(direction) if index else squared.sqrt()
            steepest = torch.maximum(steepest, norm(image) * inverse(length))
            if self.damping:
                image = image.add(direction, alpha=self.damping)
            bend = dot(direction, image)
            positive = bend > flat * (steepest + self.damping) * length.square()
            step = torch.where(positive & active, squared * inverse(bend), 0.0)
            if index == 0:
                step = torch.where(positive, step, inverse(steepest + self.damping))
            answer.addcmul_(direction, step)
            residual.addcmul_(image, -step)
            del image
            previous, squared = squared, dot(residual, residual)
            active = active & positive & (squared > self.tolerance**2)
            turn = torch.where(active, squared * inverse(previous), 0.0)
            torch.addcmul(residual, direction, turn, out=direction)
        if self.damping:  # ``residual`` belongs to the damped system
            residual.add_(answer, alpha=self.damping)
        return Solution(answer.mul_(scale), steepest, norm(residual))


@dataclass(frozen=True)
class Diagonal(Solver):
    """``b / (|d| + damping)`` with ``d = mean z ⊙ Hz`` over random signs ``z`` (Bekas et al. 2007, Eq. 1).

    ``d`` estimates the diagonal without bias and is exact, with one sample, for a diagonal ``H``.  The
    absolute value keeps directions of negative curvature going downhill.  Signs come from torch's own
    random numbers.

    Args:
        samples: probes, each one product.
        floor: entries of ``|d|`` below this part of their root mean square count as that much, because a
            small estimate is mostly noise.
        damping: added to ``|d|``.

    >>> hessian = torch.diag(torch.tensor([1.0, -4.0]))
    >>> Diagonal(samples=1).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 0.2500])
    """

    name: ClassVar[str] = "diagonal"
    product_count: ClassVar[str] = "samples"
    needs_parameters: ClassVar[bool] = True
    samples: int = 5
    floor: float = 0.01
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(0, floor=self.floor, damping=self.damping)
        check_at_least(1, samples=self.samples)

    def _solve(self, system: System) -> Solution:
        total = torch.zeros_like(system.vector)
        for _ in range(self.samples):
            signs = torch.randint_like(system.vector, 2).mul_(2).sub_(1)
            total.addcmul_(signs, system.product(signs))
        size = (total / self.samples).abs()
        lowest = self.floor * size.square().mean().sqrt()
        return Solution(system.vector * inverse(torch.maximum(size, lowest) + self.damping))


@dataclass(frozen=True)
class RankOne(Solver):
    """``(λI + g gᵀ)⁻¹ b = (b − g (gᵀb) / (λ + gᵀg)) / λ`` with the inner gradient ``g`` and ``λ = damping``.

    One of the approximations that the UAI supplement names (Remark 1) without saying which vector to take;
    ``g gᵀ`` is the empirical Fisher matrix of the batch taken as one example, inverted by Sherman and
    Morrison's identity.  The cheapest solver, and blind to curvature that the gradient does not show.

    >>> RankOne().solve(lambda v: v, torch.ones(2), gradient=torch.tensor([1.0, 0.0])).vector
    tensor([0.5000, 1.0000])
    """

    name: ClassVar[str] = "rank-one"
    needs_gradient: ClassVar[bool] = True
    damping: float = 1.0

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise ValueError(f"damping must be above 0, not {self.damping}: a rank-one matrix has no inverse")

    def _solve(self, system: System) -> Solution:
        gradient, vector, dot = system.gradient, system.vector, system.dot
        if gradient is None:
            raise ValueError("RankOne.solve needs the inner gradient")
        share = dot(gradient, vector) / (self.damping + dot(gradient, gradient))
        return Solution(torch.addcmul(vector, gradient, -share) / self.damping)


@dataclass(frozen=True)
class Exact(Solver):
    """``(H + damping · I)⁺ b`` from the dense Hessian: one product for each parameter, cubic time.

    For small problems and as a yardstick.  Eigenvalues below ``n ε`` times the largest count as 0, so that a
    singular ``H`` gives the least-squares answer of least norm.  An indefinite ``H`` is inverted unchanged.

    >>> hessian = torch.diag(torch.tensor([2.0, 0.0, -1.0]))
    >>> Exact().solve(lambda v: hessian @ v, torch.ones(3)).vector
    tensor([ 0.5000,  0.0000, -1.0000])
    """

    needs_parameters: ClassVar[bool] = True
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(0, damping=self.damping)

    def _solve(self, system: System) -> Solution:
        vector, size = system.vector, len(system.vector)
        units = torch.eye(size, dtype=vector.dtype, device=vector.device)
        hessian = torch.stack([system.product(unit) for unit in units])
        with torch.autocast(vector.device.type, enabled=False):
            # Rounding, or finite differences, leave it a little unsymmetric.
            values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
            damped = values + self.damping
            cutoff = size * torch.finfo(vector.dtype).eps * damped.abs().amax()
            scale = torch.where(damped.abs() > cutoff, inverse(damped), 0.0)
            answer = vectors @ (scale * (vectors.T @ vector))
        return Solution(answer, values.abs().amax())
