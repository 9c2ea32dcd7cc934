"""Written knowledge of roles: what holds of the arguments of one predicate.

The tags are those of `lossnet.roles`: ``B-…`` begins a role.  The rules read the names of tags from the fact
``tokens``, as those of `lossnet.energies.tag_rules` do, and are about all roles that there are.  Penalties of
relaxed outputs are expressions that agree with the counts on discrete ones and have gradients.

=====================  ====================================================================================
`unique_core_roles`    no core role has two spans; counts those too many
`continuations`        ``C-X`` continues an ``X`` before it; counts those without
`references`           ``R-X`` refers to an ``X`` of the sentence; counts those without
`frame_roles`          a predicate has core roles of its frame alone; counts others
=====================  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lossnet.energies.rules import Rule, RuleError
from lossnet.energies.tag_rules import tokens_of
from lossnet.roles import is_core

__all__ = [
    "continuations",
    "core_columns",
    "frame_roles",
    "references",
    "repeated_core_roles",
    "unique_core_roles",
]

#: probabilities are kept this far from 0 and 1 before their logarithms are taken
_TINY = 1e-6


def unique_core_roles(weight: float = 1.0) -> Rule:
    """Return the rule that no core role has more than one span, ``Σ_X [Σ_t y_t,B-X − 1]₊``.

    >>> from lossnet.energies import TokenFacts
    >>> facts = {"tokens": TokenFacts((("a", "b"),), ("O", "B-A0", "I-A0"))}
    >>> unique_core_roles().at(None, facts)(torch.eye(3)[torch.tensor([[[1, 1], [1, 2]]])])
    tensor([[1., 0.]])
    """

    def penalties(y: Tensor, tags: Sequence[str]) -> Tensor:
        return (y[..., core_columns(tags)].sum(2) - 1).clamp(min=0).sum(-1)

    return _role_rule("unique_core_roles", penalties, weight)


def continuations(weight: float = 1.0) -> Rule:
    """Return the rule that a role is continued after it began, ``Σ_X Σ_t y_t,B-C-X (1 − max_{s<t} y_s,B-X)``.

    >>> from lossnet.energies import TokenFacts
    >>> facts = {"tokens": TokenFacts((("a", "b"),), ("O", "B-A0", "B-C-A0"))}
    >>> continuations().at(None, facts)(torch.eye(3)[torch.tensor([[[2, 1], [1, 2]]])])
    tensor([[1., 0.]])
    """

    def penalties(y: Tensor, tags: Sequence[str]) -> Tensor:
        further, first = _of("B-C-", y, tags)
        before = pad(first, (0, 0, 1, 0))[:, :, :-1].cummax(2).values
        return (further * (1 - before)).sum((2, 3))

    return _role_rule("continuations", penalties, weight)


def references(weight: float = 1.0) -> Rule:
    """Return the rule that what is referred to is there, ``Σ_X Σ_t y_t,B-R-X (1 − max_s y_s,B-X)``.

    >>> from lossnet.energies import TokenFacts
    >>> facts = {"tokens": TokenFacts((("a", "b"),), ("O", "B-A0", "B-R-A0"))}
    >>> references().at(None, facts)(torch.eye(3)[torch.tensor([[[2, 1], [0, 2]]])])
    tensor([[0., 1.]])
    """

    def penalties(y: Tensor, tags: Sequence[str]) -> Tensor:
        further, first = _of("B-R-", y, tags)
        return (further * (1 - first.amax(2, keepdim=True))).sum((2, 3))

    return _role_rule("references", penalties, weight)


def frame_roles(frames: Mapping[str, Iterable[str]], weight: float = 1.0) -> Rule:
    """Return the rule that a predicate has none but its frame's core roles, ``Σ_{X ∉ frame} Σ_t y_t,B-X``.

    ``frames`` maps predicates to the core roles that they take, as `lossnet.data.read_frames` reads and
    `lossnet.data.find_frames` finds them.  The frame of a predicate is that of its sense, else of its lemma,
    else of its word, whichever there is; a predicate without any may have all roles.  ``A1`` and ``ARG1``
    are the same role.

    >>> from lossnet.energies import TokenFacts
    >>> tags = ("O", "B-A0", "B-A1")
    >>> facts = {"tokens": TokenFacts((("It", "rained"),), tags, (("rain.01", "rain", "rained"),))}
    >>> frame_roles({"rain": []}).at(None, facts)(torch.eye(3)[torch.tensor([[[1, 0], [0, 0]]])])
    tensor([[1., 0.]])
    """
    name = "frame_roles"
    taken: dict[str, set[str]] = {}
    for predicate, roles in frames.items():
        listed = [] if isinstance(roles, str) else list(roles)
        if isinstance(roles, str) or not all(map(is_core, listed)):
            what = f"has the roles {listed or roles!r} for {predicate!r}"
            raise RuleError(name, what, why="; give a list of core roles, ARG0 to ARG5")
        taken[predicate] = {role[-1] for role in listed}
    if not taken:
        raise RuleError(name, "has no frames", why="; give a mapping of predicates to their core roles")

    def given(x: Any, y: Tensor, facts: Any) -> Tensor:
        tokens = tokens_of(name, facts)
        if tokens.predicates is None:
            raise RuleError(name, "reads predicates, and the facts have none", why="; it is for roles")
        core = core_columns(tokens.tags)
        frame_of = (next((taken[one] for one in names if one in taken), None) for names in tokens.predicates)
        beside = [
            [frame is not None and tokens.tags[column][-1] not in frame for column in core]
            for frame in frame_of
        ]
        return (y[..., core].sum(2) * y.new_tensor(beside).unsqueeze(1)).sum(-1)

    return Rule(given, weight, name)


def repeated_core_roles(y: Tensor, core: Sequence[int] | Tensor) -> Tensor:
    """Return structured tuning's penalty of relaxed outputs ``(batch, K, length, tags)``, ``(batch, K)``.

    ``Σ_X Σ_i [log y_i,B-X − min_{j≠i} log(1 − y_j,B-X)]₊`` over core roles ``X`` (Li et al. 2020):
    if ``X`` begins at one token, it begins at no other.  ``core`` are the columns of their ``B-X``.

    >>> y = torch.tensor([[[[0.1, 0.9], [0.2, 0.8]], [[0.1, 0.9], [0.9, 0.1]]]])
    >>> repeated_core_roles(y, [1])
    tensor([[3.5835, 0.0000]])
    """
    begins = y[..., core]
    if y.shape[2] < 2:
        return begins.sum((2, 3)) * 0
    largest, place = begins.topk(2, dim=2)
    at = torch.arange(y.shape[2], device=y.device).unsqueeze(1)
    other = torch.where(at == place[:, :, :1], largest[:, :, 1:], largest[:, :, :1])  # at another token
    bound = begins.clamp(min=_TINY).log() - (1 - other).clamp(min=_TINY).log()
    return bound.clamp(min=0).sum((2, 3))


def core_columns(tags: Sequence[str]) -> list[int]:
    """Return the columns of tags that begin a core role.

    >>> core_columns(("O", "B-A0", "I-A0", "B-AM-TMP"))
    [1]
    """
    return [column for column, tag in enumerate(tags) if tag.startswith("B-") and is_core(tag[2:])]


def _of(prefix: str, y: Tensor, tags: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the columns of tags with a prefix, and those that begin the roles which these are about.

    Where no tag begins such a role, its column is zeros.
    """
    own = [column for column, tag in enumerate(tags) if tag.startswith(prefix)]
    begins = {tag: column for column, tag in enumerate(tags)}
    of = [begins.get(f"B-{tags[column].removeprefix(prefix)}") for column in own]
    there = y.new_tensor([column is not None for column in of])
    return y[..., own], y[..., [column or 0 for column in of]] * there


def _role_rule(name: str, penalties: Callable[[Tensor, Sequence[str]], Tensor], weight: float) -> Rule:
    def given(x: Any, y: Tensor, facts: Any) -> Tensor:
        return penalties(y, tokens_of(name, facts).tags)

    return Rule(given, weight, name)
