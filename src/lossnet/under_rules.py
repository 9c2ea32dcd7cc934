"""Outputs that keep rules, for prediction: exact where few outputs can be meant, else by local search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from scipy import ndimage
from torch import Tensor

from lossnet.data import Dataset, Examples
from lossnet.energies import Ancestors, Rule, RuleError, listed
from lossnet.energies.rules import ROUNDING, check_rules
from lossnet.spaces import Batch, Mask, MultiLabel, Roles, Space, Tags
from lossnet.warn import warn

__all__ = ["UnderRules"]

#: what a unit of a hard rule's penalty counts, in nats: outputs that break one by less are nearer
_HARD = 1e4
#: what a value that is known is worth to a search, which then leaves it alone
_KNOWN = 1e9
#: numbers in the candidates that are judged at a time
_AT_ONCE = 1 << 22
#: rows that a warning names
_NAMED = 5


@dataclass(frozen=True)
class UnderRules:
    """Change outputs that rules penalise; minimise ``−log P(y|x) + E(x, y)`` over outputs.

    Of label sets, all whose size hard rules allow are judged if these are at most ``most``, and the best
    under a taxonomy alone is found exactly.  Elsewhere it is a beam search, from the output without rules:
    in each of at most ``rounds``, ``moves`` that cost little probability are judged from each of the
    ``width`` best outputs.  Moves flip or swap labels, give up to four tokens in a row one tag, or fill or
    clear squares and pieces of a mask.  Where no output that was tried keeps the hard rules, one that breaks
    them least is the answer, with a warning that names the row.

    What is known of an output is kept before all rules: only outputs that agree with it are judged.

    Args:
        rules: whose energies are summed.
        space: of outputs.
        most: candidates that are listed, at most.
        rounds: of the search, at most.
        moves: from each output, about.
        width: of the beam.

    >>> from lossnet.data import Examples, Facts, FeatureTable
    >>> from lossnet.energies import exactly, sums_to
    >>> under = UnderRules([exactly(2), sums_to()], MultiLabel(4))
    >>> chances = torch.tensor([[0.9, 0.6, 0.1, 0.2]])
    >>> data = Examples(FeatureTable([[0.0]]), facts=Facts([3.0]))
    >>> under(data, chances, (chances > 0.5).float())
    tensor([[1., 0., 0., 1.]])
    >>> known = torch.tensor([[torch.nan, torch.nan, 1.0, torch.nan]])  # 2 and 1 add up to 3 too
    >>> under(data, chances, torch.tensor([[1.0, 1.0, 1.0, 0.0]]), known=known)
    tensor([[0., 1., 1., 0.]])
    """

    rules: Sequence[Rule]
    space: Space
    most: int = 4096
    rounds: int = 20
    moves: int = 256
    width: int = 4

    def __post_init__(self) -> None:
        check_rules(self.rules)

    def __call__(
        self,
        data: Examples,
        relaxed: Tensor,
        start: Tensor,
        threshold: float | Tensor = 0.5,
        known: Tensor | None = None,
    ) -> Tensor:
        """Return outputs of prepared data ``(n, *event)`` in place of those at the ``start``.

        A label or pixel whose probability, in ``relaxed``, is at the ``threshold`` is as likely as not.  What
        is ``known`` ``(n, *event)`` is 1, 0 or NaN, and the ``start`` agrees with it.
        """
        worth = _worth(self.space, relaxed.double().cpu(), threshold)
        told = torch.full_like(worth, torch.nan)
        if known is not None:
            told[tuple(map(slice, known.shape))] = known.to(worth)
        outputs, unkept = start.clone(), []
        numbers = range(len(start)) if data.numbers is None else data.numbers.tolist()
        for rows in torch.arange(len(start)).split(64):
            batch = data.batch(rows)
            event = (slice(None), *map(slice, _size(self.space, start, batch)))
            y = start[rows][event].double().cpu()
            try:
                penalised = _energy(self._terms(batch), y.unsqueeze(1)).squeeze(1).nonzero()
            except RuleError as error:
                raise error.among([numbers[row] for row in rows.tolist()]) from error.__cause__
            for place in penalised.squeeze(1).tolist():
                row = int(rows[place])
                try:
                    of_row = worth[row], start[row].double().cpu(), told[row]
                    best, kept = self._best(*of_row, data, row)
                except RuleError as error:
                    raise error.among([numbers[row]]) from error.__cause__
                outputs[row][tuple(map(slice, best.shape))] = best.to(outputs)
                unkept += [] if kept else [str(numbers[row])]
        if unkept:
            named = ", ".join(unkept[:_NAMED]) + f" and {len(unkept) - _NAMED} more" * (len(unkept) > _NAMED)
            where = f"row{'s' * (len(unkept) > 1)} {named}"
            what = f"no output that was tried keeps the hard rules on {where}"
            others = "rules or facts" if known is None else "rules, facts or what is known"
            warn(f"{what}; the nearest is given: do {others} disagree?")
        return outputs

    def _terms(self, batch: Batch) -> list[tuple[Rule, Any]]:
        return [(rule, rule.encode(batch.x, batch.facts)) for rule in self.rules]

    def _best(
        self, worth: Tensor, start: Tensor, known: Tensor, data: Dataset, row: int
    ) -> tuple[Tensor, bool]:
        """Return the best output of one instance, and whether it keeps the hard rules."""
        batch = data.batch(torch.tensor([row]))
        terms, size = self._terms(batch), tuple(map(slice, _size(self.space, start.unsqueeze(0), batch)))
        worth, start, known = worth[size], start[size], known[size]

        def value(y: Tensor) -> Tensor:
            """Return ``−log P + E`` ``(K,)`` of candidates ``(K, *event)``, finite for hard rules too."""
            parts = y.split(max(1, _AT_ONCE // max(y[0].numel(), 1)))
            energies = torch.cat([_energy(terms, part.unsqueeze(0)).squeeze(0) for part in parts])
            return energies - (y * worth).flatten(1).sum(1)

        hard = [(rule, encoded) for rule, encoded in terms if rule.hard]
        best = self._exact(worth, value, known)
        if best is None:
            best = self._search(worth, start, value, known)
        return best, not _energy(hard, best[None, None]).item()

    def _exact(self, worth: Tensor, value: Callable[[Tensor], Tensor], known: Tensor) -> Tensor | None:
        """Return the best of all outputs that agree with what is known, or None where they are too many."""
        if not isinstance(self.space, MultiLabel):
            return None
        (rule,) = self.rules if len(self.rules) == 1 else (None,)
        if isinstance(rule, Ancestors) and rule.hard and rule.exact:
            best = rule.best(_kept(worth, known))
            return best if bool(_agree(best, known)) else None
        sets = listed(self.space.labels, self.rules, self.most)
        if sets is None:
            return None
        sets = sets.to(worth)
        sets = sets[_agree(sets, known)]
        return sets[value(sets).argmin()] if len(sets) else None

    def _search(
        self, worth: Tensor, start: Tensor, value: Callable[[Tensor], Tensor], known: Tensor
    ) -> Tensor:
        """Return the best output of a beam search that ends when two rounds have found nothing better."""
        beam, best, lowest, vain = start.unsqueeze(0), start, value(start.unsqueeze(0)).item(), 0
        guide = _kept(worth, known)
        for _ in range(self.rounds):
            found = torch.cat([neighbours(self.space, y, guide, self.moves) for y in beam])
            if self.space.binary:
                found = torch.where(known.isnan(), found, known)
            else:
                found = found[_agree(found, known)]
            values, order = value(found).sort()
            if values[0].item() < lowest - 1e-9:
                best, lowest, vain = found[order[0]], values[0].item(), 0
            else:
                vain += 1
            if vain == 2:
                break
            beam = found[order[: 4 * self.width]].unique(dim=0)
            beam = beam[value(beam).argsort()[: self.width]]
        return best


def _agree(y: Tensor, known: Tensor) -> Tensor:
    """Whether outputs ``(…, *event)`` are as known: ``(…)``."""
    return (known.isnan() | (y == known)).flatten(y.dim() - known.dim()).all(-1)


def _kept(worth: Tensor, known: Tensor) -> Tensor:
    """Return worths ``(*event)`` under which it never pays to change what is known."""
    return torch.where(known.isnan(), worth, _KNOWN * (2 * known - 1))


def _size(space: Space, outputs: Tensor, batch: Batch) -> tuple[int, ...]:
    """Return the size of outputs of a batch, which may be shorter than the longest of all."""
    length = () if batch.mask is None or not isinstance(space, Tags) else (batch.mask.shape[1],)
    return (*length, *outputs.shape[1 + len(length) :])


def _energy(terms: Sequence[tuple[Rule, Any]], y: Tensor) -> Tensor:
    """Return the sum of rules' penalties ``(batch, K)``, hard ones with a large weight."""
    total = y.new_zeros(y.shape[:2])
    for rule, encoded in terms:
        broken = rule.broken(encoded, y)
        broken = broken.where(broken.abs() > ROUNDING, 0) * _HARD if rule.hard else rule.weight * broken
        total = total + broken.clamp(max=1e12)
    return total


def _worth(space: Space, relaxed: Tensor, threshold: float | Tensor) -> Tensor:
    """Return what each unit of an output adds to its log-probability, up to a constant."""
    if not space.binary:
        return relaxed.clamp(min=1e-12).log()
    at = torch.as_tensor(threshold, dtype=relaxed.dtype).clamp(1e-6, 1 - 1e-6)
    return relaxed.clamp(1e-12, 1 - 1e-12).logit() - at.logit()


@singledispatch
def neighbours(space: Space, y: Tensor, worth: Tensor, count: int) -> Tensor:
    """Return about ``count`` neighbours of an output ``(*event)`` that lose little worth, ``(K, *event)``."""
    raise TypeError(f"outputs of {type(space).__name__} are not searched; leave rules= out")


@neighbours.register
def _(space: MultiLabel, y: Tensor, worth: Tensor, count: int) -> Tensor:
    """Flip one label, or one that is true together with one that is not."""
    gain = worth * (1 - 2 * y)
    on, off = (y > 0.5).nonzero().squeeze(1), (y < 0.5).nonzero().squeeze(1)
    on, off = (part[gain[part].argsort(descending=True)][: math.isqrt(count)] for part in (on, off))
    singles = torch.arange(len(y)).unsqueeze(1).expand(-1, 2)
    pairs = torch.cat([singles, torch.cartesian_prod(on, off).reshape(-1, 2)])
    lost = gain[pairs[:, 0]] + gain[pairs[:, 1]] * (pairs[:, 0] != pairs[:, 1])
    chosen = pairs[lost.topk(min(count, len(pairs))).indices]
    flipped = torch.zeros(len(chosen), len(y), dtype=y.dtype).scatter_(1, chosen, 1)
    return (y - flipped).abs()


@neighbours.register
def _(space: Tags, y: Tensor, worth: Tensor, count: int) -> Tensor:
    """Give one to four neighbouring tokens one tag, as long as the tags' scheme allows what comes of it."""
    length = int((y.sum(-1) > 0).sum())
    tags = y.argmax(-1)
    now = worth.gather(1, tags.unsqueeze(1))
    found, lost = [], []
    total = torch.cat([worth.new_zeros(1, worth.shape[1]), (worth - now)[:length].cumsum(0)])
    for size in range(1, min(4, length) + 1):
        gain = total[size:] - total[:-size]  # (places, tags)
        places = torch.cartesian_prod(torch.arange(length - size + 1), torch.arange(worth.shape[1]))
        found.append(torch.cat([places, torch.full((len(places), 1), size)], 1))
        lost.append(gain.flatten())
    moves = torch.cat(found)[torch.cat(lost).argsort(descending=True)]
    starts, chosen, sizes = moves.unbind(1)
    where = torch.arange(len(tags))
    inside = (where >= starts.unsqueeze(1)) & (where < (starts + sizes).unsqueeze(1))
    changed = torch.where(inside, chosen.unsqueeze(1), tags)
    changed = changed[(changed != tags).any(1)]
    constraints = space.constraints()
    if constraints is not None:
        changed = changed[constraints.hold(changed, (where < length).expand_as(changed))]
    one_hot = torch.nn.functional.one_hot(changed[:count], worth.shape[1]).to(y.dtype)
    return torch.cat([y.unsqueeze(0), one_hot * (where < length).unsqueeze(1)])


@neighbours.register
def _(space: Roles, y: Tensor, worth: Tensor, count: int) -> Tensor:
    """Give a span another role, or none."""
    begins, goes_on, inside = space.marks()
    tags, real = y.argmax(-1), y.sum(-1) > 0
    span = (~inside[tags]).cumsum(0)
    firsts = ((tags != begins[0]) & ~inside[tags] & real).nonzero()
    chosen = (span == span[firsts]).unsqueeze(1)  # (spans, 1, length)
    other = torch.where(inside[tags], goes_on.unsqueeze(1), begins.unsqueeze(1))  # (roles, length)
    changed = torch.where(chosen, other, tags).flatten(0, 1)
    lost = worth.gather(1, tags.unsqueeze(1)).sum() - worth.expand(len(changed), -1, -1).gather(
        2, changed.unsqueeze(2)
    ).sum((1, 2))
    changed = changed[lost.argsort()][:count]
    one_hot = torch.nn.functional.one_hot(changed, worth.shape[1]).to(y.dtype)
    return torch.cat([y.unsqueeze(0), one_hot * real.unsqueeze(1)])


@neighbours.register
def _(space: Mask, y: Tensor, worth: Tensor, count: int) -> Tensor:
    """Fill or clear squares, clear pieces, fill holes, or take the pixels above some other threshold."""
    levels = worth.flatten().quantile(torch.linspace(0, 1, 33, dtype=worth.dtype))
    found = [(worth > levels.reshape(-1, 1, 1)).to(y), *_without_pieces(y)]
    each = max(1, (count - sum(map(len, found))) // 8)
    for side in (1, 2, 4, 8):
        places = _squares(y, side)
        for filled in (1.0, 0.0):
            changed = torch.where(places, filled, y)
            gain = ((changed - y) * worth).flatten(1).sum(1)
            gain[(changed == y).flatten(1).all(1)] = -math.inf
            found.append(changed[gain.topk(min(each, len(gain))).indices])
    return torch.cat(found)


def _squares(y: Tensor, side: int) -> Tensor:
    """Return which pixels are in each square of a grid, ``(squares, height, width)``."""
    rows, columns = (torch.arange(size) // side for size in y.shape)
    number = rows.unsqueeze(1) * (int(columns[-1]) + 1) + columns
    return number == torch.arange(int(number.max()) + 1).reshape(-1, 1, 1)


def _without_pieces(y: Tensor) -> Iterator[Tensor]:
    """Yield the mask without each of its pieces, with only the largest, and with each hole filled."""
    for value, connectivity in ((1, 2), (0, 1)):
        pieces, number = ndimage.label(y.numpy() == value, ndimage.generate_binary_structure(2, connectivity))
        pieces = torch.from_numpy(pieces)
        sizes = [(pieces == piece).sum().item() for piece in range(1, number + 1)]
        for piece in sorted(range(number), key=sizes.__getitem__)[:16]:
            yield torch.where(pieces == piece + 1, 1.0 - value, y).unsqueeze(0)
        if value and number:
            largest = 1 + max(range(number), key=sizes.__getitem__)
            yield torch.where(pieces == largest, y, 0).unsqueeze(0)
