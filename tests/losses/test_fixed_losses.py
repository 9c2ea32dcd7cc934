from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.losses import Dice, DirectRanking, Lovasz, TaskLoss
from lossnet.scores import F1, IoU
from lossnet.settings import Settings
from lossnet.spaces import Mask, MultiLabel, Prediction
from lossnet.task import Task

both = pytest.mark.parametrize("loss", [Dice(), Lovasz()], ids=["dice", "lovasz"])


def images(size=(2, 3), batch=4, seed=0):
    torch.manual_seed(seed)
    logits = 2 * torch.randn(batch, *size, dtype=torch.float64)
    return logits, (torch.rand(batch, *size) < 0.5).double()


def every_mask(size):
    masks = torch.tensor([*product([0.0, 1.0], repeat=size[0] * size[1])], dtype=torch.float64)
    return masks.reshape(-1, *size)


def jaccard_loss(predicted, truth):
    """``1 − IoU`` of two sets of pixels, 0 where both are empty."""
    return len(predicted ^ truth) / max(1, len(predicted | truth))


def of_mistakes(wrong, truth):
    """``1 − IoU`` of the prediction that is wrong at just these pixels."""
    return jaccard_loss(truth ^ wrong, truth)


# ---------------------------------------------------------------- both


@both
def test_one_number_for_each_image(loss):
    logits, truth = images()
    result = loss(Prediction(Mask(), logits), truth)
    assert result.shape == (4,)
    for row in range(4):
        alone = loss(Prediction(Mask(), logits[[row]]), truth[[row]])
        torch.testing.assert_close(result[[row]], alone)


@both
def test_the_order_of_pixels_does_not_matter(loss):
    logits, truth = images((3, 4))
    turned = loss(Prediction(Mask(), logits.flip(1, 2)), truth.flip(1, 2))
    torch.testing.assert_close(loss(Prediction(Mask(), logits), truth), turned)
    labels = loss(Prediction(MultiLabel(12), logits.flatten(1)), truth.flatten(1))
    torch.testing.assert_close(loss(Prediction(Mask(), logits), truth), labels)


@both
@pytest.mark.parametrize("junk", [7.0, torch.inf])
def test_padded_pixels_change_nothing(loss, junk):
    logits, truth = images((3, 4))
    mask = torch.ones(4, 3, 4)
    mask[..., 2:] = 0
    padded = torch.where(mask.bool(), logits, junk).requires_grad_()
    result = loss(Prediction(Mask(), padded, mask), truth)
    expected = loss(Prediction(Mask(), logits[..., :2]), truth[..., :2])
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert padded.grad.isfinite().all()
    assert padded.grad[..., 2:].eq(0).all()


@both
def test_gradient_is_correct(loss):
    logits, truth = images()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda at: loss(Prediction(Mask(), at), truth), logits)


@both
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_extreme_logits_give_finite_losses(loss, size):
    logits, truth = images()
    logits = (size * logits.sign()).float().requires_grad_()
    result = loss(Prediction(Mask(), logits), truth.float())
    result.sum().backward()
    assert result.isfinite().all()
    assert logits.grad.isfinite().all()


@both
def test_a_perfect_prediction_costs_nothing_even_of_an_empty_truth(loss):
    for truth in (torch.zeros(1, 2, 3), torch.ones(1, 2, 3), images()[1][:1]):
        prediction = Prediction(Mask(), 200 * (2 * truth - 1).float())
        torch.testing.assert_close(loss(prediction, truth.float()), torch.zeros(1))


@both
def test_it_can_take_the_place_of_cross_entropy(loss):
    logits, truth = images()
    prediction = Prediction(Mask(), logits)
    torch.testing.assert_close(
        TaskLoss(energy_weight=0, fixed=loss)(prediction, truth), loss(prediction, truth).mean()
    )


# ---------------------------------------------------------------- Dice


@pytest.mark.parametrize("smoothing", [0.0, 1.0, 3.5])
def test_dice_is_its_formula(smoothing):
    logits, truth = images()
    p, y = 1 / (1 + np.exp(-logits.numpy())), truth.numpy()
    expected = 1 - (2 * (p * y).sum((1, 2)) + smoothing) / (p.sum((1, 2)) + y.sum((1, 2)) + smoothing)
    np.testing.assert_allclose(Dice(smoothing)(Prediction(Mask(), logits), truth), expected)


def test_dice_without_smoothing_is_the_cost_of_f1():
    logits, truth = images()
    prediction = Prediction(Mask(), logits)
    expected = F1().cost(prediction.relaxed.unsqueeze(1), truth).squeeze(1)
    torch.testing.assert_close(Dice(0)(prediction, truth), expected)


def test_dice_of_an_empty_truth_pushes_every_pixel_down():
    logits = torch.zeros(1, 2, 3, requires_grad=True)
    Dice()(Prediction(Mask(), logits), torch.zeros(1, 2, 3)).sum().backward()
    assert (logits.grad > 0).all()


# ---------------------------------------------------------------- Lovász


def hinge_errors(logits, truth):
    return (1 - (2 * truth - 1) * logits).clamp(min=0).flatten().tolist()


@pytest.mark.parametrize("seed", range(5))
def test_lovasz_is_the_integral_over_level_sets(seed):
    logits, truth = images(seed=seed)
    result = Lovasz()(Prediction(Mask(), logits), truth)
    for row in range(4):
        errors = hinge_errors(logits[row], truth[row])
        real = {i for i, value in enumerate(truth[row].flatten()) if value}
        # ∫₀^∞ Δ({m > t}) dt: constant between neighbouring values of m.
        levels = sorted({0.0, *errors})
        expected = sum(
            (high - low) * of_mistakes({i for i, error in enumerate(errors) if error > low}, real)
            for low, high in pairwise(levels)
        )
        assert result[row].item() == pytest.approx(expected)


def test_lovasz_is_the_largest_over_all_orders_of_pixels():
    logits, truth = images((1, 5), batch=3)
    result = Lovasz()(Prediction(Mask(), logits), truth)
    for row in range(3):
        errors = hinge_errors(logits[row], truth[row])
        real = {i for i, value in enumerate(truth[row].flatten()) if value}
        sums = [
            sum(
                errors[order[i]] * (of_mistakes({*order[: i + 1]}, real) - of_mistakes({*order[:i]}, real))
                for i in range(5)
            )
            for order in permutations(range(5))
        ]
        assert result[row].item() == pytest.approx(max(sums))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 5)])
def test_lovasz_is_twice_the_exact_loss_at_discrete_predictions(size):
    masks = every_mask(size)
    for predicted in masks:
        result = Lovasz()(Prediction(Mask(), (2 * predicted - 1).expand_as(masks)), masks)
        expected = [
            jaccard_loss({*predicted.flatten().nonzero().flatten().tolist()}, {*y.nonzero()[:, 0].tolist()})
            for y in masks.flatten(1)
        ]
        torch.testing.assert_close(result, 2 * torch.tensor(expected, dtype=torch.float64))


def test_lovasz_agrees_with_the_score_of_discrete_predictions():
    logits, truth = images((6, 7))
    truth[:, 0, 0] = 1  # the score of an empty truth is 0, not undefined
    cost = IoU().cost((logits > 0).double().unsqueeze(1), truth).squeeze(1)
    torch.testing.assert_close(Lovasz()(Prediction(Mask(), logits.sign()), truth), 2 * cost)


def test_lovasz_bounds_the_exact_loss_and_is_convex_in_the_logits():
    (a, truth), (b, _) = images((4, 4), batch=50), images((4, 4), batch=50, seed=1)

    def value(logits):
        return Lovasz()(Prediction(Mask(), logits), truth)

    assert (value(a) >= IoU().cost((a > 0).double().unsqueeze(1), truth).squeeze(1) - 1e-12).all()
    assert (value(0.3 * a + 0.7 * b) <= 0.3 * value(a) + 0.7 * value(b) + 1e-12).all()


# ---------------------------------------------------------------- direct ranking


def test_direct_ranking_against_the_formula_over_all_sets():
    """Its samples, and ``−log`` of the truth's share of the probabilities of truth and samples."""
    logits = torch.tensor([[0.3, -1.2, 0.8], [2.0, 0.1, -0.4]], dtype=torch.float64, requires_grad=True)
    truth = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    prediction = Prediction(MultiLabel(3), logits)
    torch.manual_seed(0)
    samples = prediction.sample(4)
    torch.manual_seed(0)
    found = DirectRanking(samples=4)(prediction, truth)

    def chance(row, labels):
        chances = logits[row].sigmoid()
        return torch.stack([p if y else 1 - p for p, y in zip(chances, labels, strict=True)]).prod()

    shares = [
        chance(row, truth[row]) / sum(chance(row, one) for one in [truth[row], *samples[row]])
        for row in range(2)
    ]
    expected = -torch.stack(shares).log()
    torch.testing.assert_close(found, expected)
    # Samples are held fixed: the gradient is that of the probabilities alone.
    slopes = [torch.autograd.grad(losses.sum(), logits, retain_graph=True)[0] for losses in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_direct_ranking_draws_as_many_samples_as_settings_say():
    method = build("cross-entropy", "direct-ranking", Settings(samples=7, task_hidden=4), Task.of_sizes(3, 2))
    assert method.task_loss.fixed == DirectRanking(7)
