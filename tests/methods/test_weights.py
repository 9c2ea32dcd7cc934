"""An instance of weight two counts as much as the same instance given twice."""

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.data import MaskData, MultiLabelData, TaggedSentences, Weighted
from lossnet.inputs import Images
from lossnet.outputs import Masks
from lossnet.settings import Settings
from lossnet.spaces import Batch, mean
from lossnet.task import Task

SMALL = Settings(
    task_hidden=6, energy_hidden=6, global_hidden=3, task_dropout=0, energy_dropout=0, inference_steps=4
)
TIMES = [2, 0, 1, 3, 1]  # five instances given so often: seven in all

# Losses that draw nothing, so that each instance's own does not depend on its place in the batch.
NAMES = [
    ("cross-entropy", "none"),
    ("cross-entropy", "soft-f1"),
    ("cross-entropy", "asymmetric"),
    ("spen", "margin"),
    ("spen-end-to-end", "none"),
    ("gspen", "margin"),
    ("infnet", "margin"),
    ("alen", "margin"),
    ("infnet-plus", "margin"),
    ("seal", "margin"),
    ("seal", "regression"),
    ("implicit", "margin"),
    ("implicit", "regression"),
]


def label_problem():
    random = np.random.default_rng(0)
    y = random.random((5, 3)) < 0.5
    return Task.of_sizes(4, 3), MultiLabelData.from_arrays(random.normal(size=(5, 4)), y)


def mask_problem():
    random = np.random.default_rng(0)
    data = MaskData.from_arrays(random.random((5, 8, 8)), random.random((5, 8, 8)) < 0.5)
    return Task(Images(1, (8, 8)), Masks()), data


def tag_problem():
    tokens = (("a", "b"), ("b",), ("a", "a", "b"), ("c", "a"), ("b", "b"))
    read = TaggedSentences(tokens, tuple(tuple("XY"[word == "b"] for word in words) for words in tokens))
    task = Task.fit([read])
    return task, *task.prepare([read])


def gradients(method, batch):
    """The gradients of every update of every stage, none of which is taken."""
    found = []
    for stage in method.stages():
        for update in stage.updates(batch):
            parameters = list(method.get_submodule(update.network).parameters())
            made = update.gradients
            if made is None:
                made = torch.autograd.grad(update.loss, parameters, materialize_grads=True)
            found.append(torch.cat([update.loss.detach().view(1), *(g.flatten() for g in made)]))
    return torch.cat(found)


def double(batch):
    return Batch(
        *(part.double() if part is not None and part.is_floating_point() else part for part in batch)
    )


def both(problem, method, loss):
    task, data = problem()
    torch.manual_seed(0)
    built = build(method, loss, SMALL, task).double()
    times = torch.tensor(TIMES)
    repeated = data.batch(torch.arange(5).repeat_interleave(times))
    weighted = Weighted(data, times / times.double().mean()).batch(torch.arange(5))
    return gradients(built, double(repeated)), gradients(built, double(weighted))


@pytest.mark.parametrize(("method", "loss"), NAMES)
def test_a_weight_is_so_many_rows(method, loss):
    repeated, weighted = both(label_problem, method, loss)
    assert repeated.abs().max() > 1e-3
    torch.testing.assert_close(weighted, repeated, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("problem", "method", "loss"),
    [
        (mask_problem, "cross-entropy", "dice"),
        (mask_problem, "seal", "margin"),
        (tag_problem, "cross-entropy", "none"),
        (tag_problem, "crf", "likelihood"),
    ],
)
def test_a_weight_is_so_many_images_or_sentences(problem, method, loss):
    repeated, weighted = both(problem, method, loss)
    torch.testing.assert_close(weighted, repeated, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "loss"),
    [("dvn", "regression"), ("nce-energy", "nce"), ("seal", "nce"), ("seal-static", "nce")],
)
def test_an_instance_of_weight_zero_does_not_matter_where_candidates_are_drawn(method, loss):
    task, data = label_problem()
    torch.manual_seed(0)
    built = build(method, loss, SMALL, task).double()
    found = []
    for wrong in (False, True):
        batch = double(Weighted(data, torch.tensor([1.0, 0, 1, 1, 1])).batch(torch.arange(5)))
        if wrong:
            batch.y[1] = 1 - batch.y[1]
        torch.manual_seed(1)
        found.append(gradients(built, batch))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_weights_of_one_change_nothing():
    losses = torch.rand(100)
    assert torch.equal(mean(losses, torch.ones(100)), mean(losses))
