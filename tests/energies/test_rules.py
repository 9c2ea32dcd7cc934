"""Rules: each word of the vocabulary against a loop over all label sets, composition, and what is refused."""

import itertools
import math

import pytest
import torch

from lossnet.energies import (
    LabelInteraction,
    Local,
    Rule,
    Sum,
    allowed,
    at_least,
    at_most,
    exactly,
    excludes,
    implies,
    listed,
    rule,
    sums_to,
)
from lossnet.nets import MLP

LABELS = 4
#: all label sets, as tuples and as candidates of three instances
SETS = list(itertools.product((0, 1), repeat=LABELS))
EVERY = torch.tensor(SETS, dtype=torch.float64).expand(3, -1, -1)
X = torch.zeros(3, 2, dtype=torch.float64)
VALUES = (1.0, 2.5, 4.0, -1.0)
TOTALS = torch.tensor([3.5, math.nan, 0.0])
ALLOWED = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, math.nan]])
FACTS = {"total": TOTALS, "may": ALLOWED}


def true(y):
    return [label for label in range(LABELS) if y[label]]


def may(row, label):
    return ALLOWED[row][label].item() != 0  # NaN: nothing is known


#: a rule of weight 1, and its penalty of the set ``y`` for an instance
CASES = {
    "exactly": (exactly(2, weight=1.0), lambda row, y: abs(len(true(y)) - 2)),
    "exactly of some": (exactly(1, [0, 3], weight=1.0), lambda row, y: abs(y[0] + y[3] - 1)),
    "at most": (at_most(1, weight=1.0), lambda row, y: max(len(true(y)) - 1, 0)),
    "at most of some": (at_most(1, [1, 2, 3], weight=1.0), lambda row, y: max(sum(y[1:]) - 1, 0)),
    "at least": (at_least(3, weight=1.0), lambda row, y: max(3 - len(true(y)), 0)),
    "implies": (implies(0, 2, weight=1.0), lambda row, y: int(y[0] and not y[2])),
    "excludes": (excludes(1, 3, weight=1.0), lambda row, y: int(y[1] and y[3])),
    "sums to": (
        sums_to(VALUES, fact="total", weight=1.0),
        lambda row, y: (
            0
            if math.isnan(TOTALS[row])
            else abs(sum(VALUES[label] for label in true(y)) - TOTALS[row].item())
        ),
    ),
    "allowed": (
        allowed("may", weight=1.0),
        lambda row, y: sum(not may(row, label) for label in true(y)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_word_is_its_loop(name):
    made, penalty = CASES[name]
    wanted = torch.tensor([[penalty(row, y) for y in SETS] for row in range(3)], dtype=torch.float64)
    assert 0 < (wanted > 0).double().mean() < 1, "the case tells sets apart"
    torch.testing.assert_close(made.at(X, FACTS)(EVERY), wanted)
    heavy = Rule(made.penalties, 2.5)
    torch.testing.assert_close(heavy.at(X, FACTS)(EVERY), 2.5 * wanted)
    hard = Rule(made.penalties, math.inf).at(X, FACTS)(EVERY)
    assert torch.equal(hard.isinf(), wanted > 0)
    assert torch.equal(hard == 0, wanted == 0)


def test_words_are_hard_unless_a_weight_is_given():
    words = exactly(1), at_most(1), at_least(1), implies(0, 1), excludes(0, 1), sums_to(), allowed()
    assert all(word.hard for word in words)
    assert not exactly(1, weight=5.0).hard


def test_penalties_of_relaxed_outputs_have_gradients():
    for made, _ in CASES.values():
        y = torch.rand(3, 2, LABELS, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(made.at(X, FACTS), y)


def test_a_function_becomes_a_rule():
    @rule
    def plain(x, y, facts):
        return y.sum(-1) * x.sum(-1, keepdim=True)

    @rule(weight=3.0)
    def told(x, y, facts):
        return (y.sum(-1) - facts.unsqueeze(1)).abs()

    assert (plain.name, plain.weight, told.weight) == ("plain", 1.0, 3.0)
    torch.testing.assert_close(plain(X + 1, EVERY), 2 * EVERY.sum(-1))
    counts = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(
        told.at(X, counts)(EVERY), 3 * (EVERY.sum(-1) - torch.tensor([[0.0], [1.0], [2.0]])).abs()
    )


def test_a_sum_of_learned_terms_and_rules():
    torch.manual_seed(0)
    encoder, terms = MLP(2, hidden=5, layers=1), (Local(5, LABELS), LabelInteraction(LABELS, 3))
    learned, written = Sum(encoder, *terms).double(), (sums_to(VALUES, "total", 2.0), excludes(0, 1, 3.0))
    together = Sum(encoder, *terms, *written).double()
    wanted = learned(X, EVERY) + sum(one.at(X, FACTS)(EVERY) for one in written)
    torch.testing.assert_close(together.at(X, FACTS)(EVERY), wanted)
    torch.testing.assert_close(together.unary_logits(X), learned.unary_logits(X))
    alone = Sum(None, *written)
    torch.testing.assert_close(alone.at(X, FACTS)(EVERY), wanted - learned(X, EVERY))
    with pytest.raises(ValueError, match="give an encoder"):
        Sum(None, *terms)


def test_what_is_wrong_with_a_rule_is_said():
    with pytest.raises(ValueError, match=r"rule <lambda> gives \(3, 16, 4\) for candidates of the shape"):
        rule(lambda x, y, facts: y)(X, EVERY)
    with pytest.raises(ValueError, match="rule <lambda> gives float"):
        rule(lambda x, y, facts: 0.0)(X, EVERY)
    with pytest.raises(ValueError, match="its weight must be above 0"):
        rule(weight=-1.0)(lambda x, y, facts: y.sum(-1))
    with pytest.raises(ValueError, match="rule sums_to reads facts of each instance, and there are none"):
        sums_to()(X, EVERY)
    with pytest.raises(ValueError, match="there are total, may: name one"):
        sums_to().at(X, FACTS)(EVERY)
    with pytest.raises(ValueError, match="reads the fact 'sum'; there are total, may"):
        sums_to(fact="sum").at(X, FACTS)(EVERY)
    with pytest.raises(ValueError, match="2 values for 4 labels"):
        sums_to([1, 2]).at(X, TOTALS)(EVERY)


@pytest.mark.parametrize(
    "rules",
    [
        [exactly(2)],
        [at_most(1)],
        [at_least(3)],
        [at_least(1), at_most(2)],
        [excludes(0, 1)],
        [at_least(2, [0, 1])],
    ],
)
def test_listed_sets_are_all_that_hard_rules_allow(rules):
    sets = listed(LABELS, rules)
    mine = {tuple(map(int, row)) for row in sets}
    assert len(mine) == len(sets)
    allowed_sets = {
        y for y, bad in zip(SETS, sum(one(X, EVERY) for one in rules)[0], strict=True) if bad == 0
    }
    assert allowed_sets <= mine
    if all(one.sizes is not None for one in rules) and rules[0].name.count("of") == 0:
        assert mine == allowed_sets


def test_too_many_sets_are_not_listed():
    assert len(listed(10, [exactly(2)])) == 45
    assert listed(13, []) is None
    assert len(listed(12, [])) == 4096
    assert listed(40, [exactly(2, weight=1.0)]) is None, "only hard rules leave sets out"
    with pytest.raises(ValueError, match="no set of 4 labels keeps all hard rules"):
        listed(4, [at_least(3), at_most(2)])
