"""Implicit gradients: how the minimum of an inner loss moves with the parameters of an outer one.

For ``θ*(φ) = argmin_θ L_inner(θ, φ)`` the implicit function theorem gives (UAI Eq. 3, supplement Eq. 6)

    dL_outer/dφ = ∂φ L_outer − ∂φ∂θ L_inner · [∂θ² L_inner]⁻¹ · ∂θ L_outer.

`implicit_gradient` computes it for any two scalar losses; two things vary independently.

What stands for the inverse Hessian:

===================  ====================================================  ========================
`Neumann`            ``α Σ_{i≤k} (I − αH)ⁱ b``                             ``k`` products
`ConjugateGradient`  the best answer of the ``k``-th Krylov space          ``k`` products
`Identity`           ``α b``                                               none
`Diagonal`           ``b / |diag H|``                                      one for each sample
`RankOne`            ``(λI + g gᵀ)⁻¹ b``                                   none
`Exact`              the pseudo-inverse, dense                             as many as parameters
===================  ====================================================  ========================

(``step="auto"`` costs three products more, and gives the residual.)  Products with the Hessian are made by
`DoubleBackward` or `FiniteDifference`.  The first needs no vectors as long as the weights of a network's
first layer: see `Layer`.
"""

from lossnet.hypergradient.base import Product, Solution, Solver
from lossnet.hypergradient.implicit import Hypergradient, cap, implicit_gradient
from lossnet.hypergradient.layers import Layer
from lossnet.hypergradient.products import DoubleBackward, FiniteDifference
from lossnet.hypergradient.solvers import (
    ConjugateGradient,
    Diagonal,
    Exact,
    Identity,
    Neumann,
    RankOne,
)

__all__ = [
    "SOLVERS",
    "ConjugateGradient",
    "Diagonal",
    "DoubleBackward",
    "Exact",
    "FiniteDifference",
    "Hypergradient",
    "Identity",
    "Layer",
    "Neumann",
    "Product",
    "RankOne",
    "Solution",
    "Solver",
    "cap",
    "implicit_gradient",
]

#: the solvers that have a name on the command line; `Exact` is for tests and small problems
SOLVERS = (Identity, Neumann, ConjugateGradient, Diagonal, RankOne)
