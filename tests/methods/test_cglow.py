import numpy as np
import torch

from lossnet.data import MaskData
from lossnet.methods import CGLOW
from lossnet.nets import FCN, MaskFlow
from lossnet.spaces import Batch, Mask
from lossnet.training import Trainer


def test_a_prediction_is_the_mean_of_samples_within_bounds():
    torch.manual_seed(0)
    method = CGLOW(MaskFlow(FCN(3, (3, 4, 4)), levels=2, steps=1).double(), Mask(), samples=7)
    for step in method.task_net.steps:
        step.norm.bias.data.normal_(std=2)
    x = torch.rand(2, 3, 8, 8).double()
    drawn = method.task_net.sample(x, 7, torch.Generator().manual_seed(0))
    expected = (drawn.sum(1) / 7 + 0.5).clip(0, 1)
    torch.manual_seed(3)  # what is drawn elsewhere changes nothing
    torch.testing.assert_close(method.predict(x), expected)
    assert bool((expected == 0).any() and (expected == 1).any())


def test_a_prediction_does_not_depend_on_the_batch():
    torch.manual_seed(0)
    method = CGLOW(MaskFlow(FCN(3, (3, 4, 4)), levels=2, steps=2).double(), Mask(), samples=4)
    for parameter in method.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    x = torch.rand(3, 3, 8, 8).double()
    alone = torch.cat([method.eval().predict(one) for one in x.split(1)])
    torch.testing.assert_close(method.predict(x), alone)


def test_the_loss_is_weighted_by_instance():
    torch.manual_seed(0)
    method = CGLOW(MaskFlow(FCN(3, (3, 4, 4)), levels=1, steps=1), Mask())
    x, y = torch.rand(3, 3, 4, 4), torch.ones(3, 4, 4)
    torch.manual_seed(1)
    losses = method.task_net.losses(x, y)
    torch.manual_seed(1)
    (update,) = method.updates(Batch(x, y, weight=torch.tensor([0.0, 3.0, 0.0])))
    torch.testing.assert_close(update.loss, losses[1])


def test_it_draws_whole_masks():
    """A bright square with the dark one beside it, or the other way round: the image does not say which."""
    rng = np.random.default_rng(0)
    count, size = 200, 8
    x = rng.normal(0, 0.1, (count, size, size, 1)) + 0.5
    known = rng.integers(0, 2, count)  # the upper half: seen
    coin = rng.integers(0, 2, count)  # the lower half: left or right, never both
    y = np.zeros((count, size, size), dtype=np.uint8)
    y[:, :4] = known[:, None, None]
    x[:, :4, :, 0] += 0.4 * known[:, None, None]
    y[coin == 0, 4:, :4] = 1
    y[coin == 1, 4:, 4:] = 1
    data = MaskData.from_arrays(x.clip(0, 1).astype("float32"), y)
    torch.manual_seed(0)
    method = CGLOW(MaskFlow(FCN(1, (8, 16, 16)), levels=2, steps=2), Mask())
    train, valid = data.take(range(160)), data.take(range(160, 200))
    Trainer(method, lr=0.01, max_epochs=30, batch_size=40, seed=0, progress=False).fit(train, valid)
    batch = valid.batch(torch.arange(40))
    upper = (method.predict(batch.x)[:, :4] >= 0.5).float() == batch.y[:, :4]
    assert upper.float().mean() > 0.95
    drawn = (method.task_net.sample(batch.x, 20) > 0).float()[:, :, 4:]
    left, right = drawn[..., :4].mean((2, 3)), drawn[..., 4:].mean((2, 3))
    assert ((left - right).abs() > 0.5).float().mean() > 0.4, "one of the two; pixels alone would give 0.002"
    assert 0.25 < (left > right).float().mean() < 0.75, "and each as often as the other"
