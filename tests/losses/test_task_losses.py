import numpy as np
import pytest
import torch
from torch.nn import functional

from lossnet.losses import Asymmetric, TaskLoss, cross_entropy
from lossnet.scores import F1, Hamming
from lossnet.spaces import Mask, MultiLabel, Prediction, Tags

TRUTH = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
LOGITS = torch.tensor([[0.4, -1.1, 0.3], [2.0, 0.1, -0.7]], dtype=torch.float64)


def prediction(logits=LOGITS):
    return Prediction(MultiLabel(3), logits)


def energy(y):
    return y.square().sum(-1) - 3 * y[..., 0] * y[..., 2]


def parts():
    relaxed = LOGITS.sigmoid().unsqueeze(1)
    ce = functional.binary_cross_entropy_with_logits(LOGITS, TRUTH, reduction="none").sum(1)
    return energy(relaxed).squeeze(1), ce, 1 - F1()(relaxed, TRUTH).squeeze(1)


@pytest.mark.parametrize(
    "weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.3, 1.7, 2.5), (-1, 2, 0.5), (0, 0, 0)]
)
def test_task_loss_is_the_weighted_sum_averaged_over_the_batch(weights):
    expected = sum(weight * part.mean() for weight, part in zip(weights, parts(), strict=True))
    result = TaskLoss(*weights)(prediction(), TRUTH, energy)
    assert result.shape == ()
    torch.testing.assert_close(result, torch.as_tensor(expected, dtype=torch.float64))


def test_defaults_are_energy_plus_cross_entropy():
    torch.testing.assert_close(TaskLoss()(prediction(), TRUTH, energy), (parts()[0] + parts()[1]).mean())


def test_measure_and_fixed_loss_can_be_replaced():
    hamming = (LOGITS.sigmoid() - TRUTH).abs().mean(1).mean()
    loss = TaskLoss(energy_weight=0, ce_weight=0, score_weight=1, score=Hamming())
    torch.testing.assert_close(loss(prediction(), TRUTH), hamming)
    loss = TaskLoss(energy_weight=0, fixed=Asymmetric())
    torch.testing.assert_close(loss(prediction(), TRUTH), Asymmetric()(prediction(), TRUTH).mean())


def test_energy_of_weight_zero_is_never_called():
    def forbidden(y):
        raise AssertionError

    torch.testing.assert_close(TaskLoss(energy_weight=0)(prediction(), TRUTH, forbidden), parts()[1].mean())


def test_without_an_energy_the_other_terms_remain():
    torch.testing.assert_close(TaskLoss(energy_weight=7)(prediction(), TRUTH), parts()[1].mean())


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.3, 1.7, 2.5)])
def test_gradient_reaches_the_logits_and_is_correct(weights):
    logits = LOGITS.clone().requires_grad_()

    def value(at):
        return TaskLoss(*weights)(prediction(at), TRUTH, energy)

    assert torch.autograd.grad(value(logits), logits)[0].ne(0).all()
    assert torch.autograd.gradcheck(value, logits)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_task_loss_of_extreme_logits_is_finite(size):
    logits = (size * torch.tensor([[-1.0, 1.0, 1.0], [1.0, -1.0, -1.0]])).requires_grad_()
    loss = TaskLoss(1, 1, 1)(prediction(logits), TRUTH.float(), energy)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_padded_tokens_do_not_enter_the_task_loss():
    torch.manual_seed(0)
    logits, truth = torch.randn(1, 3, 2), torch.eye(2)[torch.tensor([[0, 1, 1]])]
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    short, long = (
        Prediction(Tags(2), logits),
        Prediction(Tags(2), functional.pad(logits, (0, 0, 0, 1)), mask),
    )
    loss = TaskLoss(1, 1, 1)
    torch.testing.assert_close(
        loss(short, truth, lambda y: y.flatten(2).square().sum(2)),
        loss(long, functional.pad(truth, (0, 0, 0, 1)), lambda y: y.flatten(2).square().sum(2)),
    )


def test_cross_entropy_is_that_of_the_prediction():
    torch.testing.assert_close(cross_entropy(prediction(), TRUTH), parts()[1])


# ---------------------------------------------------------------- the asymmetric loss


@pytest.mark.parametrize(
    ("positive", "negative", "shift"), [(1, 4, 0.05), (0, 0, 0), (2, 1, 0.2), (0.5, 2.5, 0.1)]
)
def test_asymmetric_loss_is_the_published_formula(positive, negative, shift):
    p, y = 1 / (1 + np.exp(-LOGITS.numpy())), TRUTH.numpy()
    q = np.maximum(p - shift, 0)
    losses = -y * (1 - p) ** positive * np.log(p) - (1 - y) * q**negative * np.log(1 - q)
    result = Asymmetric(positive, negative, shift)(prediction(), TRUTH)
    np.testing.assert_allclose(result, losses.sum(1))


def test_without_focus_and_shift_it_is_cross_entropy():
    result = Asymmetric(0, 0, 0)(prediction(), TRUTH)
    torch.testing.assert_close(result, cross_entropy(prediction(), TRUTH))


def test_without_focus_and_shift_it_is_cross_entropy_of_sure_predictions_too():
    sure, truth = prediction(torch.tensor([[30.0, -30.0, 30.0]])), torch.tensor([[0.0, 1.0, 1.0]])
    torch.testing.assert_close(Asymmetric(0, 0, 0)(sure, truth), cross_entropy(sure, truth))


def test_negatives_below_the_shift_cost_nothing():
    logits = torch.tensor([[-3.0, -4.0, -9.0]], requires_grad=True)
    result = Asymmetric(shift=0.05)(prediction(logits), torch.zeros(1, 3))
    result.sum().backward()
    assert result.item() == 0
    assert logits.grad.eq(0).all()


@pytest.mark.parametrize("settings", [(1, 4, 0.05), (0, 0, 0), (1, 4, 0.0)])
def test_asymmetric_gradient_is_correct(settings):
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda at: Asymmetric(*settings)(prediction(at), TRUTH), logits)


@pytest.mark.parametrize("size", [20.0, 1e4])
@pytest.mark.parametrize("settings", [(1, 4, 0.05), (0, 0, 0.05), (0, 0, 0), (1, 4, 0.0), (0.5, 0.5, 0.05)])
@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_asymmetric_loss_of_extreme_logits_is_finite(size, settings, label, sign):
    logits = torch.tensor([[sign * size] * 3], requires_grad=True)
    loss = Asymmetric(*settings)(prediction(logits), torch.full((1, 3), label)).sum()
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_padded_pixels_cost_nothing():
    torch.manual_seed(0)
    logits, truth = torch.randn(1, 2, 3), torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    mask = torch.tensor([[[1.0, 1.0, 0.0]] * 2])
    padded = Asymmetric()(Prediction(Mask(), logits, mask), truth)
    torch.testing.assert_close(padded, Asymmetric()(Prediction(Mask(), logits[..., :2]), truth[..., :2]))


def test_each_term_may_have_weights_of_its_own():
    weights = {"energy": torch.tensor([0.5, 2.0]), "score": torch.tensor([0.0, 3.0])}
    of_energy, of_ce, of_score = parts()
    expected = (of_energy * weights["energy"] + of_ce + of_score * weights["score"]).mean()
    torch.testing.assert_close(TaskLoss(1, 1, 1)(prediction(), TRUTH, energy, weights), expected)


def test_the_same_weights_for_all_terms_are_one_weight():
    weight = torch.tensor([0.5, 2.0])
    loss = TaskLoss(2, 3, 4)
    same = loss(prediction(), TRUTH, energy, dict.fromkeys(("energy", "ce", "score"), weight))
    torch.testing.assert_close(same, loss(prediction(), TRUTH, energy, weight))


def test_without_a_truth_the_energy_remains():
    torch.testing.assert_close(TaskLoss(2, 3, 4)(prediction(), None, energy), 2 * parts()[0].mean())


# ---------------------------------------------------------------- labels that are unknown

KNOWN = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("fixed", [cross_entropy, Asymmetric()], ids=["ce", "asymmetric"])
def test_unknown_labels_teach_nothing(fixed):
    """The loss is that of the known labels by themselves, and the others have no gradient."""
    logits = LOGITS.clone().requires_grad_()
    loss = TaskLoss(energy_weight=0, ce_weight=1.3, score_weight=0.7, fixed=fixed)
    partly = loss(Prediction(MultiLabel(3), logits, known=KNOWN), TRUTH * KNOWN)
    alone = [
        loss(Prediction(MultiLabel(2), LOGITS[[row]][:, KNOWN[row] > 0]), TRUTH[[row]][:, KNOWN[row] > 0])
        for row in range(2)
    ]
    torch.testing.assert_close(partly, torch.stack(alone).mean())
    (gradient,) = torch.autograd.grad(partly, logits)
    assert torch.equal(gradient == 0, KNOWN == 0)


def test_the_energy_sees_whole_outputs():
    loss = TaskLoss(energy_weight=2.0, ce_weight=0)
    partly = Prediction(MultiLabel(3), LOGITS, known=KNOWN)
    torch.testing.assert_close(loss(partly, TRUTH, energy), 2 * parts()[0].mean())


def test_a_truth_is_completed_by_draws_from_the_prediction():
    torch.manual_seed(0)
    wide = Prediction(MultiLabel(3), LOGITS[:1].expand(20000, -1), known=KNOWN[:1].expand(20000, -1))
    truth = wide.completed((TRUTH * KNOWN)[:1].expand(20000, -1))
    assert torch.equal(truth[:, KNOWN[0] > 0], TRUTH[:1, KNOWN[0] > 0].expand(20000, -1))
    assert truth[:, 1].mean().item() == pytest.approx(LOGITS[0, 1].sigmoid().item(), abs=0.01)
    assert prediction().completed(TRUTH) is TRUTH
