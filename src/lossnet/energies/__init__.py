"""Energies ``E(x, y)``: low is good.

An energy encodes ``x`` once and then scores any number of candidates.  `Sum` composes terms over one
shared encoder; a new term is one new file here.  A `Rule` is an energy that a person writes.
"""

from lossnet.energies.attention import SelfAttention
from lossnet.energies.base import Energy, LogPartition, Scorer, Sum, Term
from lossnet.energies.chain import Chain
from lossnet.energies.image import FeatureEnergy, ImageEnergy
from lossnet.energies.labels import LabelInteraction, Local
from lossnet.energies.mask_rules import area, connected, inside, smooth
from lossnet.energies.pairs import Pairs
from lossnet.energies.residual import LabelResidual, OnLogits
from lossnet.energies.role_rules import continuations, frame_roles, references, unique_core_roles
from lossnet.energies.rules import (
    Ancestors,
    Rule,
    RuleError,
    allowed,
    ancestors,
    at_least,
    at_most,
    exactly,
    excludes,
    implies,
    listed,
    parents_of,
    rule,
    sums_to,
)
from lossnet.energies.tag_lm import TagLM
from lossnet.energies.tag_rules import (
    ChainRule,
    TokenFacts,
    at_most_one_of,
    bio,
    changes_after,
    forbids,
    in_order,
    needs,
    never_begins,
    occurs,
    once,
    spans_at_least,
    starts_with,
    suggests,
    summed,
)

__all__ = [
    "Ancestors",
    "Chain",
    "ChainRule",
    "Energy",
    "FeatureEnergy",
    "ImageEnergy",
    "LabelInteraction",
    "LabelResidual",
    "Local",
    "LogPartition",
    "OnLogits",
    "Pairs",
    "Rule",
    "RuleError",
    "Scorer",
    "SelfAttention",
    "Sum",
    "TagLM",
    "Term",
    "TokenFacts",
    "allowed",
    "ancestors",
    "area",
    "at_least",
    "at_most",
    "at_most_one_of",
    "bio",
    "changes_after",
    "connected",
    "continuations",
    "exactly",
    "excludes",
    "forbids",
    "frame_roles",
    "implies",
    "in_order",
    "inside",
    "listed",
    "needs",
    "never_begins",
    "occurs",
    "once",
    "parents_of",
    "references",
    "rule",
    "smooth",
    "spans_at_least",
    "starts_with",
    "suggests",
    "summed",
    "sums_to",
    "unique_core_roles",
]
