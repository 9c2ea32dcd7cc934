import itertools
import math

import pytest
import torch

from lossnet.energies import LabelResidual
from lossnet.gibbs import Gibbs, shared_steps

LABELS = 10
EVERY = torch.tensor(list(itertools.product([0.0, 1.0], repeat=LABELS))).double()


@pytest.fixture
def energy():
    torch.manual_seed(0)
    energy = LabelResidual(LABELS, rank=4).double()
    for parameter in energy.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return energy.requires_grad_(False)


@pytest.fixture
def logits():
    return torch.randn(3, LABELS, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture
def known():
    """Nothing, two labels, and one of each kind."""
    known = torch.full((3, LABELS), torch.nan).double()
    known[1, 2] = known[1, 7] = known[2, 0] = 1
    known[2, 4] = 0
    return known


def exact(energy, logits, known):
    """Log-probabilities of all sets ``(batch, 1024)``, by adding all of them up."""
    scores = EVERY @ logits.T  # log P_task up to a constant
    scores = scores.T - energy(logits, EVERY.expand(len(logits), -1, -1))
    fits = (known.isnan().unsqueeze(1) | (known.unsqueeze(1) == EVERY)).all(-1)
    return scores.masked_fill(~fits, -math.inf).log_softmax(1)


def test_gains_are_differences_of_energies(energy, logits):
    y = EVERY.expand(3, -1, -1)
    gains = energy.gains(energy.encode(logits), y)
    for label in range(LABELS):
        place = torch.tensor([label])
        with_it, without = y.index_fill(2, place, 1), y.index_fill(2, place, 0)
        torch.testing.assert_close(gains[..., label], energy(logits, without) - energy(logits, with_it))


def test_marginals_are_those_of_all_sets(energy, logits, known):
    truth = exact(energy, logits, known).exp() @ EVERY
    many = Gibbs(chains=64, sweeps=150, burn_in=20)
    found = many.marginals(energy, logits, known, partly=False)
    torch.testing.assert_close(found, truth, atol=0.01, rtol=0)
    found = Gibbs().marginals(energy, logits, known, partly=False)
    torch.testing.assert_close(found, truth, atol=0.06, rtol=0)


def test_marginals_count_that_a_part_is_known(energy, logits, known):
    """Bayes' rule over all sets: how likely it is that just this part of each is known, shares unknown."""

    def beta(a, b):
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    chances = exact(energy, logits, known)
    for row in range(3):
        ones, zeros = int((known[row] == 1).sum()), int((known[row] == 0).sum())
        for place, y in enumerate(EVERY):
            count = int(y.sum())
            if chances[row, place] > -math.inf:
                chances[row, place] += beta(ones + 1, count - ones + 1)
                chances[row, place] += beta(zeros + 1, LABELS - count - zeros + 1) if zeros else 0.0
    truth = chances.softmax(1) @ EVERY
    found = Gibbs(chains=64, sweeps=150, burn_in=20).marginals(energy, logits, known)
    torch.testing.assert_close(found, truth, atol=0.01, rtol=0)


def test_steps_are_differences_of_the_beta_function():
    known = torch.tensor([[1.0, 1.0, 0.0, torch.nan, torch.nan, torch.nan]])
    steps = shared_steps(known)[0]
    # B(3, n − 1) · B(2, 6 − n) at n = 2 … 5
    values = [
        math.lgamma(n - 1) - math.lgamma(n + 2) + math.lgamma(6 - n) - math.lgamma(8 - n) for n in range(2, 6)
    ]
    torch.testing.assert_close(steps[2:5], torch.tensor(values).diff())


def test_a_label_out_of_reach_still_has_a_chance(energy, logits, known):
    """The chains keep it at 0, which changes little where it is unlikely."""
    logits = logits.clone()
    logits[:, 5] = -4
    truth = exact(energy, logits, known).exp() @ EVERY
    found = Gibbs(chains=64, sweeps=100, most=9).marginals(energy, logits, known, partly=False)
    assert (found[:, 5] > 0).all()
    torch.testing.assert_close(found[:, 5], truth[:, 5], atol=0.03, rtol=0)


def test_samples_come_as_often_as_they_are_likely(energy, logits, known):
    """Each set's count is binomial: of 1,024, none further off than 5 standard deviations."""
    draws = 20_000
    truth = exact(energy, logits, known).exp()
    found = Gibbs().sample(energy, logits, known, draws)
    codes = (found @ (2.0 ** torch.arange(LABELS - 1, -1, -1)).double()).long()
    for row in range(3):
        counts = torch.bincount(codes[row], minlength=len(EVERY))
        assert counts[truth[row] == 0].sum() == 0
        spread = (draws * truth[row] * (1 - truth[row])).sqrt().clamp_min(1)
        assert float(((counts - draws * truth[row]).abs() / spread).max()) < 5


def test_log_probabilities_are_within_their_errors(energy, logits, known):
    truth = exact(energy, logits, known)
    found, errors = Gibbs().log_prob(energy, logits, known, EVERY.expand(3, -1, -1))
    fits = truth > -math.inf
    assert torch.equal(found > -math.inf, fits)
    assert ((found - truth)[fits].abs() < 4 * errors[fits]).all()
    assert (errors[fits] < 0.05).all()
    # The error is honest: over seeds, estimates differ by as much as it says.
    each = torch.stack(
        [Gibbs().log_prob(energy, logits, known, EVERY.expand(3, -1, -1), seed=s)[0] for s in range(30)]
    )
    spread = each[:, fits].std(0)
    assert 0.6 < float((spread / errors[fits]).median()) < 1.6


def test_the_likeliest_set_is_found(energy, logits, known):
    truth = EVERY[exact(energy, logits, known).argmax(1)]
    assert torch.equal(Gibbs().likeliest(energy, logits, known), truth)


def test_a_row_is_answered_alike_alone_and_among_others(energy, logits, known):
    together = Gibbs().marginals(energy, logits, known)
    alone = torch.cat(
        [Gibbs().marginals(energy, *pair) for pair in zip(logits.split(1), known.split(1), strict=True)]
    )
    torch.testing.assert_close(together, alone)


def test_independent_labels_need_no_sampling(logits, known):
    flat = LabelResidual(LABELS, rank=0).double()
    found = Gibbs().marginals(flat, logits, known, partly=False)
    torch.testing.assert_close(found, torch.where(known.isnan(), logits.sigmoid(), known))
