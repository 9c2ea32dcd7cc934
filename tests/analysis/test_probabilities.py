import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.calibration import calibration_curve

from lossnet.analysis import precision_recall, precision_recall_curve, reliability, risk_coverage


@pytest.fixture
def data():
    """Probabilities of 5 labels, rounded so that some are equal, and truth that follows them loosely.

    The fourth label is never true, and the fifth is never likely.
    """
    random = np.random.default_rng(0)
    probabilities = random.random((60, 5)).round(2)
    probabilities[:, 4] *= 0.1
    truth = (random.random((60, 5)) < probabilities**2).astype(float)
    truth[:, 3], truth[:3, 4] = 0, 1
    return torch.from_numpy(probabilities), torch.from_numpy(truth)


# ---------------------------------------------------------------- reliability


@pytest.mark.parametrize("bins", [1, 4, 10, 33])
def test_reliability_is_scikit_learns(data, bins):
    probabilities, truth = data
    found = reliability(probabilities, truth, bins)
    frequency, predicted = calibration_curve(truth.ravel(), probabilities.ravel(), n_bins=bins)
    full = found.counts > 0
    np.testing.assert_allclose(found.frequency[full], frequency, rtol=1e-12)
    np.testing.assert_allclose(found.predicted[full], predicted, rtol=1e-12)
    assert found.counts.sum() == truth.numel()


def test_the_calibration_error_is_what_its_definition_says(data):
    probabilities, truth = (one.ravel().numpy() for one in data)
    expected = 0.0
    for low in range(10):
        inside = (probabilities > low / 10) & (probabilities <= (low + 1) / 10)
        inside |= (probabilities == 0) & (low == 0)
        if inside.any():
            expected += inside.mean() * abs(probabilities[inside].mean() - truth[inside].mean())
    assert reliability(*data).error == pytest.approx(expected, rel=1e-12)


def test_right_probabilities_have_no_error_and_empty_bins_no_weight():
    probabilities = torch.tensor([0.25] * 4 + [1.0])
    found = reliability(probabilities, torch.tensor([1.0, 0, 0, 0, 1]))
    assert found.error == 0
    assert found.counts.tolist() == [0, 0, 4, 0, 0, 0, 0, 0, 0, 1]
    assert found.frequency.isnan().sum() == 8


# ---------------------------------------------------------------- precision and recall


def test_the_micro_curve_is_on_scikit_learns(data):
    probabilities, truth = data
    found = precision_recall_curve(probabilities, truth, "micro", points=10**6)
    precision, recall, _ = metrics.precision_recall_curve(truth.ravel(), probabilities.ravel())
    oracle = {(round(p, 12), round(r, 12)) for p, r in zip(precision, recall, strict=True)}
    points = {(round(float(p), 12), round(float(r), 12)) for p, r in zip(*found, strict=True)}
    assert points <= oracle
    assert {r for _, r in points} == {r for _, r in oracle} - {0.0}, "every recall that can be had"
    assert bool((found.recall.diff() > 0).all())


@pytest.mark.parametrize("points", [1, 2, 7])
def test_fewer_points_are_some_of_all(data, points):
    every, some = (precision_recall_curve(*data, "macro", count) for count in (10**6, points))
    assert len(some.recall) == points
    assert set(zip(*map(torch.Tensor.tolist, some), strict=True)) <= set(
        zip(*map(torch.Tensor.tolist, every), strict=True)
    )


def test_both_averages_at_one_threshold_are_scikit_learns(data):
    probabilities, truth = data
    cut = float(probabilities[truth > 0].unique()[20])
    predicted = (probabilities >= cut).double()
    shown = truth.sum(0) > 0
    for average in ("micro", "macro"):
        found = precision_recall(predicted, truth, average)
        options = {"average": average, "zero_division": np.nan}
        # scikit-learn leaves a label out only if its own denominator is 0
        precision = metrics.precision_score(truth, predicted, **options)
        recall = metrics.recall_score(truth[:, shown], predicted[:, shown], **options)
        assert [float(found.precision), float(found.recall)] == pytest.approx([precision, recall], rel=1e-12)
        curve = precision_recall_curve(probabilities, truth, average, points=10**6)
        on_curve = torch.isclose(curve.recall, found.recall) & torch.isclose(curve.precision, found.precision)
        assert bool(on_curve.any()), "a threshold's point lies on the curve"


def test_without_a_true_label_there_is_no_curve():
    found = precision_recall_curve(torch.rand(4, 2), torch.zeros(4, 2), "micro")
    assert len(found.precision) == len(found.recall) == 0


# ---------------------------------------------------------------- risk and coverage


def test_risk_is_the_share_of_wrong_answers_among_the_surest():
    random = np.random.default_rng(0)
    confidence = random.random(80)
    right = (random.random(80) < confidence).astype(float)
    curve = risk_coverage(torch.from_numpy(confidence), torch.from_numpy(right))
    for answered in range(1, 81):
        surest = np.argsort(-confidence)[:answered]
        assert curve.risk[answered - 1] == pytest.approx(1 - right[surest].mean())
        assert curve.coverage[answered - 1] == answered / 80
    assert curve.area == pytest.approx(float(curve.risk.mean()))
    oracle = risk_coverage(torch.from_numpy(right), torch.from_numpy(right))
    assert curve.best_area == pytest.approx(oracle.best_area)
    best = [max(0, n - right.sum()) / n for n in range(1, 81)]
    assert curve.best_area == pytest.approx(np.mean(best))
    assert curve.best_area < curve.area < float(curve.risk[-1])
    held = [n / 80 for n in range(1, 81) if curve.risk[n - 1] <= 0.2]
    assert curve.coverage_at(0.2) == max(held)
    assert curve.coverage_at(-1) == 0


def test_who_is_as_sure_of_all_is_wrong_as_often_at_every_coverage():
    curve = risk_coverage(torch.full((50,), 0.3), (torch.arange(50) < 10).float())
    torch.testing.assert_close(curve.risk, torch.full((50,), 0.8, dtype=torch.float64))
