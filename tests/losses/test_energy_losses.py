import dataclasses
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional

from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.losses import CD, NCE, Margin, Perceptron, Ranking, Regression, RegressionS
from lossnet.nets import MLP
from lossnet.scores import F1, Hamming, IoU
from lossnet.spaces import Mask, MultiLabel, Prediction, Tags

LOSSES = [
    Margin(),
    Margin(Hamming()),
    Perceptron(),
    Regression(),
    Regression(IoU()),
    RegressionS(samples=3),
    NCE(samples=3),
    NCE(samples=3, score=F1()),
    Ranking(samples=3),
    Ranking(samples=3, score=Hamming()),
    CD(samples=3),
]
RELAXING = [Margin(), Margin(Hamming()), Perceptron(), Regression(), RegressionS(samples=3)]
SAMPLING = [Ranking(3), Ranking(3, F1()), CD(3), NCE(3), NCE(3, F1())]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)

TRUTH = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
LOGITS = torch.tensor([[0.4, -1.1, 0.3]], dtype=torch.float64)
RELAXED = torch.tensor([[[0.2, 0.7, 0.5], [0.9, 0.1, 0.6]]], dtype=torch.float64)
DISCRETE = torch.tensor([[[1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 1, 0]]], dtype=torch.float64)
SLOPES = np.array([0.7, -0.4, 1.3])


def prediction(logits=LOGITS):
    return Prediction(MultiLabel(logits.shape[-1]), logits)


def energy(y):
    return y @ torch.from_numpy(SLOPES) + 0.8 * y[..., 0] * y[..., 1]


def energy_of(y):
    return float(y @ SLOPES + 0.8 * y[0] * y[1])


def f1_of(y, truth):
    return 2 * np.minimum(y, truth).sum() / (y.sum() + truth.sum())


def log_prob_of(y):
    p = 1 / (1 + np.exp(-LOGITS[0].numpy()))
    return float(np.log(np.where(y == 1, p, 1 - p)).sum())


def plain(tensor):
    return tensor[0].numpy()


def linear_energy(slopes):
    return lambda y: torch.einsum("bkl,l->bk", y, slopes)


# ---------------------------------------------------------------- written out for one instance


def test_margin_is_the_mean_hinge_of_cost_and_energies():
    truth = plain(TRUTH)
    hinges = [max(0, 1 - f1_of(y, truth) - energy_of(y) + energy_of(truth)) for y in plain(RELAXED)]
    assert min(hinges) > 0
    result = Margin()(energy, TRUTH, RELAXED, prediction())
    np.testing.assert_allclose(result, [np.mean(hinges)])


def test_perceptron_is_the_hinge_of_energies():
    truth = plain(TRUTH)
    hinges = [max(0, energy_of(truth) - energy_of(y)) for y in plain(RELAXED)]
    assert min(hinges) > 0
    result = Perceptron()(energy, TRUTH, RELAXED, prediction())
    np.testing.assert_allclose(result, [np.mean(hinges)])


def test_regression_is_the_binary_cross_entropy_of_score_and_value():
    truth, losses = plain(TRUTH), []
    for y in plain(RELAXED):
        value, score = 1 / (1 + np.exp(energy_of(y))), f1_of(y, truth)
        losses.append(-score * np.log(value) - (1 - score) * np.log(1 - value))
    for loss in [Regression(), RegressionS()]:
        result = loss(energy, TRUTH, RELAXED, prediction())
        np.testing.assert_allclose(result, [np.mean(losses)])
    each = Regression().of_candidates(energy, TRUTH, RELAXED)
    np.testing.assert_allclose(each, [losses])


@pytest.mark.parametrize("loss", [Regression(), RegressionS()])
def test_a_task_net_descends_the_score_that_regression_predicts(loss):
    for y in plain(RELAXED):
        found = loss.task_objective(energy)(torch.tensor(y).view(1, 1, -1))
        np.testing.assert_allclose(found, [[-1 / (1 + np.exp(energy_of(y)))]])
    assert dataclasses.replace(loss, term="energy").task_objective(energy) is energy


@pytest.mark.parametrize("loss", [NCE(), Ranking(), CD(), Margin(), Perceptron()])
def test_a_task_net_descends_the_energy_of_other_losses(loss):
    assert loss.task_objective(energy) is energy


def test_regression_agrees_with_torch_on_probabilities():
    value, target = torch.sigmoid(-energy(RELAXED)), F1()(RELAXED, TRUTH)
    expected = functional.binary_cross_entropy(value, target)
    torch.testing.assert_close(Regression()(energy, TRUTH, RELAXED, prediction())[0], expected)


def contrastive(exponent):
    truth = plain(TRUTH)
    exponents = [exponent(truth)] + [exponent(y) for y in plain(DISCRETE)]
    return [np.log(np.exp(exponents).sum()) - exponents[0]]


def test_nce_is_the_brute_force_softmax_with_the_truth_in_the_sum():
    expected = contrastive(lambda y: -energy_of(y) - log_prob_of(y))
    np.testing.assert_allclose(NCE()(energy, TRUTH, DISCRETE, prediction()), expected)


def test_ranking_is_the_softmax_of_energies():
    expected = contrastive(lambda y: -energy_of(y))
    np.testing.assert_allclose(Ranking()(energy, TRUTH, DISCRETE, prediction()), expected)


def test_cd_adds_the_cost_which_is_zero_for_the_truth():
    truth = plain(TRUTH)
    expected = contrastive(lambda y: -energy_of(y) + 1 - f1_of(y, truth))
    np.testing.assert_allclose(CD()(energy, TRUTH, DISCRETE, prediction()), expected)
    hamming = contrastive(lambda y: -energy_of(y) + np.abs(y - truth).mean())
    result = CD(score=Hamming())(energy, TRUTH, DISCRETE, prediction())
    np.testing.assert_allclose(result, hamming)


@pytest.mark.parametrize("loss", [CD(), Ranking(score=F1()), Ranking(score=IoU())])
def test_the_cost_of_an_empty_truth_against_itself_does_not_count(loss):
    """F1 and IoU are 0 there, so that their cost would be 1."""
    empty = torch.zeros(1, 2)
    everything = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
    offset = loss.offset(everything, empty, prediction(torch.zeros(1, 2)))
    assert offset.tolist() == [[0.0, 1.0]]


def test_nce_with_a_score_has_both_in_its_exponents():
    truth = plain(TRUTH)
    for score, cost in ((F1(), lambda y: 1 - f1_of(y, truth)), (Hamming(), lambda y: abs(y - truth).mean())):
        expected = contrastive(lambda y, cost=cost: -energy_of(y) - log_prob_of(y) + cost(y))
        np.testing.assert_allclose(NCE(score=score)(energy, TRUTH, DISCRETE, prediction()), expected)
    empty = torch.zeros(1, 3, dtype=torch.float64)
    everything = torch.stack([empty, torch.ones_like(empty)], 1)
    offset = NCE(score=F1()).offset(everything, empty, prediction())
    expected = [-log_prob_of(np.zeros(3)), 1 - log_prob_of(np.ones(3))]
    np.testing.assert_allclose(offset, [expected])


def test_without_a_score_nothing_is_added():
    assert Ranking().score is None
    assert NCE().score is None
    assert Ranking().offset(DISCRETE, TRUTH, prediction()) == 0.0
    torch.testing.assert_close(NCE().offset(DISCRETE, TRUTH, prediction()), -prediction().log_prob(DISCRETE))


# ---------------------------------------------------------------- relations between the losses


def test_ranking_is_nce_with_uniform_noise():
    uniform = prediction(torch.zeros(1, 3, dtype=torch.float64))
    torch.testing.assert_close(
        NCE()(energy, TRUTH, DISCRETE, uniform), Ranking()(energy, TRUTH, DISCRETE, uniform)
    )
    assert not torch.allclose(
        NCE()(energy, TRUTH, DISCRETE, prediction()),
        Ranking()(energy, TRUTH, DISCRETE, prediction()),
    )


def test_cd_is_ranking_with_a_score():
    assert isinstance(CD().score, F1)
    for score in (F1(), Hamming()):
        torch.testing.assert_close(
            CD(score=score)(energy, TRUTH, DISCRETE, prediction()),
            Ranking(score=score)(energy, TRUTH, DISCRETE, prediction()),
        )
    assert not torch.allclose(
        CD()(energy, TRUTH, DISCRETE, prediction()), Ranking()(energy, TRUTH, DISCRETE, prediction())
    )


def test_a_score_asks_more_of_the_energy_than_none():
    """Costs are not negative, so that samples weigh at least as much."""
    for loss in (Ranking, NCE):
        with_score, without = (loss(score=s)(energy, TRUTH, DISCRETE, prediction()) for s in (F1(), None))
        assert with_score > without


def test_perceptron_is_margin_with_zero_cost():
    class Free(F1):
        def cost(self, candidates, truth):
            return torch.zeros(candidates.shape[:2], dtype=candidates.dtype)

    torch.testing.assert_close(
        Margin(Free())(energy, TRUTH, RELAXED, prediction()),
        Perceptron()(energy, TRUTH, RELAXED, prediction()),
    )


@pytest.mark.parametrize("gap", [-0.2, -1e-6, 1e-6, 0.2])
def test_margin_is_zero_if_and_only_if_the_constraint_holds(gap):
    candidate = torch.tensor([[[0.0, 1.0, 0.0]]], dtype=torch.float64)
    slopes = torch.tensor([0.0, 1 - gap, 0.0], dtype=torch.float64)
    result = Margin()(linear_energy(slopes), TRUTH, candidate, prediction())
    assert result.item() == pytest.approx(max(gap, 0), abs=1e-12)
    violation = Margin().violation(linear_energy(slopes), TRUTH, candidate)
    assert violation.item() == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize("loss", [NCE(), NCE(score=F1()), Ranking(), CD(), Margin(), Perceptron()])
def test_a_constant_added_to_the_energy_changes_nothing(loss):
    expected = loss(energy, TRUTH, DISCRETE, prediction())
    torch.testing.assert_close(loss(lambda y: energy(y) + 5, TRUTH, DISCRETE, prediction()), expected)


# ---------------------------------------------------------------- consistency of noise contrast

OUTPUTS = torch.tensor([*product([0.0, 1.0], repeat=3)], dtype=torch.float64)
DATA = torch.tensor([0.05, 0.2, 0.1, 0.03, 0.3, 0.12, 0.15, 0.05], dtype=torch.float64)


def expected_gradient(loss, table, samples):
    """Gradient in a table of 8 energies, summed over every truth and every choice of samples."""
    noise = prediction().log_prob(OUTPUTS[None]).exp()[0]
    draws = torch.tensor([*product(range(8), repeat=1 + samples)])
    weight = DATA[draws[:, 0]] * noise[draws[:, 1:]].prod(1)
    table = table.clone().requires_grad_()
    place = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    losses = loss(
        lambda y: table[(y @ place).long()],
        OUTPUTS[draws[:, 0]],
        OUTPUTS[draws[:, 1:]],
        prediction(LOGITS.expand(len(draws), 3)),
    )
    (gradient,) = torch.autograd.grad((weight * losses).sum(), table)
    return gradient


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_expected_nce_is_stationary_where_the_energy_is_minus_the_data_log_probability(samples):
    optimum = 3.0 - DATA.log()
    assert expected_gradient(NCE(), optimum, samples).abs().max() < 1e-14
    assert expected_gradient(NCE(), 0 * optimum, samples).abs().max() > 0.01


def test_expected_ranking_is_stationary_at_the_ratio_of_data_and_noise():
    noise = prediction().log_prob(OUTPUTS[None])[0]
    assert expected_gradient(Ranking(), noise - DATA.log(), 2).abs().max() < 1e-14
    assert expected_gradient(Ranking(), -DATA.log(), 2).abs().max() > 0.01


def test_descending_expected_nce_recovers_the_data_distribution():
    table = torch.zeros(8, dtype=torch.float64)
    for _ in range(400):
        table -= 4.0 * expected_gradient(NCE(), table, 1)
    torch.testing.assert_close((-table).softmax(0), DATA, atol=1e-3, rtol=0)


# ---------------------------------------------------------------- gradients


@every_loss
def test_gradient_in_energy_parameters_is_correct(loss):
    torch.manual_seed(0)
    model = Sum(MLP(2, hidden=3, layers=1), Local(3, 3), LabelInteraction(3, 4)).double()
    x = torch.randn(2, 2, dtype=torch.float64)
    truth, guess = TRUTH.expand(2, 3), prediction(torch.randn(2, 3, dtype=torch.float64))
    candidates = loss.propose(guess)
    parameters = tuple(model.parameters())

    def value(*_):
        return loss(model.at(x), truth, candidates, guess)

    assert torch.autograd.grad(value().sum(), parameters)[-1].abs().sum() > 0
    assert torch.autograd.gradcheck(value, parameters)


@every_loss
def test_no_gradient_reaches_a_prediction_that_is_held_fixed(loss):
    logits, slopes = LOGITS.clone().requires_grad_(), torch.ones(3, dtype=torch.float64)
    slopes.requires_grad_()
    guess = prediction(logits).detach()
    candidates = loss.propose(guess)
    assert not candidates.requires_grad
    loss(linear_energy(slopes), TRUTH, candidates, guess).sum().backward()
    assert logits.grad is None
    assert slopes.grad is not None


def kind(loss):
    return type(loss).__name__


@pytest.mark.parametrize("loss", RELAXING, ids=kind)
def test_relaxed_candidates_carry_the_predictions_gradient(loss):
    logits = LOGITS.clone().requires_grad_()
    # Seeds make the perturbations of regression-s the same each time.

    def candidates(at):
        torch.manual_seed(5)
        return loss.propose(prediction(at))

    assert torch.autograd.gradcheck(candidates, logits)
    p = LOGITS.sigmoid()
    (slope,) = torch.autograd.grad(candidates(logits)[:, 0].sum(), logits)
    torch.testing.assert_close(slope, p * (1 - p))
    # And so does the loss: the chain rule through E and the cost.
    found = candidates(logits)
    (whole,) = torch.autograd.grad(loss(energy, TRUTH, found, prediction(logits)).sum(), logits)
    leaf = found.detach().requires_grad_()
    (outer,) = torch.autograd.grad(loss(energy, TRUTH, leaf, prediction().detach()).sum(), leaf)
    assert outer.abs().max() > 1e-3
    torch.testing.assert_close(whole, (outer * leaf * (1 - leaf)).sum(1).detach())


@pytest.mark.parametrize("loss", SAMPLING, ids=kind)
def test_samples_carry_no_gradient(loss):
    logits = LOGITS.clone().requires_grad_()
    assert not loss.propose(prediction(logits)).requires_grad


@pytest.mark.parametrize("loss", [Margin(), Regression(), Ranking(), Ranking(score=F1()), CD()], ids=kind)
def test_only_noise_contrast_has_a_gradient_in_the_prediction_itself(loss):
    logits, slopes = LOGITS.clone().requires_grad_(), torch.ones(3, dtype=torch.float64).requires_grad_()
    result = loss(linear_energy(slopes), TRUTH, DISCRETE, prediction(logits))
    assert torch.autograd.grad(result.sum(), [logits, slopes], allow_unused=True)[0] is None


@pytest.mark.parametrize("loss", [NCE(), NCE(score=F1())], ids=["NCE", "NCE with a score"])
def test_the_gradient_of_noise_contrast_in_the_prediction_is_that_of_log_p(loss):
    logits = LOGITS.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(energy, TRUTH, DISCRETE, prediction(logits)).sum(), logits)
    outputs = [plain(TRUTH), *plain(DISCRETE)]
    costs = [0.0, *(1 - f1_of(y, outputs[0]) for y in outputs[1:])] if loss.score else [0.0] * 5
    exponents = [c - energy_of(y) - log_prob_of(y) for y, c in zip(outputs, costs, strict=True)]
    share = np.exp(exponents) / np.exp(exponents).sum()
    share[0] -= 1
    p = LOGITS[0].sigmoid().numpy()
    expected = sum(w * (p - y) for w, y in zip(share, outputs, strict=True))  # ∂(−log P(y)) = σ(l) − y
    np.testing.assert_allclose(found[0], expected, rtol=1e-7)
    assert torch.autograd.gradcheck(lambda at: loss(energy, TRUTH, DISCRETE, prediction(at)), logits)


@every_loss
def test_instances_do_not_influence_each_other(loss):
    torch.manual_seed(0)
    logits, truth = torch.randn(4, 3).double(), (torch.rand(4, 3) > 0.4).double()
    truth[:, 0] = 1
    candidates = loss.propose(prediction(logits))
    together = loss(energy, truth, candidates, prediction(logits))
    assert together.shape == (4,)
    for row in range(4):
        one = slice(row, row + 1)
        alone = loss(energy, truth[one], candidates[one], prediction(logits[one]))
        torch.testing.assert_close(together[one], alone)


@every_loss
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_energies_give_finite_losses_and_gradients(loss, size):
    slopes = torch.tensor([size, -size, size], requires_grad=True)
    guess = prediction(LOGITS.float())
    result = loss(linear_energy(slopes), TRUTH.float(), loss.propose(guess), guess)
    result.sum().backward()
    assert result.isfinite().all()
    assert slopes.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_nce_with_a_very_sure_task_net_is_finite(size):
    guess = prediction(torch.tensor([[-size, size, -size]]))
    slopes = torch.ones(3, requires_grad=True)
    loss = NCE(samples=4)
    result = loss(linear_energy(slopes), TRUTH.float(), loss.propose(guess), guess)
    result.sum().backward()
    assert result.isfinite().all()
    assert slopes.grad.isfinite().all()


# ---------------------------------------------------------------- proposals


@pytest.mark.parametrize("loss", [Margin(), Perceptron(), Regression()])
def test_relaxed_proposals_are_the_prediction(loss):
    torch.testing.assert_close(loss.propose(prediction())[:, 0], LOGITS.sigmoid())


def test_regression_s_keeps_the_prediction_first_and_perturbs_the_others():
    candidates = RegressionS(samples=5, std=0.5).propose(prediction())
    torch.testing.assert_close(candidates[:, 0], LOGITS.sigmoid())
    assert candidates.shape == (1, 5, 3)  # the prediction is one of them
    assert RegressionS(samples=1).propose(prediction()).shape == (1, 1, 3)
    assert (candidates[:, 1:] != candidates[:, :1]).all()
    still = RegressionS(samples=5, std=0.0).propose(prediction())
    torch.testing.assert_close(still, still[:, :1].expand_as(still))


@pytest.mark.parametrize("loss", [NCE(samples=6), NCE(6, F1()), Ranking(samples=6), CD(samples=6)])
def test_contrastive_proposals_are_discrete_samples(loss):
    candidates = loss.propose(prediction())
    assert candidates.shape == (1, 6, 3)
    assert set(candidates.unique().tolist()) <= {0.0, 1.0}


@every_loss
@pytest.mark.parametrize(
    ("space", "event", "mask"),
    [(Tags(3), (4, 3), torch.tensor([[1.0, 1.0, 0.0, 0.0]])), (Mask(), (2, 4), None)],
)
def test_losses_work_for_tags_and_masks(loss, space, event, mask):
    torch.manual_seed(0)
    guess = Prediction(space, torch.randn(1, *event), mask)
    truth = guess.sample(1)[:, 0]
    candidates = loss.propose(guess)
    assert candidates.shape[2:] == event
    result = loss(lambda y: y.flatten(2).square().sum(2), truth, candidates, guess)
    assert result.shape == (1,)
    assert result.isfinite().all()
