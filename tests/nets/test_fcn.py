import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lossnet.nets import FCN, Normalise, UNet
from lossnet.nets.fcn import conv

SIZES = [(24, 24), (25, 23), (26, 32), (7, 9), (5, 2), (1, 1), (3, 1)]


def small_fcn(channels=3):
    return FCN(channels, filters=(4, 5, 6))


def small_unet(channels=3):
    return UNet(channels, width=4, depth=2, dropout=0)


every_net = pytest.mark.parametrize("make", [small_fcn, small_unet])


@every_net
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_of_any_image_gets_a_logit(make, size, channels):
    torch.manual_seed(0)
    logits = make(channels)(torch.rand(2, channels, *size))
    assert logits.shape == (2, *size)
    assert logits.isfinite().all()


@every_net
def test_images_of_a_batch_do_not_meet(make):
    torch.manual_seed(0)
    net, x = make().double(), torch.rand(3, 3, 9, 10, dtype=torch.float64)
    alone = torch.cat([net(x[[row]]) for row in range(3)])
    torch.testing.assert_close(net(x), alone)


@every_net
def test_every_parameter_is_trained(make):
    torch.manual_seed(0)
    net = make()
    net(torch.rand(2, 3, 9, 10)).square().sum().backward()
    assert all(p.grad is not None and p.grad.ne(0).any() for p in net.parameters())


@every_net
def test_first_and_second_derivatives_are_correct(make):
    torch.manual_seed(0)
    net, x = make().double(), torch.rand(1, 3, 5, 6, dtype=torch.float64)
    parameters = tuple(net.parameters())
    assert torch.autograd.gradcheck(lambda *_: net(x), parameters, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *_: net(x), parameters, fast_mode=True)


@every_net
def test_a_net_learns_to_tell_light_from_dark(make):
    torch.manual_seed(0)
    net, x = make(1), torch.rand(8, 1, 9, 9)
    truth = (x[:, 0] > 0.5).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x), truth).backward()
        optimizer.step()
    assert ((net(x) > 0) == truth.bool()).float().mean() > 0.9


# ---------------------------------------------------------------- the papers' FCN


def test_fcn_has_the_papers_layers():
    net = FCN()
    layers = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert [(m.out_channels, m.kernel_size[0], m.stride[0]) for m in layers] == [
        (64, 5, 1),
        (128, 5, 2),
        (128, 5, 2),
        (1, 1, 1),
    ]
    ups = [module for module in net.modules() if isinstance(module, nn.ConvTranspose2d)]
    assert [(m.out_channels, m.stride[0]) for m in ups] == [(128, 2), (64, 2)]


def test_transposed_convolutions_start_at_the_scale_of_plain_ones():
    torch.manual_seed(0)
    x, skip = torch.randn(4, 128, 20, 20), torch.zeros(4, 128, 40, 40)
    up, plain = FCN().to_middle(x, skip), conv(128, 128, 5)(x)
    ratio = up[..., 4:-4, 4:-4].std() / plain[..., 4:-4, 4:-4].std()
    assert ratio.item() == pytest.approx(1.0, rel=0.1)


def test_fcn_sees_detail_through_the_skips():
    torch.manual_seed(0)
    net, x = FCN(filters=(4, 5, 6)).double(), torch.rand(1, 3, 12, 12, dtype=torch.float64)
    with torch.no_grad():
        net.to_fine.conv.weight.zero_()
    changed = x.clone()
    changed[..., 6, 6] += 0.5
    difference = (net(changed) - net(x))[0].abs() > 0
    assert difference[4:9, 4:9].any()
    difference[4:9, 4:9] = False
    assert not difference.any()


# ---------------------------------------------------------------- the U-Net


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_logits_are_read_from_features_of_full_resolution(size, depth):
    torch.manual_seed(0)
    net, x = UNet(width=4, depth=depth).eval(), torch.rand(2, 3, *size)
    features = net.features(x)
    assert features.shape == (2, net.width, *size) == (2, 4, *size)
    torch.testing.assert_close(net.head(features).squeeze(1), net(x))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3)])
def test_the_smallest_images_are_read_alone_as_in_a_batch(size):
    """At their lowest resolution a group of channels may have one value, which PyTorch refuses alone."""
    net, x = UNet(width=4, depth=2).eval(), torch.rand(2, 3, *size)
    torch.testing.assert_close(net(x[:1]), net(x)[:1])


def test_width_doubles_and_resolution_halves_with_each_level():
    net = UNet(width=6, depth=3)
    shapes = []
    for down in net.down:
        down.register_forward_hook(lambda *args: shapes.append(tuple(args[-1].shape[1:])))
    net(torch.rand(1, 3, 20, 13))
    assert shapes == [(6, 20, 13), (12, 10, 7), (24, 5, 4), (48, 3, 2)]


def test_dropout_is_on_while_training_only():
    torch.manual_seed(0)
    net, x = UNet(width=4, depth=1, dropout=0.5), torch.rand(1, 3, 8, 8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


# ---------------------------------------------------------------- normalisation and initialisation


def test_images_are_centred_by_default():
    x = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3)
    assert Normalise(1)(x).flatten().tolist() == [-2.0, 0.0, 2.0]


def test_normalisation_is_fitted_to_each_channel_and_stored_with_the_weights():
    torch.manual_seed(0)
    images = torch.rand(5, 3, 6, 7) * torch.tensor([1.0, 0.2, 0.0]).view(3, 1, 1) + 0.1
    net = small_fcn()
    assert net.normalise.fit(images) is net.normalise
    seen = net.normalise(images)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.std((0, 2, 3), correction=0), torch.tensor([1.0, 1.0, 0.0]))
    other = small_fcn()
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(images), net(images))
    assert not any("normalise" in name for name, _ in net.named_parameters())


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution_keeps_the_size_or_its_part_rounded_up(stride, kernel):
    out = conv(2, 3, kernel, stride)(torch.zeros(1, 2, 10, 7))
    assert out.shape == (1, 3, math.ceil(10 / stride), math.ceil(7 / stride))


def test_convolution_starts_kaiming_uniform_with_zero_bias():
    torch.manual_seed(0)
    layer = conv(16, 64, 5)
    bound = math.sqrt(6 / (16 * 25))
    assert layer.bias.eq(0).all()
    assert 0.99 * bound < layer.weight.abs().max() <= bound


def test_an_enlarged_image_is_seen_as_if_it_had_been_enlarged_before():
    torch.manual_seed(0)
    net = UNet(width=4, depth=1, enlarge=3).eval()
    plain = UNet(width=4, depth=1).eval()
    plain.load_state_dict(net.state_dict())
    x = torch.rand(2, 3, 5, 7)
    large = F.interpolate(net.normalise(x), scale_factor=3, mode="bilinear", align_corners=False)
    plain.normalise = torch.nn.Identity()
    torch.testing.assert_close(net(x), F.avg_pool2d(plain(large), 3))
