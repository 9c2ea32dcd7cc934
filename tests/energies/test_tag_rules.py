"""Rules about tags: each word of the vocabulary against a loop over all sequences, chains, errors."""

import itertools
import math
import re

import pytest
import torch
from torch.nn.functional import one_hot, pad

from lossnet.energies import (
    ChainRule,
    TokenFacts,
    at_most_one_of,
    bio,
    changes_after,
    exactly,
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
from lossnet.energies.chain import log_partition, marginals
from lossnet.energies.tag_rules import breaks, chains
from lossnet.spaces import best_path

NAMES = ("x", "y", "z")
TEXTS = (("pp", ".", "1", "So"), ("(", "So", ","))
SEQUENCES = list(itertools.product(range(3), repeat=4))
FACTS = {"tokens": TokenFacts(TEXTS, NAMES)}


def fields(tags):
    """Runs of equal tags: name, first token, number of tokens."""
    runs, place = [], 0
    for tag, group in itertools.groupby(tags):
        count = len(list(group))
        runs.append((NAMES[tag], place, count))
        place += count
    return runs


def among(tags, name):
    return [place for place, tag in enumerate(tags) if NAMES[tag] == name]


def early(tags, first, later):
    if not among(tags, first):
        return 0
    return sum(any(place < among(tags, first)[0] for place in among(tags, name)) for name in later)


def changed(tags):
    """Places where a tag is another than the one before."""
    return [place for place in range(1, len(tags)) if tags[place] != tags[place - 1]]


#: a rule of weight 1, and its penalty for the tags of a text
CASES = {
    "suggests": (
        suggests(r"pp \.|\d", "x", "z"),
        lambda text, tags: sum(
            bool(re.fullmatch(r"pp|\d", token)) or (token == "." and text[0] == "pp")
            for token, tag in zip(text, tags, strict=True)
            if NAMES[tag] == "y"
        ),
    ),
    "forbids": (
        forbids("[A-Z][a-z]+", "y"),
        lambda text, tags: sum(token == "So" and tag == 1 for token, tag in zip(text, tags, strict=True)),
    ),
    "changes after": (
        changes_after(),
        lambda text, tags: sum(text[place - 1] not in ".,(" for place in changed(tags)),
    ),
    "never begins": (
        never_begins(),
        lambda text, tags: sum(text[place] in ".,(" for place in changed(tags)),
    ),
    "starts with": (starts_with("x", "y"), lambda text, tags: int(tags[0] == 2)),
    "once": (once(), lambda text, tags: len(fields(tags)) - len(set(tags))),
    "once of some": (
        once("y"),
        lambda text, tags: max(sum(name == "y" for name, *_ in fields(tags)) - 1, 0),
    ),
    "occurs": (occurs("x", "y"), lambda text, tags: int(set(tags) == {2})),
    "at most one of": (
        at_most_one_of("x", "y", "z"),
        lambda text, tags: len(set(tags)) - 1,
    ),
    "needs": (needs("x", "z"), lambda text, tags: int(0 in tags and 2 not in tags)),
    "in order": (in_order("y", "x", "z"), lambda text, tags: early(tags, "y", ("x", "z"))),
    "spans at least": (
        spans_at_least(2, "z"),
        lambda text, tags: int(tags.count(2) == 1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_word_against_all_sequences(case):
    rule, penalty = CASES[case]
    y = torch.zeros(2, len(SEQUENCES), 4, 3, dtype=torch.float64)
    for row, text in enumerate(TEXTS):
        for place, tags in enumerate(SEQUENCES):
            y[row, place, : len(text)] = one_hot(torch.tensor(tags[: len(text)]), 3)
    given = rule.at(None, FACTS)(y)
    wanted = [[float(penalty(text, tags[: len(text)])) for tags in SEQUENCES] for text in TEXTS]
    assert given.tolist() == wanted
    assert given.any(), "a rule that nothing breaks shows nothing"


def test_a_scheme_is_a_rule():
    tags = ("O", "B-a", "I-a")
    facts = {"tokens": TokenFacts((("1", "2", "3"),), tags)}
    for sequence in itertools.product(range(3), repeat=3):
        y = one_hot(torch.tensor(sequence), 3).double()[None, None]
        wrong = sum(
            tag == 2 and (place == 0 or sequence[place - 1] == 0) for place, tag in enumerate(sequence)
        )
        assert bio(weight=1.0).at(None, facts)(y).item() == wrong
        assert bio().at(None, facts)(y).item() == (math.inf if wrong else 0)
    with pytest.raises(
        ValueError, match="rule bio needs tags of a scheme, as B-PER and I-PER are; these are x, y, z"
    ):
        bio().at(None, FACTS)(torch.zeros(2, 1, 4, 3))


def test_patterns_match_whole_tokens_only():
    facts = {"tokens": TokenFacts((("pages", "p"),), NAMES)}
    y = one_hot(torch.tensor([1, 1]), 3).float()[None, None]
    assert suggests("p", "x").at(None, facts)(y).item() == 1


def test_the_sum_of_rules_is_that_of_each():
    torch.manual_seed(0)
    rules = [suggests("So", "x", weight=0.3), changes_after(weight=2.0), once(weight=0.7)]
    y = torch.rand(2, 5, 4, 3, dtype=torch.float64)
    y[1, :, 3] = 0
    whole = summed(rules, None, FACTS, y[:, 0])(y)
    torch.testing.assert_close(whole, sum(rule.at(None, FACTS)(y) for rule in rules))


# ---------------------------------------------------------------- exact sums over chains


@pytest.fixture
def chain():
    torch.manual_seed(1)
    rules = [suggests("So", "x", weight=1.3), changes_after(weight=2.0), never_begins(weight=0.4)]
    local = torch.randn(2, 4, 3, dtype=torch.float64)
    costs = chains(rules, FACTS, local)
    mask = pad(torch.ones(2, 3, dtype=torch.bool), (0, 1))
    mask[0, 3] = True
    return local - costs.local, -costs.pairs, mask


def enumerated(local, pairs, mask):
    """Each row's sequences and their scores, by loops."""
    for row in range(2):
        length = int(mask[row].sum())
        yield [
            (
                tags,
                sum(local[row, place, tag] for place, tag in enumerate(tags))
                + sum(pairs[row, place, tags[place], tags[place + 1]] for place in range(length - 1)),
            )
            for tags in itertools.product(range(3), repeat=length)
        ]


def test_costs_that_differ_from_pair_to_pair_are_summed_and_maximised_exactly(chain):
    paths, total, chances = best_path(*chain), log_partition(*chain), marginals(*chain)
    for row, scored in enumerate(enumerated(*chain)):
        best, _ = max(scored, key=lambda pair: pair[1])
        assert tuple(paths[row, : len(best)].tolist()) == best
        scores = torch.stack([score for _, score in scored])
        torch.testing.assert_close(total[row], scores.logsumexp(0))
        mean = sum(
            p * one_hot(torch.tensor(tags), 3) for p, (tags, _) in zip(scores.softmax(0), scored, strict=True)
        )
        torch.testing.assert_close(chances[row, : len(best)], mean)
    assert not chances[1, 3].any()


def test_chunks_begin_after_signs():
    assert breaks(FACTS, 5).tolist() == [[True, False, True, False, False], [True, True, False, False, False]]
    assert breaks(None, 5) is None
    assert breaks({"total": 3}, 5) is None


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (suggests("a", "w"), r"rule suggests\('a', w\) is about 'w', which is no tag; tags are x, y, z"),
        (in_order("x", "w"), r"rule in_order\(x, w\) is about 'w', which is no tag"),
    ],
)
def test_unknown_tags_are_named(rule, what):
    with pytest.raises(ValueError, match=what):
        rule.at(None, FACTS)(torch.zeros(2, 1, 4, 3))


@pytest.mark.parametrize("facts", [None, torch.zeros(2), {"total": torch.zeros(2)}])
@pytest.mark.parametrize("rule", [suggests("a", "x"), once()])
def test_sentences_must_be_told(rule, facts):
    with pytest.raises(ValueError, match="reads tokens, and the facts have none"):
        rule.at(None, facts)(torch.zeros(2, 1, 4, 3))


def test_a_pattern_must_be_one():
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        suggests("(", "x")


def test_chain_rules_are_rules():
    assert isinstance(suggests("a", "x"), ChainRule)
    assert not isinstance(once(), ChainRule)
    assert not isinstance(exactly(1), ChainRule)


def test_costs_that_are_looked_up_are_those_that_are_multiplied():
    rules = [changes_after(weight=0.7), suggests("So", "x", weight=0.3)]
    costs = chains(rules, FACTS, torch.zeros(2, 4, 3, dtype=torch.float64))
    y = torch.stack([one_hot(torch.tensor(SEQUENCES), 3)] * 2).double()
    y[1, :, 3] = 0  # padding of the shorter sentence
    multiplied = costs(y.requires_grad_())
    torch.testing.assert_close(costs(y.detach()), multiplied.detach())
    assert len(multiplied.unique()) > 4
    half = (y[:, :1] + y[:, 1:2]).detach() / 2
    torch.testing.assert_close(costs(half), costs(half.requires_grad_()).detach())
