"""Decoding under rules: against brute force, what is left alone, what is said where nothing keeps them."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

import lossnet
from lossnet import MultiLabelClassifier, Segmenter, SequenceTagger
from lossnet.data import Examples, Facts, FeatureTable, Lexicon, Sentences
from lossnet.data.sentences import SentenceFacts
from lossnet.energies import (
    Rule,
    RuleError,
    allowed,
    ancestors,
    area,
    at_least,
    connected,
    exactly,
    excludes,
    implies,
    inside,
    references,
    rule,
    smooth,
    sums_to,
    unique_core_roles,
)
from lossnet.spaces import Batch, Mask, MultiLabel, Roles, Tags
from lossnet.under_rules import UnderRules

LABELS = 7
SETS = torch.tensor(list(itertools.product((0.0, 1.0), repeat=LABELS)), dtype=torch.float64)


def rows(count, facts=None):
    return Examples(FeatureTable(np.zeros((count, 1))), facts=None if facts is None else Facts(facts))


def chances(count, seed=0):
    return torch.rand(count, LABELS, generator=torch.Generator().manual_seed(seed)) * 0.98 + 0.01


@rule(weight=1.5)
def few(x, y, facts):
    return (y.sum(-1) - 2).clamp(min=0)


CASES = {
    "listed, hard": [exactly(3), excludes(0, 1)],
    "listed, with facts": [exactly(2), sums_to()],
    "listed, soft": [few, implies(0, 1, weight=0.7), excludes(2, 3, weight=2.0)],
    "taxonomy": [ancestors({1: 0, 2: 0, 3: 1, 5: 4})],
}


def brute_force(rules, p, threshold, batch):
    """The best of all sets, where there is none: the first."""
    worth = p.double().logit() - math.log(threshold / (1 - threshold))
    every = SETS.expand(len(p), -1, -1)
    energy = sum(one.at(batch.x, batch.facts)(every) for one in rules) - (every * worth.unsqueeze(1)).sum(-1)
    return SETS[energy.argmin(1)], energy.min(1).values


@pytest.mark.parametrize("most", [4096, 0], ids=["listed", "searched"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_best_of_all_sets(name, most):
    rules, p, threshold = CASES[name], chances(60), 0.3
    data = rows(60, torch.randint(1, 11, (60,), generator=torch.Generator().manual_seed(1)))
    start = (p >= threshold).float()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = UnderRules(rules, MultiLabel(LABELS), most=most)(data, p, start, threshold)
    batch = data.batch(torch.arange(60))
    wanted, _ = brute_force(rules, p, threshold, batch)
    kept = sum(one.at(batch.x, batch.facts)(start.unsqueeze(1)) for one in rules).squeeze(1) == 0
    assert torch.equal(found[kept], start[kept]), "what no rule penalises stays"
    assert (~kept).sum() > 20, "rules have something to say"
    same = (found == wanted).all(1)[~kept].double().mean()
    assert same == 1 if most or name == "taxonomy" else same > 0.9


@pytest.mark.parametrize("most", [4096, 0], ids=["listed", "searched"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_best_of_the_sets_that_agree_with_what_is_known(name, most):
    rules, p, threshold = CASES[name], chances(60), 0.3
    data = rows(60, torch.randint(1, 11, (60,), generator=torch.Generator().manual_seed(1)))
    told, _ = brute_force(rules, chances(60, 2), threshold, data.batch(torch.arange(60)))  # so that some can
    hidden = torch.rand(60, LABELS, generator=torch.Generator().manual_seed(3)) > 0.3
    known = torch.where(hidden, math.nan, told)
    start = torch.where(hidden, (p >= threshold).float(), told.float())
    under = UnderRules(rules, MultiLabel(LABELS), most=most)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = under(data, p, start, threshold, known)
    assert torch.equal(found[~hidden], told[~hidden].float()), "what is known is kept"
    batch, every = data.batch(torch.arange(60)), SETS.expand(60, -1, -1)
    worth = p.double().logit() - math.log(threshold / (1 - threshold))
    energy = sum(one.at(batch.x, batch.facts)(every) for one in rules) - (every * worth.unsqueeze(1)).sum(-1)
    fits = (known.isnan().unsqueeze(1) | (every == known.unsqueeze(1))).all(-1)
    wanted = SETS[energy.masked_fill(~fits, math.inf).argmin(1)]
    changed = sum(one.at(batch.x, batch.facts)(start.unsqueeze(1)) for one in rules).squeeze(1) > 0
    assert changed.sum() > 15
    same = (found == wanted).all(1)[changed].double().mean()
    assert same == 1 if most or name == "taxonomy" else same > 0.85


def test_what_is_known_comes_before_rules():
    """Three labels that two must be, and a label whose parent is ruled out."""
    p = chances(2)
    known = torch.full((2, LABELS), math.nan)
    known[1, :3] = 1
    start = torch.where(known.isnan(), (p > 0.5).float(), known)
    for rules in ([exactly(2)], [exactly(2), excludes(5, 6)]):
        with pytest.warns(UserWarning, match="on row 1; .*do rules, facts or what is known disagree?"):
            found = UnderRules(rules, MultiLabel(LABELS))(rows(2), p, start, known=known)
        assert found[0].sum() == 2
        assert found[1].nonzero().squeeze(1).tolist() == [0, 1, 2]
    known = torch.full((1, LABELS), math.nan)
    known[0, 0], known[0, 1] = 0, 1
    with pytest.warns(UserWarning, match="on row 0"):
        found = UnderRules([ancestors({1: 0, 3: 1})], MultiLabel(LABELS))(
            rows(1), p[:1], torch.where(known.isnan(), 1.0, known), known=known
        )
    assert found[0, :2].tolist() == [0, 1]


def test_the_threshold_is_where_a_label_is_as_likely_as_not():
    p = torch.tensor([[0.25, 0.35, 0.2, 0.1, 0.1, 0.1, 0.1]])
    loose = [excludes(1, 6), at_least(1)]
    for threshold, wanted in ((0.15, [1, 1, 1, 0, 0, 0, 0]), (0.3, [0, 1, 0, 0, 0, 0, 0])):
        start = torch.ones(1, LABELS)
        found = UnderRules(loose, MultiLabel(LABELS))(rows(1), p, start, threshold)
        assert found[0].int().tolist() == wanted
    each = torch.tensor([0.9] * 2 + [0.15] * 5)
    found = UnderRules(loose, MultiLabel(LABELS))(rows(1), p, torch.ones(1, LABELS), each)
    assert found[0].int().tolist() == [0, 0, 1, 0, 0, 0, 0]


def test_facts_that_contradict_are_said_and_the_nearest_is_given():
    p, data = chances(8), rows(8, [3, 3, 99, 3, math.nan, 3, 3, -5])
    under = UnderRules([exactly(2), sums_to()], MultiLabel(LABELS))
    with pytest.warns(UserWarning, match="no output that was tried keeps the hard rules on rows 2, 7; the"):
        found = under(data, p, (p > 0.5).float())
    assert (found.sum(1) == 2).all()
    assert found[2].nonzero().squeeze(1).tolist() == [5, 6]
    assert found[7].nonzero().squeeze(1).tolist() == [0, 1]


def test_many_labels_are_searched():
    """Forty labels: too many to list."""
    torch.manual_seed(0)
    p = torch.rand(5, 40)
    found = UnderRules([exactly(6), excludes(0, 1)], MultiLabel(40))(rows(5), p, (p > 0.5).float())
    assert (found.sum(1) == 6).all()
    assert (
        torch.equal(found.sum(0) > 0, (p.topk(6).indices.flatten().bincount(minlength=40) > 0))
        or (found[:, 0] * found[:, 1] == 0).all()
    )
    for row, one in zip(p, found, strict=True):
        best = row.topk(7).indices
        assert set(one.nonzero().squeeze(1).tolist()) <= set(best.tolist())


# ---------------------------------------------------------------- tags and masks


def test_tags_are_searched_and_spans_stay_whole():
    space = Tags(3, ("O", "B-A", "I-A"))
    p = torch.tensor([[[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.0, 0, 0]]])
    start = space.decode(p)

    class Padded(Examples):
        def batch(self, indices):
            return Batch(torch.zeros(1, 4), mask=torch.ones(1, 4))

    once = Rule(lambda x, y, facts: (y[..., 1].sum(-1) - 1).clamp(min=0), math.inf, "once")
    found = UnderRules([once], space)(Padded(FeatureTable(np.zeros((1, 1)))), p, start)
    assert found.argmax(-1)[0, :4].tolist() == [1, 2, 0, 0]
    assert found[0, 4].sum() == 0, "padding stays empty"
    none = Rule(lambda x, y, facts: y[..., 1].sum(-1), math.inf, "none")
    found = UnderRules([none], space)(Padded(FeatureTable(np.zeros((1, 1)))), p, start)
    assert found.argmax(-1)[0, :4].tolist() == [0, 0, 0, 0], "an I without its B is no way out"


def test_known_tags_and_pixels_are_kept():
    space = Tags(3)
    p = torch.tensor([[[0.1, 0.8, 0.1], [0.1, 0.7, 0.2], [0.1, 0.6, 0.3]]])
    known = torch.full((1, 3, 3), math.nan)
    known[0, 1, 2] = 0  # not the third tag, whatever else
    known[0, 2] = torch.tensor([0.0, 1.0, 0.0])
    once = Rule(lambda x, y, facts: (y[..., 1].sum(-1) - 1).clamp(min=0), math.inf, "once")

    class Whole(Examples):
        def batch(self, indices):
            return Batch(torch.zeros(1, 3), mask=torch.ones(1, 3))

    found = UnderRules([once], space)(Whole(FeatureTable(np.zeros((1, 1)))), p, space.decode(p), known=known)
    assert found.argmax(-1)[0].tolist()[1:] == [0, 1]
    assert found[0, 0, 1] == 0
    known = torch.full((1, 12, 12), math.nan)
    known[0, 10, 10], known[0, 0, 0] = 1, 0
    start = torch.where(known.isnan(), (NOISY > 0.5).float(), known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = UnderRules([connected()], Mask())(rows(1), NOISY, start, known=known)
    assert found[0, 10, 10] == 1
    assert found[0, 0, 0] == 0


BLOB = torch.zeros(1, 12, 12)
BLOB[0, 2:8, 2:8] = 1.0
NOISY = (0.75 * BLOB + 0.1).clone()
NOISY[0, 10, 10] = 0.6
NOISY[0, 4, 4] = 0.4
MASK_RULES = {
    "connected": ([connected()], lambda m: m[10, 10] == 0 and m[3, 3] == 1),
    "inside": ([inside()], lambda m: m[:, 6:].sum() == 0 and m[2:8, 2:6].sum() == 23),
    "area": ([area(most=20 / 144)], lambda m: m.sum() == 20),
    "smooth": ([smooth(0.6)], lambda m: torch.equal(m, BLOB[0])),
}


@pytest.mark.parametrize("name", MASK_RULES)
def test_masks_are_searched(name):
    rules, fine = MASK_RULES[name]
    data = rows(1, [[0, 0, 12, 6]])
    p = NOISY.clone()
    if name == "area":
        p = p + 1e-3 * torch.arange(144.0).reshape(1, 12, 12) / 144
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = UnderRules(rules, Mask())(data, p, (p > 0.5).float())
    assert fine(found[0]), found[0]


def test_holes_are_filled_where_the_background_must_hang_together():
    whole = rule(each=True)(lambda x, y, facts: float(y[4, 4] == 0))
    p = NOISY.clone()
    found = UnderRules([Rule(whole.penalties, 5.0, each=True)], Mask())(rows(1), p, (p > 0.5).float())
    assert found[0, 4, 4] == 1


# ---------------------------------------------------------------- models and estimators


def fitted(**options):
    random = np.random.default_rng(0)
    y = np.zeros((200, 4), dtype=int)
    for row in y:
        row[random.choice(4, 2, replace=False)] = 1
    x = (y + 0.6 * random.normal(size=y.shape)).astype("float32")
    settings = {"task_hidden": 16, "epochs": 15, "learning_rate": 0.01, "random_state": 0}
    return MultiLabelClassifier(method="cross-entropy", **settings, **options).fit(x[:100], y[:100]), x, y


def test_rules_at_prediction_make_it_better_and_cost_nothing_without():
    classifier, x, y = fitted()
    plain = (classifier.predict(x[100:]) == y[100:]).all(1).mean()
    rules, sums = [exactly(2), sums_to([1, 2, 4, 8])], y[100:] @ [1, 2, 4, 8]
    assert (classifier.predict(x[100:], rules=rules, facts=sums) == y[100:]).all()
    two = classifier.predict(x[100:], rules=rules[:1])
    assert (two.sum(1) == 2).all()
    assert plain < (two == y[100:]).all(1).mean() < 1
    model = classifier.model_
    assert np.array_equal(model.predict(x[100:], rules=rules, facts=sums), y[100:])
    assert model.named(x[100:101], rules=rules, facts=sums[:1]) == [
        [str(label) for label in np.flatnonzero(y[100])]
    ]
    assert np.array_equal(model.predict(x[100:]), classifier.predict(x[100:]))


def test_expected_f1_and_allowed_sets():
    classifier, x, y = fitted(goal="f1", decode="expected-f1")
    may = np.ones_like(y)
    may[:, 0] = 0
    found = classifier.predict(x, rules=[allowed()], facts=may)
    assert found[:, 0].sum() == 0
    same = classifier.predict(x)[:, 0] == 0
    assert np.array_equal(found[same], classifier.predict(x)[same])


def test_classes_stay_classes():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    names = np.array(["a", "b", "c"])[x.argmax(1)]
    classifier = MultiLabelClassifier(method="cross-entropy", epochs=3, random_state=0).fit(x, names)
    never_a = Rule(lambda x, y, facts: y[..., 0], math.inf)
    found = classifier.predict(x, rules=[never_a])
    assert set(found) == {"b", "c"}
    plain = classifier.predict(x)
    assert np.array_equal(found[plain != "a"], plain[plain != "a"])


def test_taggers_and_segmenters():
    sentences = [["Ann", "saw", "Bo"], ["Bo", "left"], ["it", "saw", "Ann"]] * 4
    tags = [["N", "V", "N"], ["N", "V"], ["P", "V", "N"]] * 4
    tagger = SequenceTagger(method="cross-entropy", epochs=2, random_state=0, batch_size=4).fit(
        sentences, tags
    )
    one_verb = Rule(lambda x, y, facts: (y[..., 2].sum(-1) - 1).abs(), math.inf, "one verb")
    found = tagger.predict(sentences[:3], rules=[one_verb])
    assert [row.count("V") for row in found] == [1, 1, 1]
    assert [len(row) for row in found] == [3, 2, 3]
    images = np.random.default_rng(0).random((8, 8, 8))
    segmenter = Segmenter(method="cross-entropy", epochs=1, random_state=0).fit(images, images > 0.5)
    boxes = np.array([[0, 0, 4, 8]] * 8)
    assert segmenter.predict(images, rules=[inside()], facts=boxes)[:, 4:].sum() == 0


def test_what_is_wrong_is_said():
    classifier, x, _ = fitted()
    with pytest.raises(ValueError, match="facts are read by rules"):
        classifier.predict(x, facts=x[:, 0])
    with pytest.raises(TypeError, match="is no rule"):
        classifier.predict(x, rules=[len])
    with pytest.raises(lossnet.data.DataError, match="there are 200 inputs but 3 facts"):
        classifier.predict(x, rules=[sums_to()], facts=[1, 2, 3])
    fails = rule(lambda x, y, facts: y.sum(-1) * torch.where(facts == 150, math.nan, 1.0).unsqueeze(1))
    with pytest.raises(RuleError, match="gives NaN on row 150"):
        classifier.predict(x, rules=[fails], facts=np.arange(200))


# ---------------------------------------------------------------- taxonomies


def test_a_taxonomy_sums_over_all_sets_that_keep_it():
    taxonomy = ancestors({1: 0, 2: 0, 3: 1, 5: 4})
    logits = torch.randn(3, LABELS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    every = SETS.expand(3, -1, -1)
    energies = taxonomy(logits, every) - (every * logits.unsqueeze(1)).sum(-1)
    weights = (-energies).softmax(1)
    torch.testing.assert_close(taxonomy.expectation(logits), (weights.unsqueeze(2) * every).sum(1))
    chance = (-energies).logsumexp(1) - torch.nn.functional.softplus(logits).sum(1)
    torch.testing.assert_close(taxonomy.log_chance(logits), chance)
    assert torch.equal(taxonomy.best(logits), SETS[energies.argmin(1)])
    assert not ancestors({2: (0, 1)}).exact
    assert not ancestors({1: 0}, weight=3.0).exact
    with pytest.raises(ValueError, match="rule ancestors has 1 above itself"):
        ancestors({1: 2, 2: 1})


def test_roles_are_changed_a_span_at_a_time():
    """Of two spans that cannot both be A0, the less likely one becomes what it is next likely to be."""
    space = Roles(7, ("O", "B-A0", "I-A0", "B-A1", "I-A1", "B-R-A1", "I-R-A1"))
    facts = SentenceFacts((("a", "b", "c", "d"), ("e", "f")), space.names)
    relaxed = torch.full((2, 4, 7), 0.01)
    for place, tag in enumerate((1, 2, 0, 1)):
        relaxed[0, place, tag] = 0.8
    relaxed[0, 0, 3], relaxed[0, 1, 4], relaxed[0, 3, 3] = 0.1, 0.1, 0.3
    relaxed[1, 0, 5], relaxed[1, 0, 0], relaxed[1, 1, 0] = 0.6, 0.5, 0.9
    relaxed[1, 2:] = 0
    source = Sentences(facts.texts).encoded(Lexicon.fit(Sentences(facts.texts)))
    data = Examples(source, facts=facts)
    rules = (unique_core_roles(weight=math.inf), references(weight=math.inf))
    found = UnderRules(rules, space)(data, relaxed, space.decode(relaxed))
    assert found.argmax(-1).tolist() == [[1, 2, 0, 3], [0, 0, 0, 0]]
    assert (found.sum(-1) == torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])).all()
