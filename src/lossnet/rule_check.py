"""Rules beside data, before anything is trained: how often each speaks up, and how often it is right."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lossnet.data import Examples
from lossnet.energies import Rule, RuleError
from lossnet.energies.rules import ROUNDING
from lossnet.loading import Loaded
from lossnet.settings import Settings
from lossnet.spaces import Batch, Space

__all__ = ["Checked", "check_rules"]

#: outputs of other instances, and random ones, beside which an instance's truth is judged
_OTHERS, _RANDOM = 8, 32
#: instances that are looked at, at most: with labels, and without
_MOST = 2000
_AT_ONCE = 32
#: characters of a rule's name in a table
_SHOWN = 30


@dataclass
class Checked:
    """What a rule says of data.

    Args:
        name: of the rule.
        weight: of the rule.
        instances: that were looked at, with labels or without.
        fires: those of which the rule penalises some output: random, constant or another instance's.
        labelled: those of them that have labels.
        right: those of these whose true output it does not penalise.
        chance: mean share of other instances' outputs that it does not penalise there.
        truth: mean penalty of true outputs there, without the weight.
        others: that of other instances' outputs.
        wrong: the first instance whose true output is penalised, by its number, if there is one.
        seconds: that penalties of these outputs took for an instance.
    """

    name: str
    weight: float
    instances: int = 0
    fires: int = 0
    labelled: int = 0
    right: int = 0
    chance: float | None = None
    truth: float | None = None
    others: float | None = None
    wrong: int | None = None
    seconds: float = 0.0
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0], repr=False)

    def row(self) -> list[str]:
        """Return the cells of a table; `HEADING` is above them."""
        judged = [f"{self.right / self.labelled:.0%}", f"{self.chance:.0%}"] if self.labelled else ["", ""]
        penalties = "" if self.truth is None else f"{self.truth:.2g}, {self.others:.2g}"
        name = (
            self.name
            if len(self.name) <= _SHOWN
            else f"{self.name[: _SHOWN // 2]}…{self.name[1 - _SHOWN // 2 :]}"
        )
        weight = "hard" if self.weight == float("inf") else f"{self.weight:g}"
        share = f"{self.fires / max(self.instances, 1):.0%}"
        wrong = "" if self.wrong is None else str(self.wrong)
        return [name, weight, share, *judged, penalties, wrong, f"{1e3 * self.seconds:.1g}"]


#: above `Checked.row`
HEADING = ("rule", "weight", "fires", "right", "chance", "penalty", "wrong", "ms")


def check_rules(rules: Sequence[Rule], data: Loaded, seed: int = 0) -> list[Checked]:
    """Return what rules say of training instances, with labels and without; test data are not looked at.

    A rule *fires* for an instance if it penalises any of some outputs that the instance might have, and is
    *right* if it does not penalise the true one.  By chance it would be right as often as it does not
    penalise the outputs of other instances: a rule that is right, and hardly ever by chance, tells most.

    >>> from lossnet.energies import exactly, implies
    >>> from lossnet.loading import load
    >>> for checked in check_rules([exactly(2), implies(0, 1)], load("digits-pairs")):
    ...     print(checked.name, f"{checked.right / checked.labelled:.0%}", f"{checked.chance:.0%}")
    exactly(2) 100% 100%
    implies(0, 1) 82% 82%
    """
    rules = data.task.resolved(rules)
    checked = [Checked(rule.name, rule.weight) for rule in rules]
    space = data.task.space(Settings())
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for part in (data.train, data.unlabelled):
            if part is None:
                continue
            told = data.task.for_rules(part)
            rows = torch.arange(len(part))[:: 1 + len(part) // _MOST]
            for chosen in rows.split(_AT_ONCE):
                _look(checked, rules, space, told, chosen)
    for one in checked:
        if one.labelled:
            one.truth, one.others, one.chance = (total / one.labelled for total in one._sums)
        one.seconds /= max(one.instances, 1)
    return checked


def _look(
    checked: Sequence[Checked], rules: Sequence[Rule], space: Space, data: Examples, rows: Tensor
) -> None:
    """Count what rules say of some instances."""
    batch = data.batch(rows)
    random = _drawn(space, batch, _RANDOM)
    outputs = torch.cat([*_others(space, batch), random, _constant(space, random)], 1)
    numbers = rows if data.numbers is None else torch.from_numpy(data.numbers)[rows]
    known = None if batch.y is None else torch.ones(len(rows)) if batch.known is None else batch.known.amin(1)
    for one, rule in zip(checked, rules, strict=True):
        try:
            encoded, started = rule.encode(batch.x, batch.facts), time.perf_counter()
            penalties = rule.broken(encoded, outputs).double()
            one.seconds += time.perf_counter() - started
            true = None if batch.y is None else rule.broken(encoded, batch.y.unsqueeze(1)).squeeze(1).double()
        except RuleError as error:
            raise error.among(numbers) from error.__cause__
        fires = (penalties > ROUNDING).any(1)
        if true is not None:
            fires |= true > ROUNDING
        one.instances += len(rows)
        one.fires += int(fires.sum())
        if true is None or known is None:
            continue
        judged = fires & (known > 0)
        kept = true[judged] <= ROUNDING
        one.labelled += int(judged.sum())
        one.right += int(kept.sum())
        others = penalties[judged, :_OTHERS]
        sums = true[judged].sum(), others.mean(1).sum(), (others <= ROUNDING).double().mean(1).sum()
        one._sums = [total + float(value) for total, value in zip(one._sums, sums, strict=True)]
        if one.wrong is None and not kept.all():
            one.wrong = int(numbers[judged][~kept][0])


def _others(space: Space, batch: Batch) -> Iterator[Tensor]:
    """Yield true outputs of the batch's other instances, ``(batch, K, *event)``, if there are any."""
    if batch.y is None:
        return
    turns = [batch.y.roll(1 + turn % max(len(batch.y) - 1, 1), 0) for turn in range(_OTHERS)]
    outputs = torch.stack(turns, 1)
    if space.unit_dims:  # a longer sentence's tags are cut, a shorter one's go on at random
        lacks = outputs.sum(-1, keepdim=True) == 0
        outputs = torch.where(lacks, _drawn(space, batch, _OTHERS), outputs)
    if batch.mask is not None:
        shape = (len(batch.y), 1, *batch.mask.shape[1:], *[1] * space.unit_dims)
        outputs = outputs * batch.mask.reshape(shape)
    yield outputs


def _constant(space: Space, like: Tensor) -> Tensor:
    """Return outputs ``(batch, K, *event)`` whose units are all the same: nothing and all, or each tag."""
    if not space.unit_dims:
        return torch.stack([torch.zeros_like(like[:, 0]), torch.ones_like(like[:, 0])], 1)
    real = like[:, :1].sum(-1, keepdim=True)
    every = torch.eye(like.shape[-1], dtype=like.dtype).reshape(1, like.shape[-1], 1, like.shape[-1])
    return every * real


def _drawn(space: Space, batch: Batch, count: int) -> Tensor:
    """Return uniform outputs ``(batch, count, *event)``."""
    return space.sample(space.zeros(batch.x, batch.mask), count, batch.mask)
