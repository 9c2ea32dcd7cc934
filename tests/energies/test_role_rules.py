"""Rules about roles: over all sequences of a small case they count what spans show."""

import itertools
import math

import pytest
import torch

from lossnet.energies import TokenFacts, continuations, frame_roles, references, unique_core_roles
from lossnet.energies.role_rules import core_columns, repeated_core_roles
from lossnet.energies.tag_rules import summed
from lossnet.roles import oddities
from lossnet.spans import find_spans

NAMES = ("O", "B-A0", "I-A0", "B-C-A0", "B-R-A0", "B-R-A1", "B-AM-TMP")
FACTS = {"tokens": TokenFacts((("a", "b", "c", "d"),), NAMES)}
EVERY = torch.tensor(list(itertools.product(range(len(NAMES)), repeat=4)))
RULES = {"repeated": unique_core_roles, "continuations": continuations, "references": references}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_penalises_just_the_sequences_that_are_odd(name):
    y = torch.eye(len(NAMES))[EVERY].unsqueeze(0)
    penalties = RULES[name]().at(None, FACTS)(y)[0]
    tags = [[NAMES[tag] for tag in row] for row in EVERY.tolist()]
    # I-A0 that nothing begins is read as a span, but rules know spans by what begins them.
    whole = [i for i, row in enumerate(tags) if not ({"I-A0"} & set(row)) or "I-A0" not in _orphans(row)]
    odd = torch.tensor([oddities(find_spans(tags[i]))[name] for i in whole])
    assert torch.equal(penalties[whole] > 0, odd)
    assert 50 < odd.sum() < len(whole)
    assert torch.equal(penalties, penalties.round())


def _orphans(tags):
    return {
        tag for before, tag in zip(["O", *tags], tags, strict=False) if tag == "I-A0" and before[2:] != "A0"
    }


def test_penalties_are_counts():
    def of(rule, *tags):
        y = torch.eye(len(NAMES))[[NAMES.index(tag) for tag in tags]][None, None]
        return float(rule(weight=2.0).at(None, FACTS)(y))

    assert of(unique_core_roles, "B-A0", "B-A0", "B-A0", "O") == 4
    assert of(continuations, "B-C-A0", "B-A0", "B-C-A0", "B-C-A0") == 2
    assert of(references, "B-R-A0", "B-R-A1", "B-R-A0", "B-A0") == 2, "no tag begins an A1"


@pytest.mark.parametrize("rule", RULES.values())
def test_relaxed_penalties_have_the_gradient_of_finite_differences(rule):
    torch.manual_seed(0)
    y = torch.randn(1, 2, 4, len(NAMES), dtype=torch.float64).softmax(-1).mul(2).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: rule().at(None, FACTS)(y), (y,))


def test_padding_changes_no_penalty():
    torch.manual_seed(0)
    y = torch.randn(1, 3, 4, len(NAMES)).softmax(-1)
    longer = torch.nn.functional.pad(y, (0, 0, 0, 3))
    for rule in RULES.values():
        torch.testing.assert_close(rule().at(None, FACTS)(y), rule().at(None, FACTS)(longer))
    core = core_columns(NAMES)
    torch.testing.assert_close(repeated_core_roles(y, core), repeated_core_roles(longer, core))


FRAMES = {"give": ["ARG0", "ARG1", "ARG2"], "give.09": ["ARG1"], "rain": []}
ROLES = ("O", "B-A0", "I-A0", "B-A1", "B-R-A0", "B-AM-TMP")


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("give.01", "give", "gave"), {"A0", "A1"}),
        (("give.09", "give", "gave"), {"A1"}),
        (("rain",), set()),
        (("gave",), {"A0", "A1"}),  # no frame is called so: all roles may be
        ((), {"A0", "A1"}),
    ],
)
def test_a_frame_forbids_the_core_roles_that_it_has_not(names, taken):
    facts = {"tokens": TokenFacts((("a", "b", "c"),), ROLES, (names,))}
    every = torch.tensor(list(itertools.product(range(len(ROLES)), repeat=3)))
    penalties = frame_roles(FRAMES, weight=2.0).at(None, facts)(torch.eye(len(ROLES))[every].unsqueeze(0))
    tags = [[ROLES[tag] for tag in row] for row in every.tolist()]
    beside = [sum(tag in ("B-A0", "B-A1") and tag[2:] not in taken for tag in row) for row in tags]
    assert penalties[0].tolist() == [2 * count for count in beside]


def test_a_frame_is_of_its_own_sentence_and_has_a_gradient():
    torch.manual_seed(0)
    facts = {"tokens": TokenFacts((("a", "b"),) * 2, ROLES, (("rain",), ("give",)))}
    y = torch.rand(2, 3, 2, len(ROLES), dtype=torch.float64, requires_grad=True)
    penalties = frame_roles(FRAMES).at(None, facts)(y)
    torch.testing.assert_close(penalties[0], y[0, :, :, [1, 3]].sum((1, 2)))
    assert not penalties[1].any()
    assert torch.autograd.gradcheck(lambda y: frame_roles(FRAMES).at(None, facts)(y), (y,))


def test_frames_that_are_none_are_refused():
    with pytest.raises(
        ValueError, match=r"rule frame_roles has the roles \['agent'\] for 'give'; give a list"
    ):
        frame_roles({"give": ["agent"]})
    with pytest.raises(ValueError, match="has the roles 'ARG0' for 'give'"):
        frame_roles({"give": "ARG0"})
    with pytest.raises(ValueError, match="has no frames; give a mapping"):
        frame_roles({})
    with pytest.raises(ValueError, match="reads predicates, and the facts have none; it is for roles"):
        frame_roles(FRAMES).at(None, FACTS)(torch.zeros(1, 1, 4, len(NAMES)))


def test_rules_name_themselves_where_there_are_no_tokens():
    with pytest.raises(ValueError, match="rule references reads tokens, and the facts have none"):
        references().at(None, None)(torch.zeros(1, 1, 2, 3))


def test_rules_add_up():
    y = torch.eye(len(NAMES))[torch.tensor([1, 1, 5, 3])][None, None]
    together = summed([make(weight=2.0) for make in RULES.values()], None, FACTS, y[:, 0])
    assert float(together(y)) == 4.0


# ---------------------------------------------------------------- structured tuning


def by_hand(y, core):
    """Li et al.'s loss of one sentence, as its formula reads."""
    total = 0.0
    for role in core:
        for i in range(len(y)):
            others = [math.log(max(1 - float(y[j, role]), 1e-6)) for j in range(len(y)) if j != i]
            total += max(0.0, math.log(max(float(y[i, role]), 1e-6)) - min(others))
    return total


def test_the_constraint_is_that_of_an_explicit_loop():
    torch.manual_seed(0)
    names = ("O", "B-A0", "I-A0", "B-A1", "I-A1", "B-AM-TMP")
    core = core_columns(names)
    assert core == [1, 3]
    y = (3 * torch.randn(2, 3, 5, 6, dtype=torch.float64)).softmax(-1)
    y[0, 0, :, 1] = 0.4  # a tie
    y[0, 1] = torch.eye(6)[torch.tensor([1, 2, 1, 0, 0])]  # a role that is there twice, for sure
    found = repeated_core_roles(y, core)
    for row, values in zip(y, found, strict=True):
        for candidate, value in zip(row, values, strict=True):
            assert float(value) == pytest.approx(by_hand(candidate, core), rel=1e-6)
    assert found[0, 1] > 20


def test_the_constraint_is_met_by_outputs_that_repeat_nothing():
    y = torch.eye(3)[torch.tensor([[[1, 2, 0, 0], [1, 0, 1, 2], [0, 0, 0, 0]]])]
    penalties = repeated_core_roles(y, [1])[0]
    assert penalties[0] == penalties[2] == 0 < penalties[1]
    assert repeated_core_roles(y[:, :, :1], [1]).tolist() == [[0, 0, 0]], "one token repeats nothing"


def test_gradients_of_the_constraint_are_those_of_finite_differences():
    torch.manual_seed(1)
    y = torch.randn(1, 2, 4, 3, dtype=torch.float64).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: repeated_core_roles(y, [1]), (y,))
    assert torch.autograd.gradgradcheck(lambda y: repeated_core_roles(y, [1]), (y,))
