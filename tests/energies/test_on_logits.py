"""The residual energy over a trained network, as an energy of SEAL and of implicit training."""

import pytest
import torch

from lossnet import MultiLabel, Trainer
from lossnet.data import MultiLabelData
from lossnet.energies import LabelResidual, OnLogits
from lossnet.losses import NCE, TaskLoss
from lossnet.methods import SEAL, CrossEntropy, Implicit
from lossnet.nets import MLP


def one_of_two(count, seed):
    """An input that tells nothing, and sets of which each has just one of two labels."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(count, 1, generator=generator) < 0.5
    x = torch.randn(count, 2, generator=generator)
    return MultiLabelData.from_arrays(x.numpy(), torch.cat([first, ~first], 1).int().numpy())


def trained(method, steps=8, **options):
    trainer = Trainer(method, max_epochs=steps, lr=2e-2, progress=False, seed=0, **options)
    trainer.fit(one_of_two(300, 0), one_of_two(100, 1))
    return method


def test_it_is_the_energy_of_the_networks_logits_and_leaves_it_alone():
    net = MLP(2, hidden=8, layers=1, outputs=2, dropout=0.5)
    inner = LabelResidual(2, rank=1)
    torch.nn.init.normal_(inner.strengths)
    energy = OnLogits(net, inner).train()
    x, y = torch.randn(5, 2), torch.rand(5, 3, 2)
    torch.testing.assert_close(energy(x, y), inner(net.eval()(x), y))
    assert {name for name, one in energy.named_parameters() if one.requires_grad} == {
        f"energy.{name}" for name, _ in inner.named_parameters()
    }
    net.requires_grad_(True)
    assert next(net.parameters()) is not next(energy.net.parameters())


@pytest.mark.parametrize("method", [SEAL, Implicit])
def test_seal_and_implicit_training_learn_it(method):
    """A network alone leaves both labels as likely as not; SEAL's energy wants just one of them.

    Implicit training asks for the outputs whose relaxation has a high F1, which is another thing.
    """
    space = MultiLabel(2)
    torch.manual_seed(0)
    noise = trained(CrossEntropy(MLP(2, hidden=8, layers=1, outputs=2), space), steps=3).task_net
    energy, net = OnLogits(noise, LabelResidual(2, rank=2)), MLP(2, hidden=8, layers=1, outputs=2)
    before = [one.clone() for one in energy.net.parameters()]
    loss, weights = NCE(samples=8), TaskLoss(energy_weight=2.0)
    trained(method(net, energy, space, loss=loss, task_loss=weights))
    assert all(torch.equal(*pair) for pair in zip(before, energy.net.parameters(), strict=True))
    assert energy.energy.strengths.abs().max() > 0.05
    if method is SEAL:
        sets = torch.tensor([[[0.0, 1.0], [1, 0], [1, 1], [0, 0]]])
        found = energy(torch.zeros(1, 2), sets)[0]
        assert found[:2].max() < found[2:].min() - 0.5
