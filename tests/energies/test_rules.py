"""Rules: each word of the vocabulary against a loop over all label sets, composition, and what is refused."""

import itertools
import math
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from lossnet.energies import (
    LabelInteraction,
    Local,
    Rule,
    RuleError,
    Sum,
    allowed,
    ancestors,
    area,
    at_least,
    at_most,
    connected,
    exactly,
    excludes,
    implies,
    inside,
    listed,
    rule,
    smooth,
    sums_to,
)
from lossnet.energies import rules as rules_module
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
    heavy = Rule(made.penalties, 2.5, labels=made.labels)
    torch.testing.assert_close(heavy.at(X, FACTS)(EVERY), 2.5 * wanted)
    hard = Rule(made.penalties, math.inf, labels=made.labels).at(X, FACTS)(EVERY)
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
    with pytest.raises(
        ValueError, match="reads one fact of each instance, and there are total, may: name it"
    ):
        sums_to().at(X, FACTS)(EVERY)
    with pytest.raises(ValueError, match="reads the fact 'sum', which is not there; there are total, may"):
        sums_to(fact="sum").at(X, FACTS)(EVERY)
    with pytest.raises(ValueError, match="2 values for 4 labels"):
        sums_to([1, 2]).at(X, TOTALS)(EVERY)
    with pytest.raises(
        ValueError, match=r"a row of 4 zeros and ones of each instance, not facts of the shape \(3,\)"
    ):
        allowed().at(X, TOTALS)(EVERY)
    with pytest.raises(ValueError, match="rule smooth is for masks"):
        smooth()(X, EVERY)
    with pytest.raises(TypeError, match=r"name what it is: rule\(weight=2.0\)"):
        rule(2.0)


def test_a_single_fact_needs_no_name():
    for facts in (TOTALS, {"total": TOTALS}, {"total": TOTALS, "tokens": object()}):
        assert torch.equal(sums_to().at(X, facts)(EVERY), sums_to().at(X, TOTALS)(EVERY))


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


# ---------------------------------------------------------------- any Python


def counted_rule(**options):
    """A rule of one candidate in plain Python, and what it was called with."""
    calls = []

    @rule(each=True, **options)
    def alike(x, y, facts):
        calls.append((tuple(x), tuple(y), facts["total"], tuple(facts["may"])))
        return sum(int(y[label]) for label in range(LABELS)) * x[0] + np.nan_to_num(facts["total"])

    return alike, calls


def test_a_function_of_one_candidate_is_a_rule_of_batches():
    alike, calls = counted_rule(weight=2.0)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    wanted = EVERY.sum(-1) * x[:, :1] + TOTALS.nan_to_num(0).unsqueeze(1)
    torch.testing.assert_close(alike.at(x, FACTS)(EVERY), 2 * wanted)
    assert len(calls) == len(set(map(str, calls))) == 48
    alike.at(x, FACTS)(EVERY.flip(1).repeat(1, 3, 1))
    assert len(calls) == 48, "what repeats is remembered"
    alike.at(x + 1, FACTS)(EVERY[:, :1])
    assert len(calls) == 51, "for other inputs it is called again"


def test_memory_has_an_end(monkeypatch):
    monkeypatch.setattr(rules_module, "_REMEMBERED", 20)
    alike, calls = counted_rule()
    alike.at(X, FACTS)(EVERY)
    assert len(alike._remembered) == 20
    alike.at(X, FACTS)(EVERY)
    assert len(calls) == 96


def test_numpy_will_do_and_sparse_inputs_are_made_dense():
    batched = rule(lambda x, y, facts: np.abs(np.asarray(y).sum(-1) - 2))
    torch.testing.assert_close(batched(X, EVERY), exactly(2, weight=1.0)(X, EVERY))
    one = rule(each=True)(lambda x, y, facts: x[1])
    wide = torch.eye(3).to_sparse_csr()
    assert one(wide, EVERY)[:, 0].tolist() == [0, 1, 0]


def test_a_rule_without_a_gradient_does_not_silently_teach_nothing():
    y = torch.rand(3, 2, LABELS, requires_grad=True)
    for made in (rule(each=True)(lambda x, y, facts: 1.0), rule(lambda x, y, facts: (y > 0.5).sum(-1))):
        with pytest.raises(RuleError, match="no gradient in the outputs; write it in torch"):
            made(X, y)
        with torch.no_grad():
            made(X, y)


def fails_on(bad, how):
    def function(x, y, facts):
        if (np.asarray(x) == bad).any():
            return how(y)
        return y.sum(-1)

    return function


def hangs(y):
    while True:
        pass


WRONG = {
    "throws": (lambda y: 1 / 0, r"rule function raises ZeroDivisionError on row 1: division by zero"),
    "is NaN": (lambda y: y.sum(-1) * math.nan, r"rule function gives NaN on row 1; a penalty is a number"),
    "is -inf": (lambda y: y.sum(-1) * 0 - math.inf, r"rule function gives -inf on row 1"),
    "hangs": (hangs, r"rule function takes longer than 0\.1 s on row 1; make it faster"),
}


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_what_fails_is_named_with_its_instance(name, each):
    how, message = WRONG[name]
    made = rule(each=each, seconds=0.1)(fails_on(7, how))
    x = torch.tensor([[1.0], [7.0], [2.0]])
    before = signal.getsignal(signal.SIGALRM)
    if name in ("is NaN", "is -inf") and not each:  # of a batch, one row
        made = rule(lambda x, y, facts: torch.where(x == 7, how(y), 0.0))
        message = message.replace("function", "<lambda>")
    with pytest.raises(RuleError, match=message) as caught:
        made(x, EVERY)
    assert caught.value.row == 1
    assert str(caught.value.among([10, 11, 12])).partition("row ")[2].startswith("11")
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_what_one_candidate_gives_must_be_a_number():
    with pytest.raises(RuleError, match="rule <lambda> gives str on row 0; it must give a number"):
        rule(each=True)(lambda x, y, facts: "no")(X, EVERY)
    assert rule(each=True)(lambda x, y, facts: np.float32(2))(X, EVERY).eq(2).all()


def test_a_batch_that_takes_too_long_as_a_whole_is_named_as_such():
    made = rule(seconds=0.05)(lambda x, y, facts: time.sleep(0.03 * len(y)) or y.sum(-1))
    with pytest.raises(RuleError, match=r"takes longer than 0\.05 s for 3 instances of 16 candidates"):
        made(X, EVERY)


def test_errors_go_from_process_to_process():
    error = pickle.loads(pickle.dumps(RuleError("mine", "gives NaN", 3, "; why")))
    assert str(error.among([5, 6, 7, 8])) == "rule mine gives NaN on row 8; why"


def test_outside_of_the_main_thread_time_is_looked_at_afterwards():
    made = rule(seconds=0.01)(lambda x, y, facts: time.sleep(0.05) or y.sum(-1))
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuleError, match="takes longer"):
        pool.submit(made, X, EVERY).result()


# ---------------------------------------------------------------- labels by name

NAMES = ["cat", "dog", "animal", "plant"]


@rule(labels=["plant", "cat"])
def rather_a_plant(x, y, facts):
    return (1 - y[..., 0]) * y[..., 1]


@rule(labels=("plant", "cat"), each=True)
def rather_a_plant_each(x, y, facts):
    return float(y[1] > y[0])


BY_NAME = {
    "exactly": (exactly(1, ["plant", "cat"]), exactly(1, [0, 3])),
    "at most": (at_most(0, "dog"), at_most(0, [1])),
    "at least": (at_least(1, ["dog", "animal"], weight=2.0), at_least(1, [1, 2], weight=2.0)),
    "implies": (implies("cat", "animal"), implies(0, 2)),
    "excludes": (excludes("dog", "plant"), excludes(1, 3)),
    "ancestors": (ancestors({"cat": "animal", "dog": ["animal"]}), ancestors({0: 2, 1: (2,)})),
    "sums to": (sums_to({"plant": -1, "dog": 2.5}, "total"), sums_to([0, 2.5, 0, -1], "total")),
    "own": (rather_a_plant, implies(0, 3, weight=1.0)),
    "own, one by one": (rather_a_plant_each, implies(0, 3, weight=1.0)),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_labels_may_go_by_name(name):
    named, numbered = BY_NAME[name]
    known = named.for_outputs(NAMES)
    assert torch.equal(known.at(X, FACTS)(EVERY), numbered.at(X, FACTS)(EVERY))
    assert (known.name, known.sizes, known.weight) == (named.name, named.sizes, named.weight)
    assert numbered.for_outputs(NAMES).labels == numbered.labels
    with pytest.raises(RuleError, match="and these outputs have no names; give a column number"):
        named.at(X, FACTS)(EVERY)
    turned = named.for_outputs(NAMES[::-1]).at(X, FACTS)(EVERY.flip(-1))
    assert torch.equal(turned, numbered.at(X, FACTS)(EVERY)), "nothing is remembered from other columns"


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (
            implies("Dgo", "animal"),
            r"rule implies\(Dgo, animal\) is about 'Dgo', which is no label; did you mean",
        ),
        (
            ancestors({"cat": "beast"}),
            "rule ancestors is about 'beast', which is no label; labels are cat, dog",
        ),
        (
            exactly(1, [0, 7]),
            r"rule exactly\(1\) of \[0, 7\] is about label 7, and there are 4, counted from 0",
        ),
        (excludes(-1, 0), "is about label -1, and there are 4"),
    ],
)
def test_labels_that_do_not_exist_are_said(made, complaint):
    with pytest.raises(RuleError, match=complaint):
        made.for_outputs(NAMES)


def test_numbers_beyond_the_last_label_are_said():
    with pytest.raises(RuleError, match=r"rule implies\(0, 4\) is about label 4 of 4, counted from 0"):
        implies(0, 4)(X, EVERY)
    with pytest.raises(RuleError, match="these outputs have no names"):
        ancestors({"cat": "animal"})(X, EVERY)


def test_no_labels_are_no_rule_but_an_empty_taxonomy():
    with pytest.raises(ValueError, match=r"rule exactly\(1\) of \[\]: it is about no label"):
        exactly(1, [])
    assert (ancestors({}).for_outputs(NAMES)(X, EVERY) == 0).all()


def test_a_taxonomy_is_a_mapping_or_a_table():
    rows = [
        ("cat", "animal"),
        ("dog", "animal"),
        ("cat", "pet"),
        ("animal", None),
        ("pet", ""),
        ("plant", math.nan),
    ]
    wanted = {"cat": ("animal", "pet"), "dog": ("animal",), "animal": (), "pet": (), "plant": ()}
    frame = pd.DataFrame(rows, columns=["label", "parent"])
    assert ancestors(rows).parents == ancestors(frame).parents == ancestors(wanted).parents == wanted
    assert ancestors(frame[:2].set_index("label")["parent"]).parents == {
        "cat": ("animal",),
        "dog": ("animal",),
    }
    assert not ancestors({"cat": "animal"}).exact, "sums are over columns"
    assert ancestors({"cat": "animal"}).for_outputs(NAMES).exact
    with pytest.raises(
        RuleError, match=r"rule ancestors has a table with the row \('cat', 'pet', 'animal'\)"
    ):
        ancestors([("cat", "pet", "animal")])


# ---------------------------------------------------------------- taxonomies and masks


def test_ancestors_are_a_loop_over_all_that_is_above():
    parents = {1: 0, 2: 1, 3: (0, 1)}
    over = {1: {0}, 2: {0, 1}, 3: {0, 1}}
    hard = ancestors(parents)(X, EVERY)[0]
    for y, penalty in zip(SETS, hard.tolist(), strict=True):
        assert (penalty == 0) == all(y[above] for label in true(y) if label for above in over[label])
    assert torch.autograd.gradcheck(
        ancestors(parents, 1.0).at(X), torch.rand(1, 2, LABELS, dtype=torch.float64, requires_grad=True)
    )


MASKS = torch.tensor(list(itertools.product((0.0, 1.0), repeat=6))).reshape(1, 64, 2, 3).expand(3, -1, -1, -1)
BOXES = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3], [math.nan] * 4])
SHARES = torch.tensor([[0.5, 0.5], [0.0, 1 / 3], [math.nan, math.nan]])


def pieces(mask):
    """Groups of pixels that touch, corners included, by repeated merging."""
    groups = [{place} for place in itertools.product(range(2), range(3)) if mask[place]]
    for one, other in itertools.combinations(list(itertools.product(range(2), range(3))), 2):
        if mask[one] and mask[other] and max(abs(one[0] - other[0]), abs(one[1] - other[1])) == 1:
            joined = [group for group in groups if one in group or other in group]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return len(groups)


def outside(row, mask):
    top, left, bottom, right = BOXES[row].tolist()
    return sum(
        bool(mask[r, c]) and row < 2 and not (top <= r < bottom and left <= c < right)
        for r in range(2)
        for c in range(3)
    )


def beyond(row, mask):
    if row == 2:
        return 0
    low, high = 6 * SHARES[row]
    return max(low - mask.sum(), 0) + max(mask.sum() - high, 0)


MASK_CASES = {
    "area": (area(0.5, 2 / 3, weight=1.0), lambda row, m: max(3 - m.sum(), 0) + max(m.sum() - 4, 0)),
    "known area": (area(fact="share", weight=1.0), beyond),
    "inside": (inside("box", weight=1.0), outside),
    "connected": (connected(weight=1.0), lambda row, m: max(pieces(m) - 1, 0)),
    "smooth": (
        smooth(weight=1.0),
        lambda row, m: sum(m[:, c] != m[:, c + 1] for c in range(2)).sum() + (m[0] != m[1]).sum(),
    ),
}


@pytest.mark.parametrize("name", MASK_CASES)
def test_each_word_of_masks_is_its_loop(name):
    made, penalty = MASK_CASES[name]
    given = made.at(None, {"box": BOXES, "share": SHARES})(MASKS)
    wanted = torch.tensor([[float(penalty(row, mask)) for mask in MASKS[row].bool()] for row in range(3)])
    assert (wanted[:2] > 0).any()
    assert (wanted == 0).any()
    torch.testing.assert_close(given, wanted)


def test_wrong_areas_and_boxes_are_said():
    with pytest.raises(ValueError, match="area is a share of the image"):
        area(2, 3)
    with pytest.raises(RuleError, match=r"rule inside reads boxes \(top, left, bottom, right\), not \(3,\)"):
        inside().at(None, torch.ones(3))(MASKS)
