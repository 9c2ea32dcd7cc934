"""The implicit gradient: explicit term, linear solve, mixed product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lossnet.hypergradient.base import Solution, Solver, System, check_at_least, inverse
from lossnet.hypergradient.evaluation import Layout, derivatives, evaluate
from lossnet.hypergradient.layers import Gradient, Layer, Place, places, thin_layers, within
from lossnet.hypergradient.products import DoubleBackward, FiniteDifference, Products
from lossnet.hypergradient.solvers import Neumann

#: sums each of some tensors over processes
Total = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Hypergradient:
    """A gradient of the outer loss and what it is made of; numbers are tensors ``()`` on the device.

    Attributes:
        gradients: ``dL_outer/dφ``, like the outer parameters: the sum of both terms.
        explicit_term, implicit_term: `explicit` and `implicit` at the outputs of thin layers.
        explicit_norm: of the explicit term.
        implicit_norm: of the implicit term, before the cap.
        cosine: between the two; 0 where one vanishes.
        curvature: the solver's estimate of the Hessian's largest ``|λ|``, where it made one.
        residual: ``‖Hv − b‖ / ‖b‖`` of the linear solve, without damping, where it was free or asked for.
        terms: of a series, those that were summed beyond the first; fewer than asked for where it ended
            early.
    """

    gradients: tuple[Tensor, ...]
    explicit_term: Gradient
    implicit_term: Gradient
    explicit_norm: Tensor
    implicit_norm: Tensor
    cosine: Tensor
    curvature: Tensor | None
    residual: Tensor | None
    terms: Tensor | None

    @cached_property
    def explicit(self) -> tuple[Tensor, ...]:
        """``∂φ L_outer``."""
        return self.explicit_term.whole

    @cached_property
    def implicit(self) -> tuple[Tensor, ...]:
        """``−∂φ∂θ L_inner · [∂θ² L_inner]⁻¹ · ∂θ L_outer``, capped if asked for."""
        return self.implicit_term.whole


def implicit_gradient(
    outer: Tensor | Callable[[], Tensor],
    inner: Tensor | Callable[[], Tensor],
    inner_params: Sequence[Tensor],
    outer_params: Sequence[Tensor],
    solver: Solver | None = None,
    *,
    products: Products | None = None,
    max_norm_ratio: float | None = None,
    residual: bool = False,
    total: Total | None = None,
    problems: int | None = None,
) -> Hypergradient:
    """Return ``dL/dφ = ∂φ L_outer − ∂φ∂θ L_inner · [∂θ² L_inner]⁻¹ · ∂θ L_outer`` (UAI Eq. 3).

    Writes no ``.grad``.  Parameters that a loss does not reach get zeros; one may be both inner and outer.

    Args:
        outer: scalar with a live graph, or a callable that returns it.
        inner: the same; graphs may be shared with ``outer`` and stay usable.  Callables run under the
            caller's autocast and leave module buffers alone.
        inner_params: ``θ``.
        outer_params: ``φ``.
        solver: what stands for the inverse Hessian; `Neumann` by default.
        products: `DoubleBackward` or `FiniteDifference`; by default the first, and the second where some
            kernel has no second derivative (cuDNN's recurrent nets) and ``inner`` is a callable.
        max_norm_ratio: `cap` the implicit term at this multiple of the explicit term's norm.
        residual: also compute the residual, by one more product made together with the last one
            (`ConjugateGradient` and ``step="auto"`` have it for free).
        total: where each of several processes has a part of both losses, which are the sums of these: what
            sums tensors over the processes.  All of them must call this function, and all get the same.
        problems: the number of independent problems side by side: losses are ``(problems,)``, all parameters
            and the numbers in the answer have a first axis of that length.  By `DoubleBackward`, and with
            solvers that do not look at single parameters.

    >>> theta, phi = torch.tensor(3.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    >>> inner = (theta - phi) ** 2  # minimal at θ* = φ
    >>> outer = theta**2            # so dL/dφ = 2φ
    >>> implicit_gradient(outer, inner, [theta], [phi]).gradients
    (tensor(6.),)
    """
    inner_params, outer_params = tuple(inner_params), tuple(outer_params)
    for name, params in (("inner", inner_params), ("outer", outer_params)):
        if not params:
            raise ValueError(f"no {name} parameters")
        if frozen := [index for index, parameter in enumerate(params) if not parameter.requires_grad]:
            what = f"{name} parameters {frozen} do not require gradients"
            raise ValueError(f"{what}; their hypergradient would be 0")
    parameters, count = (*inner_params, *outer_params), len(inner_params)
    solver = Neumann() if solver is None else solver
    if problems is not None:
        if any(parameter.dim() == 0 or len(parameter) != problems for parameter in parameters):
            raise ValueError(f"every parameter of {problems} problems must have a first axis of that length")
        if solver.needs_parameters or not isinstance(products, DoubleBackward | None):
            what = type(solver if solver.needs_parameters else products).__name__
            raise ValueError(f"{what} cannot have several problems side by side")
        products = DoubleBackward(thin=False)
    loss, first_try = evaluate(outer, "outer", problems), products or DoubleBackward()
    thin = isinstance(first_try, DoubleBackward) and first_try.thin and not solver.needs_parameters
    thin = thin and total is None  # the rows of a layer's input are spread over processes
    layers = thin_layers(loss, parameters) if thin else {}
    firsts = derivatives([loss], places(parameters, layers))
    del loss  # and its graph, unless the caller keeps it
    both = Gradient(firsts if total is None else total(firsts), layers)
    slope, known = both.part(0, count), both.part(count, len(parameters))
    if callable(inner):  # which may put other inputs in the place of those
        known = known.at({})
    rest = (inner, inner_params, outer_params, slope, known, solver, residual, total, problems)
    try:
        implicit, solution = _implicit(first_try, *rest)
    except RuntimeError as error:
        # Autograd's complaints about double backward: cuDNN, flash attention, compiled code.
        complaints = ("double backward", "is not implemented", "differentiate twice")
        if products is not None or not any(words in str(error).lower() for words in complaints):
            raise
        if not callable(inner):
            raise RuntimeError(
                "the inner loss has a kernel without a second derivative: pass a callable that returns "
                "the loss, for finite differences, or make the loss inside "
                "torch.backends.cudnn.flags(enabled=False) or sdpa_kernel(SDPBackend.MATH)"
            ) from error
        implicit, solution = _implicit(FiniteDifference(), *rest)
    with torch.no_grad():
        explicit = known.at(implicit.layers)
        explicit_norm, implicit_norm = explicit.norm(problems), implicit.norm(problems)
        cosine = explicit.dot(implicit, problems) * inverse(explicit_norm) * inverse(implicit_norm)
        if max_norm_ratio is not None:
            shortened = _shortened(implicit.parts, implicit_norm, explicit_norm, max_norm_ratio)
            implicit = Gradient(shortened, implicit.layers)
        parts = tuple(e + i for e, i in zip(explicit.parts, implicit.parts, strict=True))
        gradients = Gradient(parts, implicit.layers).whole
    parts_of_it = explicit.without_graph(), implicit.without_graph()
    norms = explicit_norm, implicit_norm
    solved = solution.curvature, solution.residual, solution.terms
    return Hypergradient(gradients, *parts_of_it, *norms, cosine, *solved)


def cap(
    implicit: Sequence[Tensor], explicit: Sequence[Tensor], max_norm_ratio: float, problems: int | None = None
) -> tuple[Tensor, ...]:
    """Return the implicit term, shortened where needed to ``max_norm_ratio`` times the explicit term's norm.

    A term that is not finite is dropped.  Without an explicit term nothing is left of the implicit one.  Each
    of several ``problems`` has its own norms.

    >>> cap([torch.tensor([3.0, 4.0])], [torch.tensor([1.0, 0.0])], max_norm_ratio=2.0)
    (tensor([1.2000, 1.6000]),)
    """
    length, longest = (Gradient(tuple(term), {}).norm(problems) for term in (implicit, explicit))
    return _shortened(implicit, length, longest, max_norm_ratio)


def _shortened(
    implicit: Sequence[Tensor], length: Tensor, explicit_length: Tensor, max_norm_ratio: float
) -> tuple[Tensor, ...]:
    """Return `cap`, given both norms, ``()`` or ``(problems,)``."""
    check_at_least(0, max_norm_ratio=max_norm_ratio)
    scale = (max_norm_ratio * explicit_length * inverse(length)).clamp(max=1.0)
    capped, known_finite = [], not length.dim() and not length.is_cuda and length.isfinite()
    for part in implicit:
        shape = [-1, *[1] * (part.dim() - 1)] if length.dim() else []
        kept = part * scale.view(shape)
        # On a GPU without asking: a captured graph must not wait for a value.
        kept = kept if known_finite else torch.where(length.isfinite().view(shape), kept, 0.0)
        capped.append(kept.to(part.dtype))
    return tuple(capped)


def _implicit(
    products: Products,
    inner: Tensor | Callable[[], Tensor],
    inner_params: tuple[Tensor, ...],
    outer_params: tuple[Tensor, ...],
    slope: Gradient,
    explicit: Gradient,
    solver: Solver,
    residual: bool,
    total: Total | None,
    problems: int | None,
) -> tuple[Gradient, Solution]:
    """Return ``−∂φ∂θ L_inner · v``, and the solution ``v`` with its residual if that is asked for.

    The term is at the layers that ``explicit`` has too, where that is possible.
    """
    layout, outer_layers = Layout(inner_params, problems=problems), dict[int, Layer]()
    if isinstance(products, DoubleBackward):
        inner = evaluate(inner, "inner", problems)
        if slope.layers or explicit.layers:
            both, count = (*inner_params, *outer_params), len(inner_params)
            thin = thin_layers(inner, both)
            layout = Layout(inner_params, slope.common(within(thin, 0, count)))
            outer_layers = explicit.common(within(thin, count, len(both)))
        inner_derivatives = products.of(inner, layout.places)
    else:
        inner_derivatives = products.of(inner, inner_params)

    def along(direction: Sequence[Tensor], targets: Sequence[Place]) -> tuple[Tensor, ...]:
        parts = inner_derivatives.along(direction, targets)
        return parts if total is None else total(parts)

    def product(direction: Tensor) -> Tensor:
        return layout.flatten(along(layout.split(direction), layout.places))

    plain = torch.autocast(inner_params[0].device.type, enabled=False)
    with torch.no_grad(), plain:
        vector = layout.flatten(slope.at(layout.layers).parts)
    # Finite differences evaluate the inner loss, as the caller would.
    with torch.no_grad(), plain if isinstance(products, DoubleBackward) else nullcontext():
        gradient = None
        if solver.needs_gradient:
            parts = inner_derivatives.gradient()
            gradient = layout.flatten(parts if total is None else total(parts))
        solution = solver.solve(product, vector, gradient, dot=layout.dot)
        direction = layout.split(-solution.vector)
        targets = places(outer_params, outer_layers)
        if not residual or solution.residual is not None:
            mixed = along(direction, targets)
        else:
            all_parts = along(direction, (*layout.places, *targets))
            image, mixed = layout.flatten(all_parts[: len(layout.places)]), all_parts[len(layout.places) :]
            norm = System(product, vector, dot=layout.dot).norm
            solution = replace(solution, residual=norm(image + vector) * inverse(norm(vector)))
        return Gradient(mixed, outer_layers), solution
