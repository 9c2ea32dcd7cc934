"""Approximations of the inverse Hessian; the package's table compares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lossnet.hypergradient.base import Product, Solution, Solver, System, check_at_least, inverse

#: a Neumann step: a number, or ``1 / |λ|max``
Step = float | Literal["auto"]


@dataclass(eq=False)
class Curvature:
    """An estimate of ``|λ|max`` as ``‖Hv‖`` for a unit vector ``v`` that follows ``v ← Hv / ‖Hv‖``.

    Never above the true value; converges to it also where the largest eigenvalues are negative or come as
    ``±λ``.  The Hessian changes little between training steps, so one product for each update follows it.
    A start from a fixed seed leaves the program's random numbers alone.

    Args:
        first: products of the first call, when there is no vector to carry on from.
        vector: the state, ``(n,)``; a checkpoint stores it.

    >>> curvature = Curvature(first=20)
    >>> curvature.update(lambda v: torch.tensor([1.0, -3.0]) * v, torch.zeros(2))
    tensor(3.)
    """

    first: int = 5
    vector: Tensor | None = None

    def __post_init__(self) -> None:
        check_at_least(1, first=self.first)

    def update(self, product: Product, like: Tensor) -> Tensor:
        """Return ``|λ|max``, ``()``, after one product (the first call: ``first``); ``like`` is any ``(n,)``.

        For several problems side by side, ``like`` is ``(problems, n)`` and the answer ``(problems, 1)``.
        """
        vector, rounds = self.vector, 1
        if vector is None or vector.shape != like.shape or vector.device != like.device:
            generator = torch.Generator(like.device).manual_seed(0)
            vector = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            vector /= torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
            rounds = self.first
        for _ in range(rounds):
            image = product(vector.to(like.dtype))
            size: Tensor = torch.linalg.vector_norm(image, dim=-1, keepdim=image.dim() > 1)
            # A flat or diverged Hessian says nothing about direction: keep the one we have.
            usable = (inverse(size) > 0) & size.isfinite()
            # In place: a captured step writes to this very tensor, and must not ask for a value.
            if size.dim() or size.device.type != "cpu":
                vector.copy_(torch.where(usable, image * inverse(size), vector))
            elif usable:
                torch.mul(image, inverse(size), out=vector)
        self.vector = vector  # only now: a product may fail and be made in another way
        return size


class _Stepping(Solver):
    """Base class of solvers whose step ``α`` is a number or ``1 / (|λ|max + damping)``."""

    step: Step
    damping: float
    curvature: Curvature

    def __post_init__(self) -> None:
        check_at_least(0, damping=self.damping)
        if self.step != "auto" and not (isinstance(self.step, int | float) and self.step > 0):
            raise ValueError(f'step must be a positive number or "auto", not {self.step!r}')

    def estimate(self, product: Product, like: Tensor) -> Tensor | None:
        return self.curvature.update(product, like) if self.step == "auto" else None

    def _alpha(self, system: System) -> tuple[Tensor, Tensor | None]:
        """Return ``α``, ``()``, and the ``|λ|max`` that it comes from if it is measured."""
        vector, largest = system.vector, system.largest
        if self.step != "auto":
            return torch.full((), self.step, dtype=vector.dtype, device=vector.device), largest
        largest = self.curvature.update(system.product, vector) if largest is None else largest
        return inverse(largest + self.damping), largest


@dataclass(frozen=True)
class Identity(_Stepping):
    """``α b``: `Neumann` without terms, one inner step of gradient descent (Luketina et al. 2016).

    Args:
        step: ``α``; ``auto`` takes ``1 / (|λ|max + damping)``.
        damping: added to the diagonal of ``H``; counts for ``step="auto"`` only.
        curvature: what estimates ``|λ|max``.

    >>> Identity(step=0.5).solve(lambda v: v, torch.ones(2)).vector
    tensor([0.5000, 0.5000])
    """

    name: ClassVar[str] = "identity"
    step: Step = "auto"
    damping: float = 0.0
    curvature: Curvature = field(default_factory=Curvature, repr=False, compare=False)

    def _solve(self, system: System) -> Solution:
        step, largest = self._alpha(system)
        return Solution(step * system.vector, largest)


@dataclass(frozen=True)
class Neumann(_Stepping):
    """``α Σ_{i≤terms} (I − αH)ⁱ b`` (UAI supplement §1.1, without ``α``; Lorraine et al. 2020).

    The series converges for positive definite ``H`` and ``α‖H‖ < 2``, and its relative residual is then at
    most ``‖I − αH‖^(terms + 1)``.  Along negative curvature, or with a step too long, terms grow instead:
    the sum ends before the first term longer than ``b``, so that ``‖v‖ ≤ α (terms + 1) ‖b‖`` always.
    `ConjugateGradient` is more accurate for as many products where ``H`` is positive definite, and less
    predictable where it is not.

    Args:
        terms: products, beyond those of ``step="auto"``.
        step: ``α``; ``auto`` takes ``1 / (|λ|max + damping)``.
        damping: added to the diagonal of ``H``.
        curvature: what estimates ``|λ|max``; it lives in the solver, so keep the solver between steps.

    >>> hessian = torch.diag(torch.tensor([1.0, 0.5]))
    >>> Neumann(terms=2, step=1.0).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 1.7500])
    """

    name: ClassVar[str] = "neumann"
    product_count: ClassVar[str] = "terms"
    terms: int = 5
    step: Step = "auto"
    damping: float = 0.0
    curvature: Curvature = field(default_factory=Curvature, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_at_least(0, terms=self.terms)
        super().__post_init__()

    def _solve(self, system: System) -> Solution:
        step, largest = self._alpha(system)
        vector, dtype = system.vector, system.vector.dtype
        bound = system.norm(vector) * (1 + torch.finfo(dtype).eps ** 0.5)
        term, total = vector.clone(), vector.clone()  # in place from here: vectors may be large
        going = torch.ones_like(step)
        for _ in range(self.terms):
            image = system.product(term)
            if self.damping:
                image = image.add(term, alpha=self.damping)
            # Once the sum has ended the term stands still, lest it overflow.
            term.addcmul_(image, -step * going)
            del image
            going = going * (system.norm(term) <= bound).to(dtype)
            total.addcmul_(term, going)
        return Solution(total.mul_(step), largest)


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
