"""Written energies: what a person knows of outputs, as penalties.

A `Rule` is made from a function by `rule`, or by a word of the vocabulary below.  Labels are column numbers;
*facts* are what is known of each instance beside its inputs, such as a total.  A rule of infinite weight is
hard: what breaks it is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, overload

import torch
from torch import Tensor

from lossnet.energies.base import Energy
from lossnet.trees import Tree

#: ``(x, y, facts)`` to penalties ``(batch, K)`` of candidates ``(batch, K, *event)``, 0 where the rule holds
Penalties = Callable[[Any, Tensor, Any], Tensor]
#: how far from 0 the penalty of a hard rule that holds may be, by rounding
_ROUNDING = 1e-4


class Rule(Energy):
    """``weight · penalty(x, y, facts)``; with an infinite weight, infinite wherever there is a penalty.

    It goes wherever an energy does: alone, or into a `Sum` beside learned terms.  Relaxed outputs break most
    hard rules, so give a finite weight where a task net's probabilities are judged, as by `SEAL`.

    Args:
        penalties: maps ``(x, y, facts)`` to penalties ``(batch, K)``; inputs are as networks read them.
        weight: what one unit of penalty costs, in nats.
        name: in results.
        sizes: the fewest and the most labels of any output that the rule allows, if it says so.

    >>> pair = Rule(lambda x, y, facts: (y.sum(-1) - 2).abs(), weight=3.0, name="pair")
    >>> pair(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([[0., 3.]])
    """

    def __init__(
        self,
        penalties: Penalties,
        weight: float = 1.0,
        name: str = "rule",
        sizes: tuple[int, int | None] | None = None,
    ) -> None:
        super().__init__()
        if not weight > 0:
            raise ValueError(f"rule {name}: its weight must be above 0, not {weight}")
        self.penalties, self.weight, self.name, self.sizes = penalties, weight, name, sizes

    @property
    def hard(self) -> bool:
        """Whether what breaks the rule is impossible."""
        return math.isinf(self.weight)

    def encode(self, x: Tree, facts: Any = None) -> tuple[Tree, Any]:
        return x, facts

    def at(self, x: Tree, facts: Any = None) -> Callable[[Tensor], Tensor]:
        return partial(self.evaluate, self.encode(x, facts))

    def evaluate(self, encoded: tuple[Tree, Any], y: Tensor) -> Tensor:
        x, facts = encoded
        penalties = self.penalties(x, y, facts)
        if not isinstance(penalties, Tensor) or penalties.shape != y.shape[:2]:
            given = tuple(penalties.shape) if isinstance(penalties, Tensor) else type(penalties).__name__
            what = f"rule {self.name} gives {given} for candidates of the shape {tuple(y.shape)}"
            raise ValueError(f"{what}; it must give a penalty for each, a tensor {tuple(y.shape[:2])}")
        penalties = penalties.to(y.dtype)
        if not self.hard:
            return self.weight * penalties
        return torch.zeros_like(penalties).masked_fill(penalties > _ROUNDING, math.inf)

    def extra_repr(self) -> str:
        return f"{self.name}, weight={self.weight:g}"


@overload
def rule(function: Penalties) -> Rule: ...
@overload
def rule(*, weight: float = 1.0) -> Callable[[Penalties], Rule]: ...
def rule(function: Penalties | None = None, *, weight: float = 1.0) -> Rule | Callable[[Penalties], Rule]:
    """Make a `Rule` of a function ``(x, y, facts)`` that returns penalties ``(batch, K)``.

    Candidates ``y`` are ``(batch, K, *event)``; ``x`` and ``facts`` are of the batch, with instances along
    their first axes, and ``facts`` is None where nothing is known.

    >>> @rule(weight=2.0)
    ... def first_or_last(x, y, facts):
    ...     return (1 - y[..., 0] - y[..., -1]).clamp(min=0)
    >>> first_or_last
    Rule(first_or_last, weight=2)
    >>> first_or_last(torch.zeros(1, 4), torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([[2., 0.]])
    """

    def made(function: Penalties) -> Rule:
        return Rule(function, weight, getattr(function, "__name__", "rule"))

    return made if function is None else made(function)


# ---------------------------------------------------------------- a vocabulary of label sets


def exactly(count: int, labels: Sequence[int] | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that ``count`` of the labels are true, of all unless ``labels`` are given.

    >>> exactly(1, weight=1.0)(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]]))
    tensor([[2., 0.]])
    """
    sizes = (count, count) if labels is None else (count, None)
    return _counting(f"exactly({count})", lambda n: (n - count).abs(), labels, weight, sizes)


def at_most(count: int, labels: Sequence[int] | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that no more than ``count`` of the labels are true.

    >>> at_most(1, labels=[0, 1])(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[inf, 0.]])
    """
    sizes = (0, count if labels is None else None)
    return _counting(f"at_most({count})", lambda n: (n - count).clamp(min=0), labels, weight, sizes)


def at_least(count: int, labels: Sequence[int] | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that ``count`` or more of the labels are true.

    >>> at_least(2, weight=1.0)(torch.zeros(1, 4), torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[2., 0.]])
    """
    return _counting(f"at_least({count})", lambda n: (count - n).clamp(min=0), labels, weight, (count, None))


def implies(label: int, other: int, weight: float = math.inf) -> Rule:
    """Return the rule that where ``label`` is true, ``other`` is too.

    >>> implies(0, 2)(torch.zeros(1, 4), torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[inf, 0.]])
    """
    return Rule(lambda x, y, facts: y[..., label] * (1 - y[..., other]), weight, f"implies({label}, {other})")


def excludes(label: int, other: int, weight: float = math.inf) -> Rule:
    """Return the rule that two labels are never true together.

    >>> excludes(0, 2)(torch.zeros(1, 4), torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[0., inf]])
    """
    return Rule(lambda x, y, facts: y[..., label] * y[..., other], weight, f"excludes({label}, {other})")


def sums_to(values: Sequence[float] | None = None, fact: str | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that the values of the true labels add up to a total, which is a fact of each instance.

    Label ``i`` is worth ``i`` unless ``values`` are given.  The total is the facts themselves, ``(batch,)``,
    or the one called ``fact``; where it is NaN nothing is known, and nothing is penalised.

    >>> total = torch.tensor([3.0])
    >>> sums_to(weight=1.0).at(None, total)(torch.tensor([[[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]]))
    tensor([[0., 1.]])
    """

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        worth = range(y.shape[-1]) if values is None else values
        if len(worth) != y.shape[-1]:
            raise ValueError(f"sums_to has {len(worth)} values for {y.shape[-1]} labels")
        total = _fact("sums_to", facts, fact, y).reshape(len(y), 1)
        apart = (y @ torch.tensor(list(worth), dtype=y.dtype, device=y.device) - total).abs()
        return torch.where(total.isnan(), 0, apart)

    return Rule(penalties, weight, "sums_to")


def allowed(fact: str | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that true labels are among those allowed, ``(batch, labels)`` of 0 and 1 in the facts.

    >>> mine = torch.tensor([[1.0, 1.0, 0.0]])
    >>> allowed(weight=1.0).at(None, mine)(torch.tensor([[[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]]))
    tensor([[1., 0.]])
    """

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        may = _fact("allowed", facts, fact, y)
        return (y * (1 - may.nan_to_num(1)).unsqueeze(1)).sum(-1)

    return Rule(penalties, weight, "allowed")


def _counting(
    name: str,
    distance: Callable[[Tensor], Tensor],
    labels: Sequence[int] | None,
    weight: float,
    sizes: tuple[int, int | None],
) -> Rule:
    chosen = None if labels is None else list(labels)

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        return distance((y if chosen is None else y[..., chosen]).sum(-1))

    return Rule(penalties, weight, name if chosen is None else f"{name} of {chosen}", sizes)


def _fact(rule: str, facts: Any, name: str | None, like: Tensor) -> Tensor:
    """Return the facts, or those of a name, as numbers like others."""
    if name is not None and not isinstance(facts, Tensor) and facts is not None:
        if name not in facts:
            raise ValueError(f"rule {rule} reads the fact {name!r}; there are {', '.join(facts)}")
        facts = facts[name]
    if not isinstance(facts, Tensor):
        what = "there are none" if facts is None else f"there are {', '.join(facts)}: name one, fact=…"
        raise ValueError(f"rule {rule} reads facts of each instance, and {what}")
    return facts.to(like.dtype)


# ---------------------------------------------------------------- all outputs that hard rules allow


def listed(labels: int, rules: Iterable[Rule], most: int = 4096) -> Tensor | None:
    """Return all label sets whose sizes hard rules allow, ``(K, labels)``; None for more than ``most``.

    >>> listed(3, [exactly(2)])
    tensor([[1., 1., 0.],
            [1., 0., 1.],
            [0., 1., 1.]])
    >>> listed(40, [at_least(3)]) is None
    True
    """
    bounds = [rule.sizes for rule in rules if rule.hard and rule.sizes is not None]
    low = max((few for few, _ in bounds), default=0)
    high = min((many for _, many in bounds if many is not None), default=labels)
    sizes = range(low, min(high, labels) + 1)
    if not sizes:
        raise ValueError(f"no set of {labels} labels keeps all hard rules: they ask for {low} to {high}")
    if sum(math.comb(labels, size) for size in sizes) > most:
        return None
    rows = [chosen for size in sizes for chosen in combinations(range(labels), size)]
    sets = torch.zeros(len(rows), labels)
    for row, chosen in zip(sets, rows, strict=True):
        row[list(chosen)] = 1
    return sets
