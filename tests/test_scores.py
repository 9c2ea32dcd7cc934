import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as oracle
from torch.nn import functional

from lossnet.scores import (
    F1,
    Accuracy,
    Hamming,
    IoU,
    LabelMeter,
    MaskMeter,
    Meter,
    Metric,
    TagMeter,
    best_constant,
    headlines,
    log_loss,
    main_metric,
    meter,
    metric,
    metrics,
)
from lossnet.spaces import Mask, MultiLabel, Space, Tags

fast = settings(max_examples=60, deadline=None, database=None)
shapes = st.tuples(st.integers(1, 5), st.integers(1, 6))
bits = st.sampled_from([0.0, 1.0])
units = st.floats(0, 1, allow_subnormal=False)
every_score = pytest.mark.parametrize("score", [F1(), IoU(), Hamming(), Accuracy()])


@st.composite
def pairs(draw, predicted=bits):
    shape = draw(shapes)
    return (
        draw(arrays(np.float64, shape, elements=predicted)),
        draw(arrays(np.float64, shape, elements=bits)),
    )


def scored(score, predicted, truth):
    return score(torch.from_numpy(predicted).unsqueeze(1), torch.from_numpy(truth)).squeeze(1)


# ---------------------------------------------------------------- against scikit-learn and formulas


@fast
@given(pairs())
def test_f1_of_label_sets_is_scikit_learns(pair):
    predicted, truth = pair
    expected = [
        oracle.f1_score(t[None], p[None], average="samples", zero_division=0)
        if len(t) > 1
        else float(t[0] * p[0])
        for p, t in zip(predicted, truth, strict=True)
    ]
    np.testing.assert_allclose(scored(F1(), predicted, truth), expected)


@fast
@given(pairs())
def test_iou_of_label_sets_is_scikit_learns_jaccard(pair):
    predicted, truth = pair
    expected = [oracle.jaccard_score(t, p, zero_division=0) for p, t in zip(predicted, truth, strict=True)]
    np.testing.assert_allclose(scored(IoU(), predicted, truth), expected)


@fast
@given(pairs(units))
def test_soft_f1_is_the_min_max_formula_of_deep_value_networks(pair):
    predicted, truth = pair
    low, high = np.minimum(predicted, truth).sum(1), np.maximum(predicted, truth).sum(1)
    expected = np.divide(2 * low, low + high, out=np.zeros_like(low), where=low + high > 0)
    np.testing.assert_allclose(scored(F1(), predicted, truth), expected, atol=1e-12)


@fast
@given(pairs(units))
def test_soft_iou_is_min_over_max(pair):
    predicted, truth = pair
    low, high = np.minimum(predicted, truth).sum(1), np.maximum(predicted, truth).sum(1)
    expected = np.divide(low, high, out=np.zeros_like(low), where=high > 0)
    np.testing.assert_allclose(scored(IoU(), predicted, truth), expected, atol=1e-12)


@fast
@given(pairs())
def test_hamming_is_the_share_of_equal_units(pair):
    predicted, truth = pair
    np.testing.assert_allclose(scored(Hamming(), predicted, truth), (predicted == truth).mean(1))


def test_accuracy_counts_real_tokens_only():
    rng = np.random.default_rng(0)
    gold, guess, length = rng.integers(0, 3, (4, 6)), rng.integers(0, 3, (4, 6)), [6, 4, 1, 3]
    eye, real = np.eye(3), np.arange(6) < np.array(length)[:, None]
    result = scored(Accuracy(), eye[guess] * real[..., None], eye[gold] * real[..., None])
    expected = [oracle.accuracy_score(g[:n], p[:n]) for g, p, n in zip(gold, guess, length, strict=True)]
    np.testing.assert_allclose(result, expected)


# ---------------------------------------------------------------- properties of every score


@every_score
@fast
@given(pairs(units))
def test_scores_stay_between_zero_and_one(score, pair):
    predicted, truth = pair
    if isinstance(score, Accuracy):
        # Accuracy's units are tokens: complementary columns make one-hot tags of binary units
        predicted = np.stack([predicted, 1 - predicted], -1)
        truth = np.stack([truth, 1 - truth], -1)
    result = scored(score, predicted, truth)
    assert (result >= 0).all()
    assert (result <= 1 + 1e-12).all()
    value = score.cost(torch.from_numpy(predicted).unsqueeze(1), torch.from_numpy(truth))
    torch.testing.assert_close(value.squeeze(1), 1 - result)


@every_score
def test_the_truth_scores_one_and_costs_nothing(score):
    truth = torch.eye(4)[torch.tensor([[0, 1], [2, 2]])]
    assert score(truth.unsqueeze(1), truth).tolist() == [[1.0], [1.0]]
    assert score.cost(truth.unsqueeze(1), truth).tolist() == [[0.0], [0.0]]


@every_score
def test_each_candidate_is_scored_alone(score):
    torch.manual_seed(0)
    candidates, truth = torch.rand(3, 5, 2, 4), torch.eye(4)[torch.randint(4, (3, 2))]
    together = score(candidates, truth)
    assert together.shape == (3, 5)
    for k in range(5):
        torch.testing.assert_close(together[:, k : k + 1], score(candidates[:, [k]], truth))


@every_score
def test_gradients_are_correct(score):
    torch.manual_seed(0)
    candidates = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    truth = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: score(y, truth), candidates)


@pytest.mark.parametrize("score", [F1(), IoU(), Accuracy()])
def test_undefined_is_zero_with_finite_gradient(score):
    candidates, truth = torch.zeros(1, 2, 3, requires_grad=True), torch.zeros(1, 3)
    result = score(candidates, truth)
    result.sum().backward()
    assert result.tolist() == [[0.0, 0.0]]
    assert candidates.grad.isfinite().all()


@pytest.mark.parametrize("score", [F1(), IoU(), Accuracy()], ids=lambda score: type(score).__name__)
def test_padded_units_change_no_score(score):
    torch.manual_seed(0)
    candidates, truth = torch.rand(2, 3, 4), torch.eye(4)[torch.tensor([0, 2])]
    longer = functional.pad(candidates, (0, 3)), functional.pad(truth, (0, 3))
    torch.testing.assert_close(score(*longer), score(candidates, truth))


# ---------------------------------------------------------------- metrics of a data set


@fast
@given(
    st.integers(2, 6).flatmap(
        lambda labels: st.tuples(*[arrays(np.float64, (7, labels), elements=bits) for _ in range(2)])
    )
)
def test_label_metrics_are_scikit_learns_and_f1_leaves_rows_without_labels_out(pair):
    predicted, truth = pair
    keep = truth.any(1)
    if not keep.any():
        return
    expected = {
        f"{average}_f1": oracle.f1_score(truth, predicted, average=average, zero_division=0)
        for average in ("micro", "macro")
    }
    expected["f1"] = oracle.f1_score(truth[keep], predicted[keep], average="samples", zero_division=0)
    expected["exact_match"] = oracle.accuracy_score(truth, predicted)
    expected["hamming_loss"] = oracle.hamming_loss(truth, predicted)
    assert LabelMeter().measure(torch.from_numpy(predicted), torch.from_numpy(truth)) == pytest.approx(
        expected
    )


def test_label_metrics_without_any_label_are_an_error():
    with pytest.raises(ValueError, match="no instance has a true label"):
        LabelMeter().measure(torch.ones(2, 3), torch.zeros(2, 3))


def test_label_set_metrics_threshold_at_one_half():
    relaxed, truth = torch.tensor([[0.9, 0.5, 0.49]]), torch.tensor([[1.0, 0.0, 1.0]])
    expected = LabelMeter().measure(torch.tensor([[1.0, 1.0, 0.0]]), truth)
    assert metrics(MultiLabel(3), relaxed, truth) == expected
    assert expected["f1"] == 0.5


def test_tag_accuracy_is_over_all_tokens_of_the_data():
    truth = torch.eye(2)[torch.tensor([[0, 1, 1], [1, 0, 0]])]
    truth[1, 1:] = 0
    relaxed = torch.full((2, 3, 2), 0.5) + torch.tensor([0.2, -0.2])
    relaxed[1, 1:] = 0
    assert metrics(Tags(2), relaxed, truth) == {"accuracy": 0.25}


def test_mask_iou_is_the_mean_over_images():
    rng = np.random.default_rng(0)
    relaxed, truth = rng.random((5, 4, 4)), (rng.random((5, 4, 4)) > 0.6).astype(float)
    expected = np.mean(
        [oracle.jaccard_score(t.ravel(), p.ravel() >= 0.5) for p, t in zip(relaxed, truth, strict=True)]
    )
    result = metrics(Mask(), torch.from_numpy(relaxed), torch.from_numpy(truth))
    right = ((relaxed >= 0.5) == truth).mean()
    assert result == {"iou": pytest.approx(expected), "pixel_accuracy": pytest.approx(right)}


@pytest.mark.parametrize(("space", "event"), [(MultiLabel(2), (2,)), (Tags(2), (3, 2)), (Mask(), (2, 2))])
def test_main_metric_is_among_the_metrics_and_one_for_the_truth(space, event):
    truth = torch.zeros(2, *event)
    truth[..., 0] = 1
    assert metrics(space, truth, truth)[main_metric(space)] == 1


class Unknown(Space):
    event_dims = 1
    relax = sampler = log_terms = project = decode = zeros = None


def test_metrics_of_an_unknown_space_are_a_type_error():
    with pytest.raises(TypeError, match="Unknown"):
        metrics(Unknown(), torch.zeros(1, 1), torch.zeros(1, 1))


def test_main_metric_of_an_unknown_space_is_a_type_error():
    with pytest.raises(TypeError, match="Unknown"):
        main_metric(Unknown())


def test_a_space_derived_from_a_known_one_inherits_its_metric():
    class Topics(MultiLabel):
        pass

    assert metrics(Topics(1), torch.ones(1, 1), torch.ones(1, 1))["f1"] == 1
    assert main_metric(Topics(1)) == "f1"


def test_f1_of_several_rounds_is_that_of_each():
    generator = torch.Generator().manual_seed(0)
    rounds, truth = (
        torch.rand(3, 4, 5, 6, generator=generator),
        torch.randint(2, (4, 6), generator=generator),
    )
    together = F1()(rounds, truth.float())
    torch.testing.assert_close(together, torch.stack([F1()(own, truth.float()) for own in rounds]))
    assert together.shape == (3, 4, 5)


# ---------------------------------------------------------------- meters


@pytest.mark.parametrize("size", [1, 7, 100])
def test_label_metrics_of_parts_are_those_of_the_whole(size):
    random = torch.Generator().manual_seed(0)
    predicted, truth = (torch.rand(40, 5, generator=random).round() for _ in range(2))
    truth[3] = 0
    counted = LabelMeter()
    for rows in torch.arange(40).split(size):
        counted.add(predicted[rows], truth[rows])
    assert counted.compute() == pytest.approx(LabelMeter().measure(predicted, truth), rel=1e-6)
    with pytest.raises(ValueError, match="no instance has a true label"):
        LabelMeter().compute()


def test_several_predictors_are_measured_at_once():
    random = torch.Generator().manual_seed(0)
    predicted, truth = (torch.rand(20, 3, 5, generator=random).round(), torch.rand(20, 5).round())
    counted = LabelMeter()
    for rows in torch.arange(20).split(6):
        counted.add(predicted[rows], truth[rows])
    alone = [LabelMeter().measure(predicted[:, place], truth) for place in range(3)]
    assert counted.compute_each() == [pytest.approx(values) for values in alone]


@pytest.mark.parametrize("names", [(), ("O", "B-X", "I-X"), ("O", "B-X", "E-X")])
def test_tag_metrics_of_parts_are_those_of_the_whole(names):
    random = torch.Generator().manual_seed(0)
    truth = torch.eye(3)[torch.randint(3, (20, 6), generator=random)]
    truth[:, 4:][::2] = 0
    relaxed = torch.rand(20, 6, 3, generator=random) * (truth.sum(-1, keepdim=True) > 0)
    space, counted = Tags(3, names), TagMeter(names)
    for rows in torch.arange(20).split(7):
        counted.add(space.decode(relaxed[rows]), truth[rows])
    assert counted.compute() == pytest.approx(metrics(space, relaxed, truth), rel=1e-6)
    with pytest.raises(ValueError, match="no token has a tag"):
        TagMeter().compute()


def test_mask_metrics_of_parts_are_those_of_the_whole():
    random = torch.Generator().manual_seed(0)
    predicted, truth = (torch.rand(9, 4, 3, generator=random).round() for _ in range(2))
    counted = MaskMeter()
    for rows in torch.arange(9).split(4):
        counted.add(predicted[rows], truth[rows])
    assert counted.compute() == pytest.approx(MaskMeter().measure(predicted, truth))
    with pytest.raises(ValueError, match="IoU is undefined"):
        MaskMeter().compute()


@pytest.mark.parametrize("made", [LabelMeter(), TagMeter(), TagMeter(("O", "S-X")), MaskMeter()])
def test_a_meter_measures_what_it_says(made):
    """Its first metric is the one to choose models by, and each has a title."""
    truth = torch.eye(2)[torch.tensor([[0, 1], [1, 1]])] if isinstance(made, TagMeter) else torch.ones(2, 2)
    if isinstance(made, MaskMeter):
        truth = torch.ones(2, 2, 2)
    values = made.measure(truth, truth)
    assert set(values) == {one.name for one in made.metrics}
    assert made.metrics[0].headline
    assert all(metric(name) in made.metrics for name in values)
    best = {one.name: float(bool(one.higher_is_better)) for one in made.metrics}
    assert values == best


def test_a_space_of_ones_own_may_have_a_meter():
    class Ranked(Unknown):
        def decode(self, relaxed):
            return relaxed

    class First(Meter):
        metrics = (Metric("first_right", "first one right"),)

        def __init__(self):
            self.right = []

        def add(self, predicted, truth):
            self.right += (predicted.argmax(1) == truth.argmax(1)).tolist()

        def compute(self):
            return {"first_right": sum(self.right) / len(self.right)}

    meter.register(Ranked, lambda space: First())
    assert metrics(Ranked(), torch.eye(2), torch.eye(2)) == {"first_right": 1}
    assert main_metric(Ranked()) == "first_right"
    assert metric("first_right").title == "first one right"
    assert "first_right" not in headlines()


@pytest.mark.parametrize("name", ["f1", "exact_match", "hamming_loss"])
def test_no_constant_of_the_most_frequent_labels_is_better(name):
    generator = torch.Generator().manual_seed(0)
    truth = (torch.rand(40, 4, generator=generator) < torch.tensor([0.7, 0.5, 0.3, 0.2])).float()
    truth[:, 0] = 1  # none is empty
    order = truth.mean(0).argsort(descending=True)
    found = []
    for count in range(1, 5):
        constant = torch.zeros(4)
        constant[order[:count]] = 1
        found.append(metrics(MultiLabel(4), constant.expand(40, 4), truth)[name])
    best = min(found) if name == "hamming_loss" else max(found)
    assert best_constant(MultiLabel(4), truth.split(7), name) == pytest.approx(best)


def test_log_loss_agrees_with_pytorchs():
    generator = torch.Generator().manual_seed(0)
    p, y = torch.rand(5, 3, generator=generator), (torch.rand(5, 3, generator=generator) < 0.5).float()
    expected = torch.nn.functional.binary_cross_entropy(p, y).item()
    assert log_loss(MultiLabel(3), p, y) == pytest.approx(expected, rel=1e-5)
    tags = torch.nn.functional.one_hot(torch.tensor([[0, 2], [1, 0]]), 3).float()
    tags[1, 1] = 0  # padding
    chances = torch.softmax(torch.rand(2, 2, 3, generator=generator), -1) * tags.sum(-1, keepdim=True)
    logs = [chances[0, 0, 0].log(), chances[0, 1, 2].log(), chances[1, 0, 1].log()]
    assert log_loss(Tags(3), chances, tags) == pytest.approx(-float(sum(logs)) / 3, rel=1e-5)
