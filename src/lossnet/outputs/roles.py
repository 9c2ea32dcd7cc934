"""The roles of a predicate: who did what to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lossnet.data import DataError, TagColumn, TagSet
from lossnet.data.propbank import PredicateSentences, RoleColumn
from lossnet.decoding import Decoder
from lossnet.inputs import Arrays
from lossnet.outputs.base import Predicted
from lossnet.outputs.tags import Tags
from lossnet.spaces import Roles as RoleSpace
from lossnet.spans import find_spans


@dataclass(frozen=True)
class Roles(Tags):
    """The roles of a sentence's tokens for one predicate: `Tags` in BIO, as files have them.

    >>> roles = Roles.fit([RoleColumn((("B-A0", "O", "B-A1", "I-A1"),))])
    >>> roles.names
    ('O', 'B-A0', 'I-A0', 'B-A1', 'I-A1')
    """

    kind = "roles"
    summary = "the roles of a predicate"
    target = RoleColumn

    @classmethod
    def fit(cls, parts: Sequence[TagColumn]) -> Roles:
        tags = {tag for part in parts for sentence in part.tags for tag in sentence if tag != "O"}
        kinds = sorted({tag[2:] for tag in tags})
        return cls(_tag_set(kinds))

    @classmethod
    def accepts(cls, y: Any) -> bool:
        return False  # they look like tags, which they are too

    def preparing(self, targets: Callable[[], Iterable[TagColumn]]) -> Callable[[TagColumn], TagColumn]:
        return lambda target: target.encoded(self.tag_set)

    @classmethod
    def describe(cls, parts: Sequence[TagColumn], frequent: int = 10) -> dict[str, Any]:
        counts = Counter(span.kind for part in parts for tags in part.tags for span in find_spans(tags))
        return {"roles": len(counts), "frequent_roles": tuple(counts.most_common(frequent))}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Roles:
        tag_set = TagSet.from_state(content)
        kinds = [name[2:] for name in tag_set.names[1::2]]
        if tag_set != _tag_set(kinds) or len(set(kinds)) < len(kinds) or "" in kinds:
            raise DataError("tags of roles must be O, and B-… and I-… of each role")
        return cls(tag_set)

    @cached_property
    def _space(self) -> RoleSpace:
        return RoleSpace(len(self.names), self.names)

    def lines(self, predicted: Iterable[Predicted], decoder: Decoder) -> Iterator[str]:
        """Yield each sentence, and under it, for each of its predicates, who did what to whom."""
        before: tuple[str, ...] | None = None
        for part in predicted:
            assert isinstance(part.source, PredicateSentences)
            named = self.named(part.outputs(decoder), part.source)
            for tokens, place, tagged in zip(part.source.tokens, part.source.places, named, strict=True):
                title = "" if tokens == before else "\n" * (before is not None) + " ".join(tokens) + "\n"
                yield title + _line(tokens, place, [tag for _, tag in tagged])
                before = tokens


def _tag_set(kinds: Sequence[str]) -> TagSet:
    return TagSet(("O", *(f"{mark}-{kind}" for kind in kinds for mark in "BI")), "IOB2")


def _line(tokens: Sequence[str], place: int | None, tags: Sequence[str]) -> str:
    """Return a predicate and its roles, in the order of the sentence.

    >>> _line(("She", "gave", "up"), 1, ("B-A0", "O", "O"))
    '  gave: A0 [She]\\n'
    """
    if place is None:
        return "  no predicate\n"
    roles = (f"{kind} [{' '.join(tokens[start:end])}]" for start, end, kind in find_spans(tags))
    return f"  {tokens[place]}: {', '.join(roles) or 'no roles'}\n"
