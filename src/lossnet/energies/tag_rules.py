"""Written knowledge of tags: rules about tokens, neighbours and whole fields.

These rules read sentences as they are written, and name tags as files do.  Both are in `TokenFacts`, which is
the fact ``tokens`` of a batch of sentences.  A *field* is a run of tokens that share a tag.  Patterns are
regular expressions over tokens that are joined by single spaces; they match whole tokens.

====================  =====================================================================================
`suggests`            tokens that match a pattern have one of some tags
`forbids`             tokens that match a pattern have none of some tags
`changes_after`       fields change only after tokens that match a pattern, by default single signs
`never_begins`        no field begins with a token that matches a pattern
`bio`                 tags follow each other as their names, ``B-…``, ``I-…``, allow
`starts_with`         the first token has one of some tags
`once`                no tag has two fields
`occurs`              there is a field with one of some tags
`at_most_one_of`      no two of some tags occur
`needs`               where one tag occurs, another one does
`in_order`            no field of the later tags begins before the earlier tag does
`spans_at_least`      a tag has some number of tokens, if it occurs
====================  =====================================================================================

The first six are sums over tokens and pairs of neighbours, `ChainRule`: the best output under these, and the
expected one, are found exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lossnet.energies.rules import Rule, RuleError, columns_of
from lossnet.spaces import Constraints, Tags
from lossnet.trees import Tree

__all__ = [
    "ChainRule",
    "Chains",
    "TokenFacts",
    "at_most_one_of",
    "bio",
    "breaks",
    "chains",
    "changes_after",
    "forbids",
    "in_order",
    "needs",
    "never_begins",
    "occurs",
    "once",
    "spans_at_least",
    "starts_with",
    "suggests",
    "summed",
]

#: one sign
SIGN = r"[^\w\s]"
#: sentences whose costs are kept for the next epoch
_KEPT = 4096
#: what a hard rule costs in a search, which must be able to compare outputs that break it
_HARD = 1e4

#: tokens and names of tags to costs: of tags ``(length, tags)``, of neighbours ``(length − 1, tags, tags)``
Costs = Callable[[tuple[str, ...], tuple[str, ...]], tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True, eq=False)
class TokenFacts:
    """Sentences as they are written, the names of the tags that they can have, and of predicates.

    ``predicates`` has what the predicate of each sentence is called: its sense, its lemma, its word, as far
    as they are known.

    >>> TokenFacts((("Ann", "left"),), ("N", "V")).numbers("suggests", ["V"])
    [1]
    """

    texts: tuple[tuple[str, ...], ...]
    tags: tuple[str, ...]
    predicates: tuple[tuple[str, ...], ...] | None = None

    def numbers(self, rule: str, tags: Iterable[str]) -> list[int]:
        """Return the numbers of tags; a `RuleError` names one that does not exist, and the rule."""
        return list(columns_of(rule, tags, self.tags, "tag"))


class Chains:
    """Costs of tags ``(batch, length, tags)`` and of neighbours ``(batch, length − 1, tags, tags)``.

    >>> rule = suggests(r"pp|\\d+ - \\d+", "pages")
    >>> facts = {"tokens": TokenFacts((("pp", "1", "-", "9"),), ("pages", "title"))}
    >>> chains([rule], facts, torch.zeros(1, 4, 2)).local
    tensor([[[0., 1.],
             [0., 1.],
             [0., 1.],
             [0., 1.]]])
    """

    def __init__(self, local: Tensor, pairs: Tensor) -> None:
        self.local, self.pairs = local, pairs
        self._of_neighbours = bool(pairs.any())

    @property
    def most(self) -> float:
        """The sum of the highest costs: of 0 and 1, how many tokens and neighbours can cost anything."""
        return float(self.local.amax(2).sum() + self.pairs.flatten(2).amax(2).sum())

    def __call__(self, y: Tensor) -> Tensor:
        """Return energies ``(batch, K)`` of candidates ``(batch, K, length, tags)``."""
        alone = torch.einsum("bktl,btl->bk", y, self.local.to(y.dtype))
        if not self._of_neighbours:
            return alone
        if y.requires_grad or not ((y == 0) | (y == 1)).all():
            before = torch.einsum("bktl,btlm->bktm", y[:, :, :-1], self.pairs.to(y.dtype))
            return alone + (before * y[:, :, 1:]).sum((2, 3))
        # With one tag for each token their cost is looked up: a hundred tags have ten thousand pairs.
        tags, real = y.argmax(3), y.sum(3)
        at = tags[:, :, :-1] * y.shape[3] + tags[:, :, 1:]
        pairs = self.pairs.flatten(2).unsqueeze(1).expand(-1, y.shape[1], -1, -1)
        costs = pairs.gather(3, at.unsqueeze(3)).squeeze(3).to(y.dtype)
        return alone + (costs * real[:, :, :-1] * real[:, :, 1:]).sum(2)


class ChainRule(Rule):
    """A `Rule` about tokens and pairs of neighbours: ``Σ_t y_tᵀ c_t + Σ_t y_{t−1}ᵀ C_t y_t``.

    Args:
        costs: maps a sentence's tokens and the names of tags to ``c`` and ``C``, or None in place of zeros.
        weight: what one unit costs, in nats.
        name: in results.
    """

    def __init__(self, costs: Costs, weight: float = 1.0, name: str = "rule") -> None:
        super().__init__(self._penalties, weight, name)
        self.costs = lru_cache(_KEPT)(costs)

    def _penalties(self, x: Any, y: Tensor, facts: Any) -> Tensor:
        return chains([self], facts, y[:, 0], weighted=False)(y)


def chains(rules: Sequence[ChainRule], facts: Any, like: Tensor, weighted: bool = True) -> Chains:
    """Return the costs of rules about a batch with outputs ``like`` ``(batch, length, tags)``, added up.

    Each rule's are times its weight unless ``weighted`` is false; a hard rule's are large then, not infinite.
    """
    local = torch.zeros(like.shape, dtype=like.dtype)
    pairs = torch.zeros(len(like), max(like.shape[1] - 1, 0), like.shape[2], like.shape[2], dtype=like.dtype)
    for rule in rules:
        tokens = tokens_of(rule.name, facts)
        weight = min(rule.weight, _HARD) if weighted else 1.0
        for row, text in enumerate(tokens.texts):
            own, neighbours = rule.costs(text, tokens.tags)
            if own is not None:
                local[row, : len(text)] += weight * own
            if neighbours is not None and len(text) > 1:
                pairs[row, : len(text) - 1] += weight * neighbours
    return Chains(local.to(like.device), pairs.to(like.device))


def summed(rules: Sequence[Rule], x: Tree, facts: Any, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the sum of rules as a function of candidates, for outputs ``like`` ``(batch, *event)``.

    What it needs of inputs and facts is computed once; hard rules about tokens are finite, see `chains`.

    >>> from lossnet.energies import exactly
    >>> of = summed([exactly(1, weight=2.0)], None, None, torch.zeros(1, 3))
    >>> of(torch.tensor([[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]]))
    tensor([[4., 0.]])
    """
    of_chain = [rule for rule in rules if isinstance(rule, ChainRule)]
    parts = [rule.at(x, facts) for rule in rules if not isinstance(rule, ChainRule)]
    if of_chain:
        parts.append(chains(of_chain, facts, like))
    return lambda y: sum((part(y) for part in parts), y.new_zeros(y.shape[:2]))


def breaks(facts: Any, length: int, pattern: str = SIGN) -> Tensor | None:
    """Return where tokens follow one that matches, or begin a sentence, ``(batch, length)``.

    Without tokens among the facts there is nothing to tell, and None is returned.

    >>> facts = {"tokens": TokenFacts((("A", ",", "B", "C"),), ("x",))}
    >>> breaks(facts, 5)
    tensor([[ True, False,  True, False, False]])
    """
    if not hasattr(facts, "get") or "tokens" not in facts:
        return None
    tokens = tokens_of("breaks", facts)
    rows = [
        torch.cat([torch.ones(1, dtype=torch.bool), _matches(pattern, text)[:-1]]) for text in tokens.texts
    ]
    return torch.stack([pad(row, (0, length - len(row))) for row in rows])


# ---------------------------------------------------------------- of tokens and neighbours


def suggests(pattern: str, *tags: str, weight: float = 1.0) -> ChainRule:
    """Return the rule that each token which a pattern matches has one of some tags.

    >>> facts = {"tokens": TokenFacts((("In", "Proc", "."),), ("date", "venue"))}
    >>> y = torch.eye(2)[torch.tensor([[[1, 1, 1], [0, 0, 0]]])]
    >>> suggests("(?i:in proc .)", "venue").at(None, facts)(y)
    tensor([[0., 3.]])
    """
    return _token_rule("suggests", pattern, tags, weight, 1.0, 0.0)


def forbids(pattern: str, *tags: str, weight: float = 1.0) -> ChainRule:
    """Return the rule that no token which a pattern matches has one of some tags.

    >>> facts = {"tokens": TokenFacts((("in", "May"),), ("date", "venue"))}
    >>> forbids("[a-z]+", "date").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 0], [1, 1]]])])
    tensor([[1., 0.]])
    """
    return _token_rule("forbids", pattern, tags, weight, 0.0, 1.0)


def changes_after(pattern: str = SIGN, weight: float = 1.0) -> ChainRule:
    """Return the rule that the tag changes only after a token which the pattern matches.

    >>> facts = {"tokens": TokenFacts((("A", ".", "B", "C"),), ("x", "y"))}
    >>> changes_after().at(None, facts)(torch.eye(2)[torch.tensor([[[0, 0, 1, 1], [0, 0, 0, 1]]])])
    tensor([[0., 1.]])
    """

    def costs(text: tuple[str, ...], tags: tuple[str, ...]) -> tuple[None, Tensor]:
        return None, _at_changes(~_matches(pattern, text)[:-1], len(tags))

    return ChainRule(costs, weight, f"changes_after('{pattern}')")


def never_begins(pattern: str = SIGN, weight: float = 1.0) -> ChainRule:
    """Return the rule that the tag does not change at a token which the pattern matches.

    >>> facts = {"tokens": TokenFacts((("A", ".", "B"),), ("x", "y"))}
    >>> never_begins().at(None, facts)(torch.eye(2)[torch.tensor([[[0, 0, 1], [0, 1, 1]]])])
    tensor([[0., 1.]])
    """

    def costs(text: tuple[str, ...], tags: tuple[str, ...]) -> tuple[None, Tensor]:
        return None, _at_changes(_matches(pattern, text)[1:], len(tags))

    return ChainRule(costs, weight, f"never_begins('{pattern}')")


def bio(weight: float = float("inf")) -> ChainRule:
    """Return the rule that tags follow each other as their scheme, BIO or BIOES, allows.

    >>> facts = {"tokens": TokenFacts((("Ann", "Lee"),), ("O", "B-PER", "I-PER"))}
    >>> bio(weight=1.0).at(None, facts)(torch.eye(3)[torch.tensor([[[1, 2], [2, 0], [0, 2]]])])
    tensor([[0., 1., 1.]])
    """

    def costs(text: tuple[str, ...], tags: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        allowed = Tags(len(tags), tags).constraints()
        if not isinstance(allowed, Constraints):
            what = f"needs tags of a scheme, as B-PER and I-PER are; these are {', '.join(tags)}"
            raise RuleError("bio", what)
        local = torch.zeros(len(text), len(tags))
        local[0] += (~allowed.begins).float()
        local[-1] += (~allowed.ends).float()
        return local, (~allowed.follows).float().expand(len(text) - 1, -1, -1)

    return ChainRule(costs, weight, "bio")


def starts_with(*tags: str, weight: float = 1.0) -> ChainRule:
    """Return the rule that the first token has one of some tags.

    >>> facts = {"tokens": TokenFacts((("A", "B"),), ("x", "y"))}
    >>> starts_with("x").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 1], [1, 0]]])])
    tensor([[0., 1.]])
    """

    name = f"starts_with({', '.join(tags)})"

    def costs(text: tuple[str, ...], names: tuple[str, ...]) -> tuple[Tensor, None]:
        local = torch.zeros(len(text), len(names))
        local[0] = 1 - _among(name, tags, names)
        return local, None

    return ChainRule(costs, weight, name)


# ---------------------------------------------------------------- of whole fields


def once(*tags: str, weight: float = 1.0) -> Rule:
    """Return the rule that no tag, of those given or of all, has more than one field.

    >>> facts = {"tokens": TokenFacts((("A", "B", "C"),), ("x", "y"))}
    >>> once().at(None, facts)(torch.eye(2)[torch.tensor([[[0, 0, 1], [0, 1, 0]]])])
    tensor([[0., 1.]])
    """

    def penalties(y: Tensor, columns: list[int]) -> Tensor:
        chosen = y[..., columns]
        fields = chosen[:, :, 0] + (chosen[:, :, 1:] * (1 - chosen[:, :, :-1])).sum(2)
        return (fields - 1).clamp(min=0).sum(-1)

    return _field_rule("once", tags, penalties, weight)


def occurs(*tags: str, weight: float = 1.0) -> Rule:
    """Return the rule that some token has one of the tags.

    >>> facts = {"tokens": TokenFacts((("A", "B"),), ("x", "y"))}
    >>> occurs("y").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 1], [0, 0]]])])
    tensor([[0., 1.]])
    """
    return _field_rule("occurs", tags, lambda y, columns: 1 - y[..., columns].amax((2, 3)), weight)


def at_most_one_of(*tags: str, weight: float = 1.0) -> Rule:
    """Return the rule that no more than one of the tags occurs.

    >>> facts = {"tokens": TokenFacts((("A", "B"),), ("x", "y"))}
    >>> at_most_one_of("x", "y").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 1], [0, 0]]])])
    tensor([[1., 0.]])
    """

    def penalties(y: Tensor, columns: list[int]) -> Tensor:
        return (y[..., columns].amax(2).sum(-1) - 1).clamp(min=0)

    return _field_rule("at_most_one_of", tags, penalties, weight)


def needs(tag: str, other: str, weight: float = 1.0) -> Rule:
    """Return the rule that where a tag occurs, another one does.

    >>> facts = {"tokens": TokenFacts((("A", "B"),), ("x", "y"))}
    >>> needs("x", "y").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 1], [0, 0], [1, 1]]])])
    tensor([[0., 1., 0.]])
    """

    def penalties(y: Tensor, columns: list[int]) -> Tensor:
        present = y[..., columns].amax(2)
        return present[..., 0] * (1 - present[..., 1])

    return _field_rule("needs", (tag, other), penalties, weight)


def in_order(tag: str, *later: str, weight: float = 1.0) -> Rule:
    """Return the rule that, where a tag occurs, none of the later tags has a token before its first one.

    >>> facts = {"tokens": TokenFacts((("A", "B"),), ("x", "y"))}
    >>> in_order("x", "y").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 1], [1, 0], [1, 1]]])])
    tensor([[0., 1., 0.]])
    """

    def penalties(y: Tensor, columns: list[int]) -> Tensor:
        first = y[..., columns[:1]]
        still = 1 - first.cummax(2).values  # 1 before the first token with the tag
        early = (y[..., columns[1:]] * still).amax(2)
        return early.sum(-1) * first.amax((2, 3))

    return _field_rule("in_order", (tag, *later), penalties, weight)


def spans_at_least(count: int, tag: str, weight: float = 1.0) -> Rule:
    """Return the rule that a tag, if it occurs, has so many tokens.

    >>> facts = {"tokens": TokenFacts((("A", "B"),), ("x", "y"))}
    >>> spans_at_least(2, "x").at(None, facts)(torch.eye(2)[torch.tensor([[[0, 0], [0, 1], [1, 1]]])])
    tensor([[0., 1., 0.]])
    """

    def penalties(y: Tensor, columns: list[int]) -> Tensor:
        tokens = y[..., columns[0]]
        return tokens.amax(2) * (tokens.sum(2) < count)

    return _field_rule(f"spans_at_least {count}", (tag,), penalties, weight)


# ---------------------------------------------------------------- how they are made


def _token_rule(
    word: str, pattern: str, tags: Sequence[str], weight: float, others: float, own: float
) -> ChainRule:
    """Return a rule that makes matching tokens pay for their tag, whether it is one of some or another."""
    _compiled(pattern)
    name = f"{word}('{pattern}', {', '.join(tags)})"

    def costs(text: tuple[str, ...], names: tuple[str, ...]) -> tuple[Tensor | None, None]:
        matched = _matches(pattern, text)
        among = _among(name, tags, names)
        return (matched.float().unsqueeze(1) * (own * among + others * (1 - among)), None)

    return ChainRule(costs, weight, name)


def _field_rule(
    word: str, tags: Sequence[str], penalties: Callable[[Tensor, list[int]], Tensor], weight: float
) -> Rule:
    """Return a rule about the columns of some tags, or of all."""

    name = f"{word}({', '.join(tags)})"

    def given(x: Any, y: Tensor, facts: Any) -> Tensor:
        known = tokens_of(name, facts)
        return penalties(y, known.numbers(name, tags or known.tags))

    return Rule(given, weight, name)


def tokens_of(rule: str, facts: Any) -> TokenFacts:
    tokens = facts.get("tokens") if hasattr(facts, "get") else None
    if not isinstance(tokens, TokenFacts):
        why = "; it is for tags of sentences, or give facts={'tokens': TokenFacts(…)}"
        raise RuleError(rule, "reads tokens, and the facts have none", why=why)
    return tokens


def _among(rule: str, tags: Sequence[str], names: Sequence[str]) -> Tensor:
    among = torch.zeros(len(names))
    among[list(columns_of(rule, tags, names, "tag"))] = 1
    return among


def _at_changes(where: Tensor, tags: int) -> Tensor:
    """Return costs ``(length − 1, tags, tags)`` of one for each change at some neighbours."""
    return where.float()[:, None, None] * (1 - torch.eye(tags))


@lru_cache(_KEPT)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(?<!\S)(?:{pattern})(?!\S)")
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from None


def _matches(pattern: str, text: tuple[str, ...]) -> Tensor:
    """Return which tokens a pattern matches, ``(length,)``."""
    matched, starts, place = torch.zeros(len(text), dtype=torch.bool), {}, 0
    for number, token in enumerate(text):
        starts[place] = number
        place += len(token) + 1
    for match in _compiled(pattern).finditer(" ".join(text)):
        if match.group():
            first = starts[match.start()]
            matched[first : first + match.group().count(" ") + 1] = True
    return matched
