import pytest
import torch
from torch.nn import functional

from lossnet.energies import FeatureEnergy, ImageEnergy
from lossnet.nets import UNet

HEIGHT, WIDTH = 5, 6


def flat():
    return ImageEnergy(2, (HEIGHT, WIDTH), filters=(3, 4, 5), hidden=(6, 4))


def pooled():
    return ImageEnergy(2, filters=(3, 4, 5), hidden=(6, 4))


def unet():
    return UNet(2, width=4, depth=1, dropout=0)


def copied():
    return FeatureEnergy(unet(), hidden=3)


def shared():
    return FeatureEnergy(unet(), share=True, hidden=3)


def without_local():
    return FeatureEnergy(unet(), hidden=3, local=False)


every_energy = pytest.mark.parametrize("make", [flat, pooled, copied, shared, without_local])


def build(make, seed=0):
    torch.manual_seed(seed)
    energy = make().double()
    if isinstance(energy, FeatureEnergy):
        torch.nn.init.normal_(energy.patches.weight)  # zeros would hide this term
        if energy._shared is not None:
            energy._shared[0].double()
    return energy


def data(batch=2, candidates=3, size=(HEIGHT, WIDTH)):
    torch.manual_seed(1)
    x = torch.rand(batch, 2, *size, dtype=torch.float64)
    return x, torch.rand(batch, candidates, *size, dtype=torch.float64)


# ---------------------------------------------------------------- all energies


@every_energy
def test_candidates_together_equal_candidates_alone(make):
    energy, (x, y) = build(make), data()
    at = energy.at(x)
    together = at(y)
    assert together.shape == (2, 3)
    for k in range(3):
        torch.testing.assert_close(together[:, k : k + 1], at(y[:, [k]]))
    for row in range(2):
        torch.testing.assert_close(together[row : row + 1], energy(x[[row]], y[[row]]))


@every_energy
def test_gradients_in_outputs_are_correct_in_first_and_second_order(make):
    energy, (x, y) = build(make), data(batch=1, candidates=2)
    assert torch.autograd.gradcheck(lambda at: energy(x, at), y.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda at: energy(x, at), y.requires_grad_())


@every_energy
def test_gradients_in_parameters_are_correct_in_first_and_second_order(make):
    energy, (x, y) = build(make), data(batch=1, candidates=2)
    inputs = (y.requires_grad_(), *energy.parameters())
    assert torch.autograd.gradcheck(lambda at, *_: energy(x, at), inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda at, *_: energy(x, at), inputs, fast_mode=True)


@every_energy
def test_energy_is_curved_in_the_output(make):
    energy, (x, y) = build(make), data(batch=1, candidates=1)
    hessian = torch.autograd.functional.hessian(lambda at: energy(x, at).sum(), y)
    assert hessian.view(HEIGHT * WIDTH, -1).ne(0).any(1).all()


@every_energy
def test_every_parameter_is_trained(make):
    energy, (x, y) = build(make), data()
    energy(x, y).square().sum().backward()
    assert all(p.grad is not None and p.grad.ne(0).any() for p in energy.parameters())


@every_energy
def test_image_and_mask_both_matter_at_every_pixel(make):
    energy, (x, y) = build(make), data(batch=1, candidates=1)
    gradients = torch.autograd.grad(energy(x, y.requires_grad_()).sum(), y)
    assert gradients[0].ne(0).all()
    assert (energy(x, y) != energy(x.flip(-1), y)).all()


@pytest.mark.parametrize("make", [pooled, copied, shared, without_local])
@pytest.mark.parametrize("size", [(1, 1), (3, 8), (7, 5), (12, 9)])
def test_images_of_any_size_have_energies(make, size):
    energy, (x, y) = build(make), data(size=size)
    assert energy(x, y).shape == (2, 3)
    assert energy(x, y).isfinite().all()


# ---------------------------------------------------------------- the papers' energy


def by_concatenation(energy, x, y):
    """The network as the papers draw it: image and mask stacked, one candidate at a time."""
    results = []
    for k in range(y.shape[1]):
        value = torch.cat([energy.normalise(x), y[:, k : k + 1]], 1)
        for layer in (energy.fine, energy.middle, energy.coarse):
            value = functional.silu(layer(value))
        value = value.mean((2, 3)) if energy.size is None else value.flatten(1)
        for layer in (energy.first, energy.second):
            value = functional.silu(layer(value))
        results.append(energy.weights(value))
    return torch.cat(results, 1)


@pytest.mark.parametrize("make", [flat, pooled])
def test_encoding_the_image_once_equals_stacking_image_and_mask(make):
    energy, (x, y) = build(make), data()
    torch.testing.assert_close(energy(x, y), by_concatenation(energy, x, y))


def test_convolution_of_the_image_is_not_repeated_for_each_candidate(monkeypatch):
    energy, (x, y) = build(flat), data()
    sizes = []
    plain = functional.conv2d

    def counted(value, *args, **options):
        sizes.append(tuple(value.shape[:2]))
        return plain(value, *args, **options)

    monkeypatch.setattr(functional, "conv2d", counted)
    energy(x, y)
    assert sizes[:2] == [(2, 2), (6, 5)]  # images of two channels, then candidates, a row of the kernel each
    assert sizes[2:] == [(6, 3), (6, 4)]


def test_default_layers_are_the_papers():
    energy = ImageEnergy(3, (24, 24))
    assert [tuple(m.weight.shape) for m in (energy.fine, energy.middle, energy.coarse)] == [
        (64, 4, 5, 5),
        (128, 64, 5, 5),
        (128, 128, 5, 5),
    ]
    assert [tuple(m.weight.shape) for m in (energy.first, energy.second, energy.weights)] == [
        (384, 128 * 6 * 6),
        (192, 384),
        (1, 192),
    ]


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (4, 5), (9, 8)])
def test_odd_sizes_are_flattened_whole(size):
    energy = ImageEnergy(2, size, filters=(3, 4, 5), hidden=(6, 4)).double()
    x, y = data(size=size)
    torch.testing.assert_close(energy(x, y), by_concatenation(energy, x, y))


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"images of size \(5, 6\), not \(6, 5\)"):
        build(flat)(*data(size=(WIDTH, HEIGHT)))


def test_dropout_is_on_while_training_only():
    torch.manual_seed(0)
    energy = ImageEnergy(2, filters=(3, 4, 5), hidden=(50, 4), dropout=0.5).double()
    x, y = data()
    assert not torch.equal(energy(x, y), energy(x, y))
    energy.eval()
    assert torch.equal(energy(x, y), energy(x, y))


def test_papers_energy_has_no_local_term():
    with pytest.raises(ValueError, match="ImageEnergy has no local term"):
        build(flat).unary_logits(data()[0])


# ---------------------------------------------------------------- the energy over features


def test_energy_over_features_is_the_sum_that_it_states():
    energy, (x, y) = build(copied), data()
    features = energy.net.features(x)
    logits = energy.local(features).squeeze(1)
    for k in range(3):
        fine = functional.silu(energy.fine(torch.cat([features, y[:, k : k + 1]], 1)))
        coarse = functional.silu(energy.coarse(functional.silu(energy.middle(fine))))
        assert coarse.shape[-2:] == (3, 3)
        pixels = torch.cat([fine.flatten(2).mean(2), coarse.flatten(2).mean(2)], 1)
        sums = torch.cat([fine.flatten(2).sum(2), coarse.flatten(2).sum(2)], 1)
        expected = energy.whole(pixels)[:, 0] + sums @ energy.patches.weight[0]
        expected = expected - (y[:, k] * logits).flatten(1).sum(1)
        torch.testing.assert_close(energy(x, y)[:, k], expected)


@pytest.mark.parametrize("share", [False, True])
def test_energy_of_a_net_starts_with_its_logits(share):
    torch.manual_seed(0)
    net = unet().double()
    energy, (x, _) = FeatureEnergy(net, share=share, hidden=3).double(), data()
    torch.testing.assert_close(energy.unary_logits(x), net(x))
    assert energy.patches.weight.eq(0).all()


@pytest.mark.parametrize("make", [copied, shared])
def test_unary_logits_are_those_of_the_first_sum(make):
    energy, (x, y) = build(make), data()
    for module in (energy.patches, energy.whole[-1]):
        torch.nn.init.zeros_(module.weight)
    (gradient,) = torch.autograd.grad(energy(x, y.requires_grad_()).sum(), y)
    for k in range(3):
        torch.testing.assert_close(energy.unary_logits(x), -gradient[:, k])


def test_without_the_first_sum_there_are_no_unary_logits():
    with pytest.raises(ValueError, match="FeatureEnergy has no local term"):
        build(without_local).unary_logits(data()[0])


def test_a_copy_is_trained_with_the_energy_and_leaves_the_net_alone():
    net = unet().double()
    energy, (x, y) = FeatureEnergy(net, hidden=3).double(), data()
    energy(x, y).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    assert all(p.grad is not None for p in energy.net.parameters())
    before = energy(x, y)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    torch.testing.assert_close(energy(x, y), before)


def test_a_shared_net_is_followed_but_neither_trained_nor_stored():
    net = unet().double()
    energy, (x, y) = FeatureEnergy(net, share=True, hidden=3).double(), data()
    energy(x, y).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    assert not any(name.startswith("net") for name in energy.state_dict())
    ours = {id(parameter) for parameter in energy.parameters()}
    assert not ours & {id(parameter) for parameter in net.parameters()}
    before = energy(x, y)
    with torch.no_grad():
        net.down[0][0].weight.add_(torch.randn_like(net.down[0][0].weight))
    assert (energy(x, y) != before).all()


def test_features_are_computed_once_for_all_candidates():
    energy, (x, y) = build(copied), data()
    calls = []
    energy.net.down[0].register_forward_hook(lambda *_: calls.append(1))
    at = energy.at(x)
    for k in range(3):
        at(y[:, [k]])
    assert len(calls) == 1
