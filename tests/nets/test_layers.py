import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from lossnet.nets import MLP, InputLayer, linear
from lossnet.ops.sparse import SPARSE_SHARE, nonzeros

ROWS, INPUTS, OUTPUTS = 6, 40, 5


def few(*shape, values="ones", seed=0):
    """Mostly zeros, with an empty row and an empty column."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(shape, generator=generator, dtype=torch.float64) < SPARSE_SHARE / 2).double()
    if values == "any":
        x = x * torch.randn(shape, generator=generator, dtype=torch.float64)
    x[..., 1, :] = 0
    x[..., 3] = 0
    return x


def layers(bias=True):
    """The layer, and PyTorch's with the same weights."""
    layer = InputLayer(INPUTS, OUTPUTS, bias).double()
    plain = nn.Linear(INPUTS, OUTPUTS, bias).double()
    plain.load_state_dict(layer.state_dict())
    return layer, plain


@pytest.mark.parametrize("values", ["ones", "any"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(ROWS, INPUTS), (3, ROWS, INPUTS)])
@pytest.mark.parametrize("form", ["few", "csr", "dense", "evaluation"])
def test_every_form_of_inputs_gives_what_linear_gives_with_gradients_of_three_orders(
    values, bias, shape, form
):
    x = few(*shape, values=values)
    layer, plain = layers(bias)
    if form == "csr" and len(shape) > 2:
        pytest.skip("sparse tensors are matrices")
    if form == "dense":
        x = torch.randn(shape, dtype=torch.float64)
    layer.train(form != "evaluation")
    read = x.to_sparse_csr() if form == "csr" else x
    assert (form in ("few", "csr")) == (layer.training and nonzeros(read) is not None)

    def derivatives(module, inputs):
        """The gradient, and the gradient of its length, and the gradient of that's length."""
        found = []
        value = torch.tanh(module(inputs)).pow(3).sum()
        for _ in range(3):
            gradients = torch.autograd.grad(value, list(module.parameters()), create_graph=True)
            found.append([g.t() if g.dim() == 2 and module is layer else g for g in gradients])
            value = sum(g.pow(2).sum() for g in gradients)
        return found

    torch.testing.assert_close(layer(read), plain(x))
    for mine, its in zip(derivatives(layer, read), derivatives(plain, x), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-12)


def test_gradients_lie_in_memory_as_weights_do():
    """A fused optimizer takes that for granted, and would go astray without a word."""
    layer, _ = layers()
    for x in (few(ROWS, INPUTS), few(ROWS, INPUTS).to_sparse_csr(), torch.randn(ROWS, INPUTS).double()):
        gradient, _ = torch.autograd.grad(layer(x).pow(2).sum(), list(layer.parameters()))
        assert gradient.is_contiguous()
        assert gradient.stride() == layer.weight.stride()


def test_inputs_changed_in_place_are_read_again():
    layer, plain = layers()
    x = few(ROWS, INPUTS)
    layer(x)
    x[2, 5] = 7.0
    torch.testing.assert_close(layer(x), plain(x))


def test_inputs_that_need_a_gradient_get_it():
    layer, plain = layers()
    x = few(ROWS, INPUTS).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(layer(x).sum(), x), torch.autograd.grad(plain(x).sum(), x))


def test_inside_vmap_and_compiled_code_inputs_are_dense():
    layer, plain = layers()
    x = few(3, ROWS, INPUTS)
    torch.testing.assert_close(torch.vmap(layer)(x), plain(x))
    exported = torch.export.export(layer, (x[0],)).module()
    torch.testing.assert_close(exported(x[1]), plain(x[1]))


def test_it_starts_with_the_very_numbers_that_linear_has():
    torch.manual_seed(0)
    plain, after = linear(INPUTS, OUTPUTS), torch.rand(3)
    torch.manual_seed(0)
    layer = InputLayer(INPUTS, OUTPUTS)
    assert torch.equal(layer.weight.t(), plain.weight)
    assert torch.equal(layer.bias, plain.bias)
    assert torch.equal(torch.rand(3), after)


@pytest.mark.parametrize("assign", [False, True])
def test_state_is_that_of_linear(assign):
    net, other = (MLP(INPUTS, hidden=4, layers=1, outputs=2) for _ in range(2))
    state = net.state_dict()
    assert state["0.weight"].shape == (4, INPUTS)
    stored = io.BytesIO()
    torch.save(state, stored)
    stored.seek(0)
    other.load_state_dict(torch.load(stored, weights_only=True), assign=assign)
    x = torch.randn(ROWS, INPUTS)
    assert torch.equal(other(x), net(x))
    assert other[0].weight.is_contiguous()
    assert torch.equal(copy.deepcopy(net)(x), net(x))
    with torch.no_grad():  # what a state holds is the memory itself, as everywhere in PyTorch
        net.state_dict()["0.weight"].fill_(1.0)
    assert net[0].weight.eq(1).all()


def test_a_state_of_another_shape_is_refused():
    net = MLP(INPUTS, hidden=4, layers=1)
    state = net.state_dict() | {"0.weight": torch.zeros(4, INPUTS + 1)}
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        net.load_state_dict(state)


def test_no_rows_and_no_values_are_fine():
    layer, plain = layers()
    for x in (torch.zeros(0, INPUTS), torch.zeros(2, INPUTS)):
        x = x.double()
        torch.testing.assert_close(layer(x), plain(x))
        gradient = torch.autograd.grad(layer(x).sum(), layer.weight)[0]
        assert gradient.eq(0).all()


def test_more_inputs_than_sixteen_bits_count():
    layer = InputLayer(70_000, 2)
    x = torch.zeros(2, 70_000)
    x[0, 69_999], x[1, 4_464] = 1.0, 2.0  # the same but for 2¹⁶
    gradient = torch.autograd.grad(layer(x).sum(), layer.weight)[0]
    assert np.flatnonzero(gradient[:, 0].numpy()).tolist() == [4_464, 69_999]


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
