"""Written energies: what a person knows of outputs, as penalties.

A `Rule` is made from a function by `rule`, or by a word of the vocabulary below; words for masks are in
`lossnet.energies.mask_rules`.  Labels are column numbers, or names that a task resolves; *facts* are what is
known of each instance beside its inputs, such as a total.  A rule of infinite weight is hard: what breaks it
is impossible.
"""

from __future__ import annotations

import math
import numbers
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from hashlib import blake2b
from itertools import chain, combinations
from operator import itemgetter
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from lossnet.energies.base import Energy
from lossnet.suggest import did_you_mean
from lossnet.trees import Tree, tree_leaves, tree_map

#: ``(x, y, facts)`` to penalties ``(batch, K)`` of candidates ``(batch, K, *event)``, 0 where the rule holds
Penalties = Callable[[Any, Tensor, Any], Any]
#: a column number of outputs, or the name of a label
Label = int | str
#: how far from 0 the penalty of a hard rule that holds may be, by rounding
ROUNDING = 1e-4
#: penalties that a function of one candidate keeps, at most
_REMEMBERED = 1 << 18


class RuleError(ValueError):
    """A rule that cannot be used as it is: its name, what is wrong, and on which instance, if on one.

    >>> str(RuleError("adds_up", "gives NaN", row=17))
    'rule adds_up gives NaN on row 17'
    """

    def __init__(self, rule: str, what: str, row: int | None = None, why: str = "") -> None:
        self.rule, self.what, self.row, self.why = rule, what, row, why
        where = "" if row is None else f" on row {row}"
        super().__init__(f"rule {rule} {what}{where}{why}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how to make it again, in the process that waits for one that failed."""
        return RuleError, (self.rule, self.what, self.row, self.why)

    def among(self, rows: Any) -> RuleError:
        """Return the error with another number for its instance, that which ``rows`` has for it."""
        row = None if self.row is None or rows is None else int(rows[self.row])
        return RuleError(self.rule, self.what, self.row if row is None else row, self.why)


class _TooLong(BaseException):
    """A limit of time has passed; no plain exception, which a rule may catch."""


class Rule(Energy):
    """``weight · penalty(x, y, facts)``; with an infinite weight, infinite wherever there is a penalty.

    It goes wherever an energy does: alone, or into a `Sum` beside learned terms.  Relaxed outputs break most
    hard rules, so give a finite weight where a task net's probabilities are judged, as by `SEAL`, which also
    needs penalties with a gradient, written in torch.

    Args:
        penalties: maps ``(x, y, facts)`` to penalties ``(batch, K)``, a tensor or an array; inputs are as
            networks read them.
        weight: what one unit of penalty costs, in nats.
        name: in results.
        sizes: the fewest and the most labels of any output that the rule allows, if it says so.
        each: whether ``penalties`` is a function of one instance and one candidate, arrays, to a number;
            it is called once for each that differ, and what it gave is remembered.
        seconds: how long a call may take before it is stopped by an error.
        labels: those that ``penalties`` are about, whose columns of candidates it then gets, in this order;
            names until `for_outputs` has resolved them.

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
        each: bool = False,
        seconds: float = 10.0,
        labels: Label | Iterable[Label] | None = None,
    ) -> None:
        super().__init__()
        for what, value in (("weight", weight), ("seconds", seconds)):
            if not value > 0:
                raise ValueError(f"rule {name}: its {what} must be above 0, not {value}")
        self.penalties, self.weight, self.name, self.sizes = penalties, weight, name, sizes
        self.each, self.seconds = each, seconds
        self.labels = None if labels is None else _several(labels)
        if self.labels == ():
            raise ValueError(f"rule {name}: it is about no label; name some, or leave labels= out")
        self._remembered: dict[bytes, float] = {}

    @property
    def hard(self) -> bool:
        """Whether what breaks the rule is impossible."""
        return math.isinf(self.weight)

    def for_outputs(self, names: Sequence[str]) -> Rule:
        """Return the rule for labels of these names; a `RuleError` for one of its own that is not there.

        >>> implies("dog", "animal").for_outputs(["animal", "cat", "dog"]).labels
        (2, 0)
        """
        if self.labels is None:
            return self
        new = copy(self)
        new.labels, new._remembered = columns_of(self.name, self.labels, names), {}
        return new

    @property
    def columns(self) -> list[int]:
        """The numbers of its labels; a `RuleError` if they are names still."""
        for label in self.labels or ():
            if isinstance(label, str):
                why = "; give a column number, or rule.for_outputs(names)"
                raise RuleError(self.name, f"is about {label!r}, and these outputs have no names", why=why)
        return [int(label) for label in self.labels or ()]

    def encode(self, x: Tree, facts: Any = None) -> tuple[Tree, Any]:
        return x, facts

    def at(self, x: Tree, facts: Any = None) -> Callable[[Tensor], Tensor]:
        return partial(self.evaluate, self.encode(x, facts))

    def evaluate(self, encoded: tuple[Tree, Any], y: Tensor) -> Tensor:
        penalties = self.broken(encoded, y)
        if not self.hard:
            return self.weight * penalties
        return torch.zeros_like(penalties).masked_fill(penalties > ROUNDING, math.inf)

    def broken(self, encoded: tuple[Tree, Any], y: Tensor) -> Tensor:
        """Return plain penalties ``(batch, K)``, without the weight; raise a `RuleError` for what is none.

        >>> exactly(2).broken((None, None), torch.ones(1, 1, 5))
        tensor([[3.]])
        """
        if self.labels is not None:
            columns, every = self.columns, y.unbind(-1)
            if max(columns) >= len(every):
                raise RuleError(self.name, f"is about label {max(columns)} of {len(every)}, counted from 0")
            y = torch.stack([every[column] for column in columns], -1)
        given = self._one_by_one(encoded, y) if self.each else self._at_once(encoded, y)
        penalties = torch.as_tensor(given, device=y.device) if isinstance(given, np.ndarray) else given
        if not isinstance(penalties, Tensor) or penalties.shape != y.shape[:2]:
            have = tuple(given.shape) if isinstance(given, Tensor | np.ndarray) else type(given).__name__
            what = f"gives {have} for candidates of the shape {tuple(y.shape)}"
            raise RuleError(self.name, f"{what}; it must give a penalty for each, {tuple(y.shape[:2])}")
        penalties = penalties.to(y.dtype)
        if y.requires_grad and torch.is_grad_enabled() and not penalties.requires_grad:
            why = "; write it in torch: where probabilities are judged, as by seal or of masks, it needs one"
            raise RuleError(self.name, f"gives penalties that have no gradient in the outputs{why}")
        if not (penalties.is_cuda and torch.cuda.is_current_stream_capturing()):
            strange = (penalties.isnan() | penalties.isneginf()).any(1).nonzero()
            if len(strange):
                row = int(strange[0])
                value = penalties[row][penalties[row].isnan() | penalties[row].isneginf()][0].item()
                shown = "NaN" if value != value else str(value)
                raise RuleError(self.name, f"gives {shown}", row, "; a penalty is a number, 0 if all is well")
        return penalties

    def _at_once(self, encoded: tuple[Tree, Any], y: Tensor) -> Any:
        """Return what the function gives for a batch; say on which instance it fails, if on one alone."""
        x, facts = encoded
        try:
            with _limited(self.seconds):
                return self.penalties(x, y, facts)
        except RuleError:
            raise
        except (Exception, _TooLong) as error:
            raise self._failed(error, self._culprit(error, encoded, y), y) from error

    def _failed(self, error: BaseException, row: int | None, y: Tensor) -> RuleError:
        if isinstance(error, _TooLong):
            for_what = "" if row is not None else f" for {len(y)} instances of {y.shape[1]} candidates"
            why = "; make it faster, or give it more time: seconds=…"
            return RuleError(self.name, f"takes longer than {self.seconds:g} s{for_what}", row, why)
        return RuleError(self.name, f"raises {type(error).__name__}", row, f": {error}{self._line(error)}")

    def _line(self, error: BaseException) -> str:
        """Return the line of a function of the user's own at which it failed, for a message."""
        code = getattr(self.penalties, "__code__", None)
        if code is None or (self.penalties.__module__ or "").startswith("lossnet."):
            return ""
        frames = traceback.walk_tb(error.__traceback__)
        lines = [number for frame, number in frames if frame.f_code is code]
        return f" ({Path(code.co_filename).name}, line {lines[-1]})" if lines else ""

    def _culprit(self, error: BaseException, encoded: tuple[Tree, Any], y: Tensor) -> int | None:
        """Return the first instance on which the function alone fails in the same way, if there is one."""
        with torch.no_grad():
            for row, (x, facts) in enumerate(_instances(encoded, len(y), keep=True)):
                try:
                    with _limited(self.seconds):
                        self.penalties(x, y[row : row + 1], facts)
                except type(error):
                    return row
                except (Exception, _TooLong):
                    return None  # instances of these facts cannot be told apart
        return None

    def _one_by_one(self, encoded: tuple[Tree, Any], y: Tensor) -> Tensor:
        """Return penalties by a function of one instance and one candidate; it never sees the same twice."""
        penalties = np.empty(y.shape[:2])
        candidates = y.detach().cpu().numpy()
        for row, (x, facts) in enumerate(_instances(encoded, len(y))):
            told = blake2b(digest_size=16)
            for leaf in tree_leaves((x, facts)):
                told.update(leaf.detach().cpu().numpy().tobytes())
            x, facts = tree_map(_array, x), tree_map(_array, facts)
            for place, one in enumerate(candidates[row]):
                key = told.digest() + one.tobytes()
                if key not in self._remembered:
                    if len(self._remembered) >= _REMEMBERED:
                        del self._remembered[next(iter(self._remembered))]
                    self._remembered[key] = self._of_one(x, one.copy(), facts, row, y)
                penalties[row, place] = self._remembered[key]
        return torch.as_tensor(penalties, device=y.device)

    def _of_one(self, x: Any, one: Any, facts: Any, row: int, y: Tensor) -> float:
        try:
            with _limited(self.seconds):
                penalty = self.penalties(x, one, facts)
        except (Exception, _TooLong) as error:
            raise self._failed(error, row, y) from error
        if isinstance(penalty, np.ndarray | Tensor) and penalty.ndim == 0:
            penalty = penalty.item()
        if not isinstance(penalty, numbers.Real):
            raise RuleError(self.name, f"gives {type(penalty).__name__}", row, "; it must give a number")
        return float(penalty)

    def extra_repr(self) -> str:
        return f"{self.name}, weight={self.weight:g}"


def _several(labels: Label | Iterable[Label]) -> tuple[Label, ...]:
    return (labels,) if isinstance(labels, str) or not isinstance(labels, Iterable) else tuple(labels)


def columns_of(
    rule: str, labels: Iterable[Label], names: Sequence[str], what: str = "label"
) -> tuple[int, ...]:
    """Return the column numbers of labels, given as such or by name; a `RuleError` for what is not there.

    >>> columns_of("pair", ["b", 0], ["a", "b"])
    (1, 0)
    """
    places = {name: place for place, name in enumerate(names)}
    columns = []
    for label in labels:
        if not names:
            raise RuleError(rule, f"is about {what} {label!r}, and these outputs have no {what}s")
        if isinstance(label, str) and label not in places:
            why = f"; {did_you_mean(label, names, f'{what}s are')}"
            raise RuleError(rule, f"is about {label!r}, which is no {what}", why=why)
        if not isinstance(label, str) and not 0 <= label < len(names):
            raise RuleError(rule, f"is about {what} {label}, and there are {len(names)}, counted from 0")
        columns.append(places[label] if isinstance(label, str) else int(label))
    return tuple(columns)


def check_rules(rules: Iterable[Any]) -> None:
    """Raise a TypeError for what is no rule."""
    if isinstance(rules, Rule):
        raise TypeError(f"rules are {rules.name} alone; give a list, rules=[…]")
    for one in rules:
        if not isinstance(one, Rule):
            what = f"{one!r} is no rule; decorate a function with lossnet.rule"
            raise TypeError(f"{what}, or take one of lossnet.energies, such as exactly(2)")


def _instances(encoded: tuple[Tree, Any], count: int, keep: bool = False) -> Iterator[tuple[Tree, Any]]:
    """Yield the inputs and facts of each instance, as a batch of one if the axis is to be kept."""
    encoded = tree_map(lambda leaf: leaf if leaf.layout == torch.strided else leaf.to_dense(), encoded)
    for row in range(count):
        yield tree_map(itemgetter(slice(row, row + 1) if keep else row), encoded)


def _array(leaf: Tensor) -> Any:
    """Return a tensor as an array, or as a number if it is one."""
    return leaf.item() if leaf.dim() == 0 else leaf.detach().cpu().numpy()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `_TooLong` if what is inside takes longer: at once in the main thread, else when it has ended."""
    interrupts = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    def stop(*_: Any) -> None:
        raise _TooLong

    started = time.monotonic()
    if interrupts:
        handler = signal.signal(signal.SIGALRM, stop)
        timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if interrupts:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, handler if handler is not None else signal.SIG_DFL)
    if time.monotonic() - started > seconds:
        raise _TooLong


@overload
def rule(function: Penalties) -> Rule: ...
@overload
def rule(
    *,
    weight: float = 1.0,
    each: bool = False,
    seconds: float = 10.0,
    labels: Label | Iterable[Label] | None = None,
) -> Callable[[Penalties], Rule]: ...
def rule(
    function: Penalties | None = None,
    *,
    weight: float = 1.0,
    each: bool = False,
    seconds: float = 10.0,
    labels: Label | Iterable[Label] | None = None,
) -> Rule | Callable[[Penalties], Rule]:
    """Make a `Rule` of a function ``(x, y, facts)`` that returns penalties ``(batch, K)``.

    Candidates ``y`` are ``(batch, K, *event)``; ``x`` and ``facts`` are of the batch, with instances along
    their first axes, and ``facts`` is None where nothing is known.  Penalties are a tensor or an array.

    >>> @rule(weight=2.0)
    ... def first_or_last(x, y, facts):
    ...     return (1 - y[..., 0] - y[..., -1]).clamp(min=0)
    >>> first_or_last
    Rule(first_or_last, weight=2)
    >>> first_or_last(torch.zeros(1, 4), torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([[2., 0.]])

    With ``labels``, by name or number, ``y`` has the columns of these only, in this order:

    >>> @rule(labels=["drama", "comedy"])
    ... def one_of_them(x, y, facts):
    ...     return (y.sum(-1) - 1).abs()
    >>> known = one_of_them.for_outputs(["comedy", "war", "drama"])
    >>> known(torch.zeros(1, 4), torch.tensor([[[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]]))
    tensor([[0., 1.]])

    With ``each``, the function is any Python that sees one instance and one candidate, as arrays, and returns
    a number.  It is called once for each that differ, and stopped by an error after ``seconds``.

    >>> @rule(each=True)
    ... def in_order(x, y, facts):
    ...     first, *_, last = np.flatnonzero(y)
    ...     return 0 if last - first == facts else 1
    >>> in_order.at(None, torch.tensor([2]))(torch.tensor([[[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]]))
    tensor([[0., 1.]])
    """

    def made(function: Penalties) -> Rule:
        name = getattr(function, "__name__", "rule")
        return Rule(function, weight, name, each=each, seconds=seconds, labels=labels)

    if function is not None and not callable(function):
        raise TypeError(
            f"rule is given {function!r} in place of a function; name what it is: rule(weight=2.0)"
        )
    return made if function is None else made(function)


# ---------------------------------------------------------------- a vocabulary of label sets


def exactly(count: int, labels: Label | Sequence[Label] | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that ``count`` of the labels are true, of all unless ``labels`` are given.

    Labels are column numbers or, where a task has names, those: ``exactly(1, ["red", "green"])``.

    >>> exactly(1, weight=1.0)(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]]))
    tensor([[2., 0.]])
    """
    sizes = (count, count) if labels is None else (count, None)
    return _counting(f"exactly({count})", lambda n: (n - count).abs(), labels, weight, sizes)


def at_most(count: int, labels: Label | Sequence[Label] | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that no more than ``count`` of the labels are true.

    >>> at_most(1, labels=[0, 1])(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[inf, 0.]])
    """
    sizes = (0, count if labels is None else None)
    return _counting(f"at_most({count})", lambda n: (n - count).clamp(min=0), labels, weight, sizes)


def at_least(count: int, labels: Label | Sequence[Label] | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that ``count`` or more of the labels are true.

    >>> at_least(2, weight=1.0)(torch.zeros(1, 4), torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[2., 0.]])
    """
    return _counting(f"at_least({count})", lambda n: (count - n).clamp(min=0), labels, weight, (count, None))


def implies(label: Label, other: Label, weight: float = math.inf) -> Rule:
    """Return the rule that where ``label`` is true, ``other`` is too.

    >>> implies(0, 2)(torch.zeros(1, 4), torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[inf, 0.]])
    """
    return _of_two("implies", label, other, lambda one, two: one * (1 - two), weight)


def excludes(label: Label, other: Label, weight: float = math.inf) -> Rule:
    """Return the rule that two labels are never true together.

    >>> excludes(0, 2)(torch.zeros(1, 4), torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]]]))
    tensor([[0., inf]])
    """
    return _of_two("excludes", label, other, lambda one, two: one * two, weight)


class Ancestors(Rule):
    """The rule that all ancestors of a true label are true; `ancestors` makes it.

    Where each label has one parent at most, and the rule is hard, sums over all label sets that keep it are
    exact: with ``l`` the labels' logits and from the leaves up ``d_i = l_i + Σ_c softplus(d_c)`` over the
    children of ``i``, a label is true with the probability ``σ(d_i)`` if its parent is.
    """

    def __init__(self, parents: Any, weight: float = math.inf) -> None:
        self.parents: dict[Any, tuple[Any, ...]] = {}  # by names, and by column numbers once these are known
        for label, over in _rows(parents):
            self.parents[label] = (*self.parents.get(label, ()), *over)
        pairs = [(label, parent) for label, over in self.parents.items() for parent in over]
        places = {label: place for place, label in enumerate(dict.fromkeys(chain(self.parents, *pairs)))}
        below, above = ([places[pair[side]] for pair in pairs] for side in (0, 1))
        self.order = self._leaves_first()
        super().__init__(
            lambda x, y, facts: (y[..., below] * (1 - y[..., above])).sum(-1),
            weight,
            "ancestors",
            labels=places or None,
        )

    def for_outputs(self, names: Sequence[str]) -> Ancestors:
        if self.labels is None:
            return self
        number = dict(zip(self.labels, columns_of(self.name, self.labels, names), strict=True))
        parents = {number[label]: [number[one] for one in over] for label, over in self.parents.items()}
        return Ancestors(parents, self.weight)

    @property
    def exact(self) -> bool:
        """Whether it is hard, its labels are column numbers, and none has two parents."""
        named = any(isinstance(label, str) for label in self.labels or ())
        return self.hard and not named and all(len(over) < 2 for over in self.parents.values())

    def _leaves_first(self) -> list[Any]:
        """Return all labels that have parents, each before those that are above it."""
        order: dict[Any, None] = {}

        def visit(label: Any, path: tuple[Any, ...]) -> None:
            if label in path:
                raise RuleError("ancestors", f"has {label!r} above itself; leave a parent out")
            for parent in self.parents.get(label, ()):
                visit(parent, (*path, label))
            if label in self.parents:
                order.setdefault(label)

        for label in self.parents:
            visit(label, ())
        return list(order)[::-1]

    def _upwards(self, logits: Tensor, of_two: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``d`` ``(…, labels)``; ``of_two`` is softplus, or takes the better of false and true."""
        total = list(logits.unbind(-1))
        for label in self.order:
            for parent in self.parents[label]:
                total[parent] = total[parent] + of_two(total[label])
        return torch.stack(total, -1)

    def expectation(self, logits: Tensor) -> Tensor:
        """Return the probabilities of labels with these logits, given that the rule holds, ``(…, labels)``.

        >>> ancestors({1: 0}).expectation(torch.zeros(2))  # of 00, 10 and 11, one has the second label
        tensor([0.6667, 0.3333])
        """
        chances = list(self._upwards(logits, softplus).sigmoid().unbind(-1))
        for label in reversed(self.order):
            for parent in self.parents[label]:
                chances[label] = chances[label] * chances[parent]
        return torch.stack(chances, -1)

    def log_chance(self, logits: Tensor) -> Tensor:
        """Return the log-probability ``(…)`` that the rule holds for independent labels with these logits.

        >>> ancestors({1: 0}).log_chance(torch.zeros(2)).exp()
        tensor(0.7500)
        """
        roots = [label for label in range(logits.shape[-1]) if not self.parents.get(label)]
        return softplus(self._upwards(logits, softplus)[..., roots]).sum(-1) - softplus(logits).sum(-1)

    def best(self, logits: Tensor) -> Tensor:
        """Return the likeliest label set that keeps the rule, ``(…, labels)``.

        >>> ancestors({1: 0}).best(torch.tensor([-1.0, 3.0]))
        tensor([1., 1.])
        """
        chosen = list((self._upwards(logits, torch.relu) > 0).unbind(-1))
        for label in reversed(self.order):
            for parent in self.parents[label]:
                chosen[label] = chosen[label] & chosen[parent]
        return torch.stack(chosen, -1).to(logits.dtype)


def ancestors(parents: Any, weight: float = math.inf) -> Ancestors:
    """Return the rule that all ancestors of a true label are true, of a taxonomy: the parents of labels.

    ``parents`` maps each label to its parent, or to several; or it is a table of two columns, a label and a
    parent of it, as a data frame or as rows.  Labels are names or column numbers; a parent that is empty,
    None or NaN is none.

    >>> taxonomy = ancestors({1: 0, 2: 1}, weight=1.0)  # 0 over 1 over 2
    >>> taxonomy(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]]]))
    tensor([[0., 1.]])
    """
    return Ancestors(parents, weight)


def _rows(parents: Any) -> Iterator[tuple[Label, tuple[Label, ...]]]:
    """Yield labels and parents of each, of a mapping or a table."""
    if hasattr(parents, "itertuples"):
        parents = parents.itertuples(index=False)
    for row in parents.items() if hasattr(parents, "items") else parents:
        try:
            label, over = row
        except ValueError:
            why = "; give rows of two, a label and its parent"
            raise RuleError("ancestors", f"has a table with the row {tuple(row)!r}", why=why) from None
        lacks = over is None or over == "" or over != over
        yield label, () if lacks else _several(over)


def parents_of(names: Sequence[str], separator: str = "/") -> dict[int, int]:
    """Return the parent of each label whose name says it, as ``a/b`` is below ``a``, for `ancestors`.

    >>> parents_of(["a", "b", "a/c", "a/c/d"])
    {2: 0, 3: 2}
    """
    places = {name: place for place, name in enumerate(names)}
    over = {places[name]: name.rpartition(separator)[0] for name in names if separator in name}
    return {label: places[parent] for label, parent in over.items() if parent in places}


def sums_to(
    values: Sequence[float] | Mapping[Label, float] | None = None,
    fact: str | None = None,
    weight: float = math.inf,
) -> Rule:
    """Return the rule that the values of the true labels add up to a total, which is a fact of each instance.

    Label ``i`` is worth ``i`` unless ``values`` are given: one for each label, or by labels of which the
    others are worth nothing, ``sums_to({"penny": 1, "dime": 10})``.  The total is the facts themselves,
    ``(batch,)``, or the one called ``fact``; where it is NaN nothing is known, and nothing is penalised.

    >>> total = torch.tensor([3.0])
    >>> sums_to(weight=1.0).at(None, total)(torch.tensor([[[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]]))
    tensor([[0., 1.]])
    """

    labels, given = (tuple(values), values.values()) if isinstance(values, Mapping) else (None, values)

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        worth = range(y.shape[-1]) if given is None else given
        if len(worth) != y.shape[-1]:
            raise RuleError("sums_to", f"has {len(worth)} values for {y.shape[-1]} labels")
        total = fact_of("sums_to", facts, fact, y).reshape(len(y), 1)
        apart = (y @ torch.tensor(list(worth), dtype=y.dtype, device=y.device) - total).abs()
        return torch.where(total.isnan(), 0, apart)

    return Rule(penalties, weight, "sums_to", labels=labels)


def allowed(fact: str | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that true labels are among those allowed, ``(batch, labels)`` of 0 and 1 in the facts.

    >>> mine = torch.tensor([[1.0, 1.0, 0.0]])
    >>> allowed(weight=1.0).at(None, mine)(torch.tensor([[[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]]))
    tensor([[1., 0.]])
    """

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        may = fact_of("allowed", facts, fact, y)
        if may.shape != (len(y), y.shape[-1]):
            what = f"reads a row of {y.shape[-1]} zeros and ones of each instance"
            raise RuleError("allowed", f"{what}, not facts of the shape {tuple(may.shape)}")
        return (y * (1 - may.nan_to_num(1)).unsqueeze(1)).sum(-1)

    return Rule(penalties, weight, "allowed")


def _counting(
    name: str,
    distance: Callable[[Tensor], Tensor],
    labels: Label | Sequence[Label] | None,
    weight: float,
    sizes: tuple[int, int | None],
) -> Rule:
    full = name if labels is None else f"{name} of [{', '.join(map(str, _several(labels)))}]"
    return Rule(lambda x, y, facts: distance(y.sum(-1)), weight, full, sizes, labels=labels)


def _of_two(
    name: str, label: Label, other: Label, penalty: Callable[[Tensor, Tensor], Tensor], weight: float
) -> Rule:
    full, labels = f"{name}({label}, {other})", (label, other)
    return Rule(lambda x, y, facts: penalty(*y.unbind(-1)), weight, full, labels=labels)


def fact_of(rule: str, facts: Any, name: str | None, like: Tensor) -> Tensor:
    """Return the facts as numbers like others: those of a name or, without one, the only ones there are."""
    if isinstance(facts, Mapping):
        facts = {key: value for key, value in facts.items() if isinstance(value, Tensor)}
        if name is not None and name not in facts:
            raise RuleError(rule, f"reads the fact {name!r}, which is not there; {did_you_mean(name, facts)}")
        if name is None and len(facts) > 1:
            what = f"reads one fact of each instance, and there are {', '.join(facts)}"
            raise RuleError(rule, what, why=": name it, fact=…")
        facts = facts[name] if name is not None else next(iter(facts.values()), None)
    if not isinstance(facts, Tensor):
        why = ": give facts=…, or name columns of a table (--facts)"
        raise RuleError(rule, "reads facts of each instance, and there are none", why=why)
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
    bounds = [(rule.name, *rule.sizes) for rule in rules if rule.hard and rule.sizes is not None]
    low = max((few for _, few, _ in bounds), default=0)
    high = min((many for _, _, many in bounds if many is not None), default=labels)
    sizes = range(low, min(high, labels) + 1)
    if not sizes:
        what = f"no set of {labels} labels keeps all hard rules ({', '.join(name for name, _, _ in bounds)})"
        raise ValueError(f"{what}; correct them, or give some a weight")
    if sum(math.comb(labels, size) for size in sizes) > most:
        return None
    rows = [chosen for size in sizes for chosen in combinations(range(labels), size)]
    sets = torch.zeros(len(rows), labels)
    for row, chosen in zip(sets, rows, strict=True):
        row[list(chosen)] = 1
    return sets
