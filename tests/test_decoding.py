import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import f1_score

from lossnet.decoding import (
    Calibration,
    ExpectedF1,
    Threshold,
    _most_true,
    calibrate,
    doubt,
    tune_label_thresholds,
    tune_threshold,
)
from lossnet.outputs import Labels
from lossnet.scores import LabelMeter, log_loss
from lossnet.spaces import MultiLabel, Tags

fast = settings(max_examples=60, deadline=None, database=None)
chances = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1, allow_subnormal=False))
rows = st.integers(1, 6).flatmap(lambda n: arrays(np.float64, n, elements=chances))


def subsets(labels):
    return np.array([*product([0.0, 1.0], repeat=labels)])


def expected_f1(sets, probabilities):
    outcomes = subsets(len(probabilities))
    weights = np.prod(np.where(outcomes == 1, probabilities, 1 - probabilities), axis=1)
    total = sets.sum(1)[:, None] + outcomes.sum(1)
    return (2 * sets @ outcomes.T / np.maximum(total, 1)) @ weights


def poisson_binomial(probabilities):
    distribution = np.ones(1)
    for p in probabilities:
        distribution = np.convolve(distribution, [1 - p, p])
    return distribution


# ---------------------------------------------------------------- the best set in expectation


@fast
@given(rows)
def test_no_label_set_has_a_higher_expected_f1(probabilities):
    chosen = ExpectedF1()(torch.from_numpy(probabilities)[None]).numpy()
    best = expected_f1(subsets(len(probabilities)), probabilities).max()
    assert expected_f1(chosen, probabilities)[0] == pytest.approx(best, abs=1e-12)


@fast
@given(rows)
def test_expected_f1_of_each_size_is_the_brute_force_expectation(probabilities):
    ordered = np.sort(probabilities)[::-1].copy()
    result = ExpectedF1.expected(torch.from_numpy(ordered)[None])[0]
    largest = np.tril(np.ones((len(ordered), len(ordered))))
    np.testing.assert_allclose(result, expected_f1(largest, ordered), atol=1e-12)


@pytest.mark.parametrize("mean", [0.5, 3.0, 40.0, 150.0])
def test_many_labels_match_the_double_sum_over_true_counts(mean):
    rng = np.random.default_rng(0)
    raw = rng.beta(0.3, 2.0, 300)
    ordered = np.sort(np.clip(raw * mean / raw.sum(), 0, 1))[::-1].copy()
    result = ExpectedF1.expected(torch.from_numpy(ordered)[None])[0].numpy()
    for k in [1, 2, 7, 50, 299, 300]:
        inside, outside = poisson_binomial(ordered[:k]), poisson_binomial(ordered[k:])
        i, j = np.arange(len(inside))[:, None], np.arange(len(outside))
        assert result[k - 1] == pytest.approx(inside @ (2 * i / (k + i + j)) @ outside, abs=1e-12)


def test_among_many_labels_no_top_k_does_better_on_simulated_outcomes():
    rng = np.random.default_rng(1)
    probabilities = rng.beta(0.3, 3.0, 300)
    outcomes = (rng.random((4000, 300)) < probabilities).astype(float)
    order = np.argsort(-probabilities)
    correct, k = outcomes[:, order].cumsum(1), np.arange(1, 301)
    top = (2 * correct / (k + outcomes.sum(1, keepdims=True))).mean(0)
    chosen = ExpectedF1()(torch.from_numpy(probabilities)[None])[0].numpy()
    ours = (2 * outcomes @ chosen / (chosen.sum() + outcomes.sum(1))).mean()
    assert ours >= top.max() - 0.005
    assert ours > top[(probabilities >= 0.5).sum() - 1] + 0.02


def test_chunks_change_nothing():
    probabilities = torch.rand(50, 12, generator=torch.Generator().manual_seed(0)) ** 3
    whole = ExpectedF1(chunk=50)(probabilities)
    for chunk in [1, 7, 64]:
        assert torch.equal(ExpectedF1(chunk)(probabilities), whole)
    assert whole.dtype == probabilities.dtype


def test_decoding_follows_the_order_of_labels():
    probabilities = torch.rand(20, 8, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ExpectedF1()(probabilities[:, order]), ExpectedF1()(probabilities)[:, order])


def test_at_least_one_label_is_chosen_and_certain_labels_are_exactly_chosen():
    assert ExpectedF1()(torch.zeros(1, 4)).sum() == 1
    certain = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    assert torch.equal(ExpectedF1()(certain), certain)


@pytest.mark.parametrize("decoder", [Threshold(), ExpectedF1()])
def test_no_instances_give_no_label_sets(decoder):
    assert decoder(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("mean", [1e-9, 0.5, 5.0, 30.0])
def test_most_true_is_exceeded_with_less_than_the_promised_probability(mean):
    raw = np.random.default_rng(0).beta(0.5, 2.0, 400)
    probabilities = raw * mean / raw.sum()
    most = _most_true(torch.from_numpy(probabilities)[None])
    assert most < 400
    assert poisson_binomial(probabilities)[most + 1 :].sum() < math.exp(-50)


def test_most_true_covers_the_instance_with_the_most_labels_and_never_exceeds_their_number():
    few, many = torch.full((1, 400), 1e-4), torch.full((1, 400), 0.2)
    assert _most_true(torch.cat([few, many])) == _most_true(many) > _most_true(few)
    assert _most_true(torch.ones(1, 10)) == 10


# ---------------------------------------------------------------- thresholds


def test_threshold_includes_its_value():
    assert Threshold(0.3)(torch.tensor([[0.3, 0.2999]])).tolist() == [[1.0, 0.0]]
    assert Threshold()(torch.tensor([[0.5, 0.4999]])).tolist() == [[1.0, 0.0]]


def best_thresholds(probabilities, truth, grid, metric="f1"):
    thresholds = np.arange(1, grid + 1) / (grid + 1)
    values = [
        LabelMeter().measure(torch.from_numpy((probabilities >= t) * 1.0), torch.from_numpy(truth))[metric]
        for t in thresholds
    ]
    if metric == "hamming_loss":
        values = [1 - value for value in values]
    return thresholds[np.array(values) >= max(values) - 1e-9]


@st.composite
def validation(draw):
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 5)))
    steps = st.integers(0, 20).map(lambda n: n / 20)
    truth = draw(arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0])))
    truth[draw(st.integers(0, shape[0] - 1)), 0] = 1
    return draw(arrays(np.float64, shape, elements=st.one_of(chances, steps))), truth


@fast
@given(validation(), st.sampled_from([1, 9, 19, 199]))
def test_tuned_threshold_is_the_best_of_the_grid_nearest_to_one_half(data, grid):
    probabilities, truth = data
    tuned = tune_threshold(torch.from_numpy(probabilities), torch.from_numpy(truth), grid)
    best = best_thresholds(probabilities, truth, grid)
    assert np.abs(best - tuned).min() < 1e-9
    assert abs(tuned - 0.5) == pytest.approx(np.abs(best - 0.5).min(), abs=1e-9)


@fast
@given(validation(), st.sampled_from(["micro-f1", "exact-match", "hamming"]))
def test_the_threshold_is_tuned_for_the_goal(data, goal):
    probabilities, truth = (values[data[1].any(1)] for values in data)
    tuned = tune_threshold(torch.from_numpy(probabilities), torch.from_numpy(truth), 19, goal)
    best = best_thresholds(probabilities, truth, 19, Labels.goals[goal])
    assert np.abs(best - tuned).min() < 1e-9


@fast
@given(validation())
def test_each_label_has_the_threshold_of_its_best_f1(data):
    probabilities, truth = data
    found = tune_label_thresholds(torch.from_numpy(probabilities), torch.from_numpy(truth), 0.3, grid=19)
    for label, threshold in enumerate(found):
        scores = [
            f1_score(truth[:, label], probabilities[:, label] >= t, zero_division=0)
            for t in np.arange(1, 20) / 20
        ]
        reached = f1_score(truth[:, label], probabilities[:, label] >= threshold, zero_division=0)
        assert reached >= max(scores) - 1e-9
        assert truth[:, label].any() or threshold == 0.3


def test_ties_go_to_one_half():
    assert tune_threshold(torch.tensor([[0.99, 0.01]]), torch.tensor([[1.0, 0.0]])) == 0.5
    assert tune_threshold(torch.tensor([[0.99, 0.7]]), torch.tensor([[1.0, 0.0]])) == 0.705


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", [2, 6, 199])
def test_decoding_with_the_tuned_threshold_gives_the_f1_it_was_tuned_for(grid, dtype):
    for step in range(1, grid + 1):
        at = step / (grid + 1)
        probabilities = torch.tensor([[at, at - 1e-3]], dtype=dtype)
        truth = torch.tensor([[1.0, 0.0]], dtype=dtype)
        tuned = tune_threshold(probabilities, truth, grid)
        assert LabelMeter().measure(Threshold(tuned)(probabilities), truth)["f1"] == 1


def test_unlabelled_rows_are_ignored():
    rng = torch.Generator().manual_seed(0)
    probabilities = torch.rand(30, 4, generator=rng)
    truth = (torch.rand(30, 4, generator=rng) < probabilities**2).float()
    labelled = truth.sum(1) > 0
    assert 0 < labelled.sum() < 30
    expected = tune_threshold(probabilities[labelled], truth[labelled])
    assert tune_threshold(probabilities, truth) == expected


def test_more_rows_than_one_block_are_all_counted():
    probabilities = torch.tensor([[0.9, 0.3]]).repeat(10_000, 1)
    truth = torch.tensor([[1.0, 1.0]]).repeat(10_000, 1)
    probabilities[:4200] = torch.tensor([0.9, 0.6])
    truth[:4200, 1] = 0
    assert tune_threshold(probabilities, truth) == 0.3
    truth[:, 1] = 0
    assert tune_threshold(probabilities, truth) == 0.605


def test_no_labels_are_an_error():
    with pytest.raises(ValueError, match="no instance has a true label"):
        tune_threshold(torch.rand(3, 2), torch.zeros(3, 2))


# ---------------------------------------------------------------- calibration


def sampled(logits, seed=0):
    """Truth drawn from the probabilities of logits."""
    return torch.bernoulli(logits.sigmoid(), generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_calibration_finds_the_temperature_of_distorted_probabilities(temperature):
    logits = 2 * torch.randn(4000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    distorted = (logits * temperature).sigmoid()
    found = calibrate(MultiLabel(6), distorted, sampled(logits))
    assert found.scales == pytest.approx((1 / temperature,) * len(found.scales), rel=0.1)
    difference = found(MultiLabel(6), distorted) - logits.sigmoid()
    assert difference.abs().mean() < 0.01


def test_calibration_minimises_the_log_loss():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(60, 1, generator=generator, dtype=torch.float64)
    probabilities, truth = (3 * logits).sigmoid(), sampled(logits)
    space, (scale, *others) = MultiLabel(1), calibrate(MultiLabel(1), probabilities, truth).scales
    assert not others
    losses = [
        log_loss(space, Calibration((scale * by,))(space, probabilities), truth) for by in (0.97, 1, 1.03)
    ]
    assert min(losses) == losses[1]


def test_labels_get_scales_of_their_own_where_data_allow():
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    distorted = (logits * torch.tensor([0.8, 1.25])).sigmoid()
    own = calibrate(MultiLabel(2), distorted, sampled(logits)).scales
    assert own == pytest.approx((1.25, 0.8), rel=0.12)
    few = calibrate(MultiLabel(2), distorted[:12], sampled(logits)[:12]).scales
    assert len(few) == 1 or few[0] == pytest.approx(few[1], rel=0.3)


def test_calibration_keeps_what_is_likelier_and_padding():
    space, relaxed = Tags(3), torch.tensor([[[0.6, 0.3, 0.1], [0.0, 0.0, 0.0]]])
    found = Calibration((0.5,))(space, relaxed)
    root = torch.tensor([0.6, 0.3, 0.1]).sqrt()
    torch.testing.assert_close(found, torch.stack([root / root.sum(), torch.zeros(3)])[None])
    half = Calibration((3.0,))(MultiLabel(3), torch.tensor([[0.5, 0.0, 1.0]]))
    assert half.tolist() == [[0.5, 0.0, 1.0]]


def test_probabilities_no_better_than_frequencies_are_doubted():
    truth = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    assert doubt(MultiLabel(2), truth * 0.8 + 0.1, truth) is None
    assert "no better than the frequencies" in doubt(MultiLabel(2), 0.9 - truth * 0.8, truth)
