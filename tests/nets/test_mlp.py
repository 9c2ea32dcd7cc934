import math

import numpy as np
import pytest
import torch
from torch import nn

from lossnet.nets import MLP, InputLayer, linear


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_network_is_affine_maps_with_softplus_between(layers):
    net = MLP(4, hidden=6, layers=layers, outputs=3).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    maps = [module for module in net if isinstance(module, nn.Linear | InputLayer)]
    assert len(maps) == layers + 1
    value = x.numpy()
    for position, layer in enumerate(maps):
        weight = layer.weight.detach().numpy()
        value = value @ (weight.T if position else weight) + layer.bias.detach().numpy()
        if position < layers:
            value = np.log1p(np.exp(value))
    np.testing.assert_allclose(net(x).detach(), value)


@pytest.mark.parametrize(("layers", "width"), [(0, 4), (1, 6), (2, 6)])
def test_feature_network_gives_its_width_and_ends_in_softplus(layers, width):
    net = MLP(4, hidden=6, layers=layers)
    features = net(-torch.ones(2, 4))
    assert features.shape == (2, net.width) == (2, width)
    assert layers == 0 or (features > 0).all()


def test_dropout_follows_every_hidden_layer_and_only_while_training():
    net = MLP(4, hidden=50, layers=2, outputs=3, dropout=0.5)
    assert [m.p for m in net if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    assert isinstance(net[-1], nn.Linear)
    x = torch.randn(2, 4)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_no_dropout_module_unless_asked_for():
    assert not any(isinstance(m, nn.Dropout) for m in MLP(4, hidden=5, layers=2))


def test_linear_starts_kaiming_uniform_with_zero_bias():
    torch.manual_seed(0)
    layer = linear(50, 400)
    bound = math.sqrt(6 / 50)
    assert layer.bias.eq(0).all()
    assert 0.99 * bound < layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert linear(2, 2, bias=False).bias is None


def test_layers_of_ones_own_and_export_in_one_graph():
    net = MLP(4, hidden=6, layers=2, outputs=3, dropout=0.5).eval()
    x = torch.randn(5, 4)
    exported = torch.export.export(net, (x,), strict=True).module()
    torch.testing.assert_close(exported(x), net(x))
    net[3] = nn.Linear(6, 6)
    assert net(x).shape == (5, 3)
