"""Losses of several steps, each with candidates of its own."""

import pickle

import pytest
import torch

from lossnet import ops
from lossnet.losses import CD, NCE, Ranking
from lossnet.scores import F1, Hamming
from lossnet.spaces import LogTerms, Mask, MultiLabel, Prediction, Smooth, Tags

PROBLEMS = {
    "labels": (MultiLabel(6), (6,), None),
    "tags": (Tags(3), (5, 3), torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1]])),
    "pixels": (Mask(), (4, 3), None),
    "coherent pixels": (Mask(noise=Smooth()), (4, 3), None),
}


LOSSES = {
    "nce": NCE(samples=5),
    "ranking": Ranking(samples=5),
    "cd": CD(samples=5),
    "cd by another cost": CD(samples=5, score=Hamming()),
    "nce with a cost": NCE(samples=5, score=F1()),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_are_those_of_their_own_samples(loss, name):
    torch.manual_seed(0)
    space, event, mask = PROBLEMS[name]
    prediction = Prediction(space, torch.randn(2, *event, dtype=torch.float64), mask)
    truth = space.sample(torch.randn(2, *event, dtype=torch.float64), 1, mask)[:, 0].float()
    weights = torch.randn(event, dtype=torch.float64)
    seen = []

    def energy(y):
        seen.append(y)
        return (y * weights).flatten(2).sum(2)

    found = [of(energy) for of in loss.candidate_batches(truth, prediction, 3)]
    assert [tuple(y.shape) for y in seen] == [(2, 6, *event)] * 3
    for value, candidates in zip(found, seen[:3], strict=True):
        torch.testing.assert_close(candidates[:, 0], truth.double())
        torch.testing.assert_close(value, loss(energy, truth, candidates[:, 1:], prediction))
    assert not torch.equal(seen[0], seen[1])


def candidates_of(space, logits, truth, samples, count, mask=None):
    return torch.stack(list(Prediction(space, logits, mask).candidate_batches(truth, samples, count)))


@pytest.mark.parametrize("rows", [2, 50])
def test_batches_that_are_too_large_to_be_drawn_at_once_come_some_at_a_time(monkeypatch, rows):
    """As many whatever the rows: a replica beside others draws what it would alone, and so does a share."""
    prediction, truth = Prediction(MultiLabel(6), torch.zeros(rows, 6)), torch.zeros(rows, 6)
    loss, drawn, seen = NCE(samples=5), [], []
    plain = ops.Bernoulli.draw

    def counted(self, count, dtype):
        drawn.append(count)
        return plain(self, count, dtype)

    monkeypatch.setattr(ops.Bernoulli, "draw", counted)
    monkeypatch.setattr("lossnet.ops.candidates.OF_EACH", 2 * 5 * 6)
    for of in loss.candidate_batches(truth, prediction, 5):
        of(lambda y: seen.append(y) or y.sum(-1))
    assert drawn == [10, 10, 5]
    assert all(tuple(y.shape) == (rows, 6, 6) for y in seen)
    assert len({tuple(y.flatten().tolist()) for y in seen}) == 5
    drawn.clear()
    monkeypatch.setattr("lossnet.ops.candidates.OF_EACH", 1)
    assert len(list(loss.candidate_batches(truth, prediction, 2))) == 2
    assert drawn == [5, 5]


def test_labels_of_batches_have_their_chances_and_are_independent():
    torch.manual_seed(0)
    chances = torch.tensor([[0.0, 0.1, 0.5, 1.0], [0.3, 0.9, 1.0, 0.0]])
    truth = torch.tensor([[0.25, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])  # as it is, whatever it is
    drawn = candidates_of(MultiLabel(4), chances.logit(), truth, samples=9, count=2000)
    assert drawn.shape == (2000, 2, 10, 4)
    assert torch.equal(drawn[:, :, 0], truth.expand(2000, 2, 4))
    samples = drawn[:, :, 1:].transpose(0, 1).flatten(1, 2)
    assert set(samples.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(samples.mean(1), chances, rtol=0, atol=0.015)  # four standard errors
    together = (samples[0, :, 1] * samples[0, :, 2]).mean()
    assert together == pytest.approx(0.05, abs=0.007)


def test_masked_labels_are_never_drawn():
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    drawn = candidates_of(MultiLabel(3), torch.full((1, 3), 9.0), torch.zeros(1, 3), 50, 2, mask)
    assert drawn[:, :, 1:, 1].max() == 0
    assert drawn[:, :, 1:, 0].mean() > 0.9


class Always(MultiLabel):
    """One of somebody else's, which draws and judges in its own way."""

    def sampler(self, logits, mask=None):
        return lambda count: torch.ones(len(logits), count, self.labels)

    def log_terms(self, logits, mask=None):
        return LogTerms(2 * logits)


def test_a_space_of_ones_own_is_asked():
    space, logits, truth = Always(3), torch.full((2, 3), -50.0), torch.zeros(2, 3)
    assert candidates_of(space, logits, truth, samples=4, count=2)[:, :, 1:].min() == 1
    assert space.cross_entropy(logits, torch.ones(2, 3)).tolist() == [300, 300]
    prediction = Prediction(space, logits)
    assert prediction.cross_entropy(torch.ones(2, 3)).tolist() == [300, 300]


class Twice(NCE):
    """One of somebody else's, with names of its own."""

    def __call__(self, energy, y, outputs, made_by):
        return 2 * super().__call__(energy, y, outputs, made_by)

    def propose(self, prediction):
        return torch.ones_like(prediction.logits).unsqueeze(1)


def test_a_loss_of_ones_own_is_asked_in_every_step():
    prediction, truth = Prediction(MultiLabel(3), torch.zeros(2, 3)), torch.zeros(2, 3)
    rounds = list(Twice(samples=4).candidate_batches(truth, prediction, 2))
    loss = Twice()
    for of in rounds:
        expected = loss(lambda y: y.sum(-1), truth, loss.propose(prediction), prediction)
        torch.testing.assert_close(of(lambda y: y.sum(-1)), expected)
    assert len(rounds) == 2


def test_predictions_can_be_pickled_after_drawing():
    prediction = Prediction(MultiLabel(3), torch.zeros(2, 3))
    assert prediction.sample(2).shape == (2, 2, 3)
    assert prediction.log_prob(torch.ones(2, 1, 3)).shape == (2, 1)
    again = pickle.loads(pickle.dumps(prediction))
    assert torch.equal(again.logits, prediction.logits)
    assert again.sample(1).shape == (2, 1, 3)


def test_a_space_that_would_draw_in_vain_is_refused():
    with pytest.raises(TypeError, match="sampler"):

        class Mine(MultiLabel):
            def sample(self, logits, count, mask=None):
                return logits


def each_step(loss, truth, prediction, count=2):
    """The losses, by an energy that counts labels."""
    return [of(lambda y: y.sum(-1)) for of in loss.candidate_batches(truth, prediction, count)]


@pytest.mark.parametrize(("samples", "labels", "rows"), [(0, 3, 2), (4, 0, 2), (4, 3, 0)])
def test_batches_of_nothing_are_no_fault(samples, labels, rows):
    truth = torch.zeros(rows, labels)
    for found in each_step(NCE(samples=samples), truth, Prediction(MultiLabel(labels), truth)):
        assert found.shape == (rows,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float64])
def test_the_truth_may_be_of_any_type(dtype):
    truth = torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=dtype)
    (candidates, *_) = Prediction(MultiLabel(3), torch.zeros(2, 3)).candidate_batches(truth, 4, 2)
    assert candidates.dtype == torch.float32
    assert torch.equal(candidates[:, 0], truth.float())


def test_a_truth_that_is_learned_keeps_its_gradient():
    truth = torch.tensor([[1.0, 0.0, 1.0]], requires_grad=True)
    for found in each_step(Ranking(samples=4), truth, Prediction(MultiLabel(3), torch.zeros(1, 3))):
        (gradient,) = torch.autograd.grad(found.sum(), truth)
        assert gradient.abs().min() > 0


def test_batches_in_inference_mode():
    truth = torch.eye(40)[:2]
    with torch.inference_mode():
        assert (
            len(each_step(NCE(samples=3), truth, Prediction(MultiLabel(40), torch.full((2, 40), -5.0)))) == 2
        )


@pytest.mark.parametrize("truth", [torch.zeros(3), torch.zeros(1, 3)], ids=["no batch", "one row"])
def test_a_truth_of_another_shape_is_refused(truth):
    with pytest.raises(ValueError, match="truth is of shape"):
        each_step(Ranking(samples=4), truth, Prediction(MultiLabel(3), torch.zeros(2, 3)))


def test_a_prediction_that_would_draw_in_vain_is_refused():
    with pytest.raises(TypeError, match="candidate_batches"):

        class Ones(Prediction):
            def sample(self, count):
                return torch.ones(len(self.logits), count, 3)


class PerInstance(F1):
    """One of somebody else's, which knows the rows that it is asked about."""

    def __call__(self, candidates, truth):
        return super().__call__(candidates, truth) * torch.linspace(0, 1, 2).unsqueeze(1)


def test_a_score_of_ones_own_sees_one_batch_at_a_time():
    assert (
        len(each_step(CD(4, PerInstance()), torch.ones(2, 3), Prediction(MultiLabel(3), torch.zeros(2, 3))))
        == 2
    )
