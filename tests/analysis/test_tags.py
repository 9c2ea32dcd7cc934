import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lossnet.analysis import (
    Transitions,
    confusions,
    count_transitions,
    cross_hessian,
    span_kind_scores,
    tag_scores,
)
from lossnet.energies import Chain, Energy, Sum, TagLM
from lossnet.nets import BiLSTM, WordVectors
from lossnet.spans import span_scores

TAGS, WIDTH, WORDS = 3, 5, 9
LENGTHS = (4, 1, 5)


def chain():
    term = Chain(features=4, tags=TAGS)
    torch.nn.init.normal_(term.transitions)
    return term


def lm(**options):
    term = TagLM(TAGS, hidden=4, **options)
    torch.nn.init.normal_(term.start)
    return term


TERMS = {
    "forward": lambda: [lm()],
    "both": lambda: [lm(), lm(backward=True)],
    "words and chain": lambda: [chain(), lm(words=WIDTH), lm(backward=True, words=WIDTH, weight=0.3)],
}


def make(terms):
    torch.manual_seed(0)
    encoder = BiLSTM(WordVectors(torch.randn(WORDS, WIDTH)), hidden=2)
    return Sum(encoder, *terms()).double().eval()


def sentences(length=5):
    """Inputs, relaxed tags and mask; with a longer ``length``, the same sentences further padded."""
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)).double()
    x = torch.randint(1, WORDS, mask.shape, generator=generator) * mask.long()
    y = torch.randn(*mask.shape, TAGS, generator=generator, dtype=torch.float64).softmax(-1)
    more = length - max(LENGTHS)
    y = F.pad(y * mask.unsqueeze(-1), (0, 0, 0, more))
    return F.pad(x, (0, more)).unsqueeze(-1), y, F.pad(mask, (0, more))


# ---------------------------------------------------------------- the energy


def test_a_chains_curvature_is_its_transition_matrix_wherever_it_is_looked_at():
    energy = make(lambda: [chain()])
    x, y, mask = sentences()
    for where in (y, torch.rand_like(y)):
        torch.testing.assert_close(-cross_hessian(energy, x, where, mask), energy.terms[0].transitions.data)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_the_cross_hessian_agrees_with_finite_differences(terms):
    energy, step = make(terms), 1e-4
    x, y, mask = sentences()
    found = cross_hessian(energy, x, y, mask)
    for i in range(TAGS):
        for j in range(TAGS):
            total, pairs = 0.0, 0
            for row, length in enumerate(LENGTHS):
                for t in range(length - 1):
                    pairs += 1
                    for a in (1, -1):
                        for b in (1, -1):
                            moved = y.clone()
                            moved[row, t, i] += a * step
                            moved[row, t + 1, j] += b * step
                            total += a * b * energy(x, moved.unsqueeze(1))[row].item()
            assert float(found[i, j]) == pytest.approx(total / (4 * step**2) / pairs, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_padding_changes_nothing(terms):
    energy = make(terms)
    expected = cross_hessian(energy, *sentences())
    x, y, mask = sentences(length=7)
    torch.testing.assert_close(cross_hessian(energy, x, y, mask), expected)
    torch.testing.assert_close(cross_hessian(energy, x[:, :5], y, mask[:, :5]), expected)
    y[1, 1:] = 5.0
    torch.testing.assert_close(cross_hessian(energy, x, y, mask), expected)


def test_a_few_tokens_stand_for_all():
    energy = make(TERMS["both"])
    x, y, mask = sentences()
    every = cross_hessian(energy, x, y, mask)  # asks tokens 1 and 3 of the sentences with 4 and 5
    torch.testing.assert_close(cross_hessian(energy, x, y, mask, most=4), every)
    torch.testing.assert_close(cross_hessian(energy, x, y, mask, most=99), every)
    first, last = (cross_hessian(energy, x[row, None], y[row, None], mask[row, None]) for row in (0, 2))
    torch.testing.assert_close(every, (3 * first + 4 * last) / 7)
    few = cross_hessian(energy, x, y, mask, most=2)  # the first and the last, with two neighbours each
    assert not torch.allclose(few, every)
    torch.testing.assert_close(cross_hessian(make(lambda: [chain()]), x, y, mask, most=1), -chain_weights())


def chain_weights():
    return make(lambda: [chain()]).terms[0].transitions.data


def test_sentences_of_one_token_have_no_neighbours():
    x, y, mask = sentences()
    assert cross_hessian(make(TERMS["both"]), x[1:2], y[1:2], mask[1:2]).tolist() == [[0.0] * TAGS] * TAGS


def test_an_energy_that_is_linear_in_the_tags_wants_no_pair():
    class Linear(Energy):
        def encode(self, x):
            return x

        def evaluate(self, encoded, y):
            return y.sum((2, 3))

    assert cross_hessian(Linear(), *sentences()).abs().sum() == 0


def test_nothing_is_left_on_the_parameters():
    energy = make(TERMS["both"])
    x, y, mask = sentences()
    cross_hessian(energy, x, y, mask)
    assert all(parameter.grad is None for parameter in energy.parameters())
    assert not y.requires_grad


# ---------------------------------------------------------------- beside the data


@pytest.fixture
def transitions():
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(0, 30, (5, 5), generator=generator).double()
    counts[4] = counts[:, 4] = 0  # a tag that never occurs
    return Transitions(torch.randn(5, 5, generator=generator, dtype=torch.float64), counts)


def test_neighbours_are_counted_within_sentences():
    tags = [["D", "N", "V"], ["D", "N"], ["V"], ["N", "N"]]
    expected = {("D", "N"): 2, ("N", "V"): 1, ("N", "N"): 1}
    found = count_transitions(tags, ("D", "N", "V"))
    for i, first in enumerate("DNV"):
        for j, second in enumerate("DNV"):
            assert found[i, j] == expected.get((first, second), 0)


def test_association_agrees_with_loops(transitions):
    counts = transitions.counts.numpy()
    for i in range(5):
        for j in range(5):
            chance = sum(counts[i]) * sum(counts[:, j]) / counts.sum()
            expected = math.log((counts[i, j] + 0.5) / (chance + 0.5))
            assert float(transitions.association[i, j]) == pytest.approx(expected)
    assert transitions.association[4].abs().sum() == 0


def test_what_a_tag_wants_alone_is_not_learned_about_pairs(transitions):
    first, second = torch.randn(2, 5, dtype=torch.float64).unbind()
    moved = Transitions(transitions.curvature + first.unsqueeze(1) + second, transitions.counts)
    torch.testing.assert_close(moved.learned, transitions.learned)
    for axis in (0, 1):
        torch.testing.assert_close(transitions.learned.sum(axis), torch.zeros(5, dtype=torch.float64))


def test_along_the_simplex_what_is_learned_is_all_there_is(transitions):
    first, second = torch.randn(2, 5, dtype=torch.float64).unbind()
    first, second = first - first.mean(), second - second.mean()  # probabilities still sum to 1
    whole, learned = (first @ matrix @ second for matrix in (transitions.curvature, transitions.learned))
    assert float(whole) == pytest.approx(float(learned))


def test_correlation_is_over_pairs_of_tags_that_occur(transitions):
    ours, data = (m[:4, :4].flatten().numpy() for m in (transitions.learned, transitions.association))
    assert transitions.correlation == pytest.approx(np.corrcoef(ours, data)[0, 1])
    agreeing = Transitions(transitions.association, transitions.counts)
    assert agreeing.correlation > 0.9
    assert math.isnan(Transitions(0 * transitions.curvature, transitions.counts).correlation)
    assert math.isnan(Transitions(torch.zeros(5, 5), torch.zeros(5, 5)).correlation)


def test_strongest_pairs(transitions):
    pairs = [(i, j) for i in range(4) for j in range(4)]
    pairs.sort(key=lambda pair: float(transitions.learned[pair]))
    assert [pair[:2] for pair in transitions.strongest(3, wanted=False)] == pairs[:3]
    assert [pair[:2] for pair in transitions.strongest(2)] == pairs[::-1][:2]
    assert len(transitions.strongest(100)) + len(transitions.strongest(100, wanted=False)) == 16
    for pair in transitions.strongest(100):
        assert pair.learned > 0
        assert pair.together == transitions.counts[pair.first, pair.second]


# ---------------------------------------------------------------- tags and spans


def tagged(numbers):
    """One-hot tags of padded sentences; −1 is padding."""
    numbers = torch.as_tensor(numbers)
    return F.one_hot(numbers.clamp(min=0), TAGS).double() * (numbers >= 0).unsqueeze(-1)


def random_tags():
    generator = torch.Generator().manual_seed(4)
    truth, predicted = torch.randint(0, TAGS, (2, 6, 5), generator=generator).unbind()
    truth[2:, 3:] = -1
    return predicted, truth


def test_scores_and_confusions_agree_with_counts():
    predicted, truth = random_tags()
    tokens = [
        (mine, true)
        for mine, true in zip(predicted.flatten().tolist(), truth.flatten().tolist(), strict=True)
        if true >= 0
    ]
    pairs = Counter(tokens)
    found = tag_scores(tagged(predicted), tagged(truth))
    for tag in range(TAGS):
        hits = pairs[tag, tag]
        chosen, true = sum(mine == tag for mine, _ in tokens), sum(real == tag for _, real in tokens)
        assert float(found.precision[tag]) == pytest.approx(hits / chosen)
        assert float(found.recall[tag]) == pytest.approx(hits / true)
        assert float(found.f1[tag]) == pytest.approx(2 * hits / (chosen + true))
    confused = confusions(tagged(predicted), tagged(truth), 100)
    wrong = {(true, mine): count for (mine, true), count in pairs.items() if mine != true}
    assert {(one.true, one.predicted): one.tokens for one in confused} == wrong
    assert [one.tokens for one in confused] == sorted(wrong.values(), reverse=True)
    for one in confused:
        assert one.share == pytest.approx(one.tokens / sum(real == one.true for _, real in tokens))
    assert confusions(tagged(predicted), tagged(truth), 2) == confused[:2]


def test_who_makes_no_mistake_confuses_nothing():
    _, truth = random_tags()
    assert confusions(tagged(truth), tagged(truth), 5) == []
    predicted = tagged(truth)
    predicted[4, 4, 0] = 1  # on padding
    assert confusions(predicted, tagged(truth), 5) == []
    assert tag_scores(predicted, tagged(truth)).f1.tolist() == [1] * TAGS


def test_spans_of_one_kind_are_counted_as_spans_of_all():
    names = ("O", "B-A", "I-A", "E-A", "S-A")
    random = np.random.default_rng(0)
    mine, true = ([[names[k] for k in random.integers(0, 5, 9)] for _ in range(20)] for _ in range(2))
    expected = span_scores(mine, true)
    found = span_kind_scores(mine, true, kinds=("A", "B"))
    assert [float(part[0]) for part in found] == pytest.approx(list(expected.values()))
    assert all(part[1].isnan() for part in found)


def test_a_span_of_the_wrong_kind_is_missed_in_one_and_false_in_the_other():
    found = span_kind_scores([["B-A", "E-A", "S-B"]], [["B-B", "E-B", "S-B"]], kinds=("A", "B"))
    assert found.precision.tolist() == [0, 1]
    assert found.recall.tolist()[1] == 0.5
    assert found.recall[0].isnan()
