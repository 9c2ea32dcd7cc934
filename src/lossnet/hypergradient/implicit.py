"""The implicit gradient: explicit term, linear solve, mixed product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.hypergradient.base import Solver, check_not_negative, inverse
from lossnet.hypergradient.double_backward import DoubleBackward, Products
from lossnet.hypergradient.evaluation import Layout, evaluate, first_order
from lossnet.hypergradient.finite_difference import FiniteDifference
from lossnet.hypergradient.neumann import Neumann

__all__ = ["Hypergradient", "cap", "implicit_gradient"]


@dataclass(frozen=True)
class Hypergradient:
    """A gradient of the outer loss and what it is made of; numbers are tensors ``()`` on the device.

    Attributes:
        gradients: ``dL_outer/dφ``, like the outer parameters: ``explicit + implicit``.
        explicit: ``∂φ L_outer``.
        implicit: ``−∂φ∂θ L_inner · [∂θ² L_inner]⁻¹ · ∂θ L_outer``, capped if asked for.
        explicit_norm: of the explicit term.
        implicit_norm: of the implicit term, before the cap.
        cosine: between the two; 0 where one vanishes.
        curvature: the solver's estimate of the Hessian's largest ``|λ|``, where it made one.
        residual: ``‖Hv − b‖ / ‖b‖`` of the linear solve, without damping, where it was free or asked for.
    """

    gradients: tuple[Tensor, ...]
    explicit: tuple[Tensor, ...]
    implicit: tuple[Tensor, ...]
    explicit_norm: Tensor
    implicit_norm: Tensor
    cosine: Tensor
    curvature: Tensor | None
    residual: Tensor | None


def implicit_gradient(
    outer: Tensor | Callable[[], Tensor],
    inner: Tensor | Callable[[], Tensor],
    inner_params: Sequence[Tensor],
    outer_params: Sequence[Tensor],
    solver: Solver | None = None,
    *,
    products: Products | None = None,
    ratio: float | None = None,
    residual: bool = False,
) -> Hypergradient:
    """``dL/dφ = ∂φ L_outer − ∂φ∂θ L_inner · [∂θ² L_inner]⁻¹ · ∂θ L_outer`` (UAI Eq. 3).

    Writes no ``.grad``.  Parameters that a loss does not reach get zeros; one may be both inner and outer.

    Args:
        outer: scalar with a live graph, or a callable that returns it.
        inner: the same; graphs may be shared with ``outer`` and stay usable.  Callables run under the
            caller's autocast and leave module buffers alone.
        inner_params: ``θ``.
        outer_params: ``φ``.
        solver: what stands for the inverse Hessian; a fresh `Neumann` by default.  Keep your own between
            steps, because ``step="auto"`` carries its curvature over.
        products: `DoubleBackward` or `FiniteDifference`; by default the first, and the second where some
            kernel has no second derivative (cuDNN's recurrent nets) and ``inner`` is a callable.
        ratio: `cap` the implicit term at this multiple of the explicit term's norm.
        residual: also compute the residual, by one more product made together with the last one
            (`ConjugateGradient` has it for free).

    >>> theta, phi = torch.tensor(3.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    >>> inner = (theta - phi) ** 2  # minimal at θ* = φ
    >>> outer = theta**2            # so dL/dφ = 2φ
    >>> implicit_gradient(outer, inner, [theta], [phi]).gradients
    (tensor(6.),)
    """
    inner_params, outer_params = tuple(inner_params), tuple(outer_params)
    _check_parameters(inner_params, "inner")
    _check_parameters(outer_params, "outer")
    solver = Neumann() if solver is None else solver
    firsts = first_order(evaluate(outer, "outer"), (*inner_params, *outer_params))
    explicit = firsts[len(inner_params) :]
    layout = Layout(inner_params)
    with torch.no_grad():
        vector = layout.flatten(firsts[: len(inner_params)])
    rest = (inner, layout, outer_params, vector, solver, residual)
    if products is not None:
        mixed, curvature, unsolved = _implicit(products, *rest)
    else:
        try:
            mixed, curvature, unsolved = _implicit(DoubleBackward(), *rest)
        except RuntimeError as error:
            if not _lacks_second_derivative(error):
                raise
            if not callable(inner):
                raise RuntimeError(
                    "the inner loss has a kernel without a second derivative: pass a callable that returns "
                    "the loss, for finite differences, or make the loss inside "
                    "torch.backends.cudnn.flags(enabled=False) or sdpa_kernel(SDPBackend.MATH)"
                ) from error
            mixed, curvature, unsolved = _implicit(FiniteDifference(), *rest)
    with torch.no_grad():
        implicit = tuple(-part for part in mixed)
        explicit_norm, implicit_norm = _norm(explicit), _norm(implicit)
        cosine = _dot(explicit, implicit) * inverse(explicit_norm) * inverse(implicit_norm)
        if ratio is not None:
            implicit = cap(implicit, explicit, ratio)
        gradients = tuple(e + i for e, i in zip(explicit, implicit, strict=True))
    return Hypergradient(
        gradients, explicit, implicit, explicit_norm, implicit_norm, cosine, curvature, unsolved
    )


def cap(implicit: Sequence[Tensor], explicit: Sequence[Tensor], ratio: float) -> tuple[Tensor, ...]:
    """The implicit term, shortened where needed to ``ratio`` times the explicit term's norm.

    A term that is not finite is dropped.  Without an explicit term nothing is left of the implicit one.

    >>> cap([torch.tensor([3.0, 4.0])], [torch.tensor([1.0, 0.0])], ratio=2.0)
    (tensor([1.2000, 1.6000]),)
    """
    check_not_negative(ratio=ratio)
    length = _norm(implicit)
    scale = (ratio * _norm(explicit) * inverse(length)).clamp(max=1.0)
    return tuple(torch.where(length.isfinite(), part * scale, 0.0).to(part.dtype) for part in implicit)


def _implicit(
    products: Products,
    inner: Tensor | Callable[[], Tensor],
    layout: Layout,
    outer_params: tuple[Tensor, ...],
    vector: Tensor,
    solver: Solver,
    residual: bool,
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """The mixed product ``∂φ∂θ L_inner · v`` for the solver's ``v``, its curvature and residual."""
    derivatives = products.of(inner, layout.parameters)

    def product(direction: Tensor) -> Tensor:
        return layout.flatten(derivatives.along(layout.split(direction), layout.parameters))

    with torch.no_grad():
        gradient = layout.flatten(derivatives.gradient()) if solver.needs_gradient else None
        solution = solver.solve(product, vector, gradient)
        direction, unsolved = layout.split(solution.vector), solution.residual
        if not residual or unsolved is not None:
            return derivatives.along(direction, outer_params), solution.curvature, unsolved
        both = derivatives.along(direction, (*layout.parameters, *outer_params))
        count = len(layout.parameters)
        image = layout.flatten(both[:count])
        unsolved = torch.linalg.vector_norm(image - vector) * inverse(torch.linalg.vector_norm(vector))
        return both[count:], solution.curvature, unsolved


def _lacks_second_derivative(error: RuntimeError) -> bool:
    """Whether autograd complains about double backward: cuDNN, flash attention, compiled code."""
    message = str(error).lower()
    return any(words in message for words in ("double backward", "is not implemented", "differentiate twice"))


def _check_parameters(parameters: tuple[Tensor, ...], name: str) -> None:
    if not parameters:
        raise ValueError(f"no {name} parameters")
    frozen = [index for index, parameter in enumerate(parameters) if not parameter.requires_grad]
    if frozen:
        raise ValueError(
            f"{name} parameters {frozen} do not require gradients; their hypergradient would be 0"
        )


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    lengths = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    total: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
    return total


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
