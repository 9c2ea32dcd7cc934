"""Kernels against formulas in float64, and networks alone against the same beside others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lossnet import kernels
from lossnet.nets import MLP
from lossnet.precision import products
from lossnet.spaces import MultiLabel, Prediction

#: factors of products have 11 bits
ROUNDED = 2e-3


def words(networks=1, count=8):
    generator = torch.Generator().manual_seed(5)
    return torch.randint(2**62, (networks, count), generator=generator)


def near(found, expected, within=ROUNDED):
    assert found.shape == expected.shape
    assert (found.double() - expected).norm() <= within * expected.norm()


@pytest.fixture
def steps(device):
    """Training steps of one network."""
    with kernels.allowed(words().to(device)):
        yield


def test_torch_does_it_on_a_cpu_and_outside_of_steps():
    x, weight = torch.ones(4, 3), torch.ones(3, 2)
    with kernels.allowed(words()), products(torch.device("cuda"), rounded=True):
        assert kernels.layer(x, weight, None, upright=True) is None
        assert kernels.cross_entropy(x, x) is None
        assert kernels.candidates(x, x, 2, 2) is None
    if torch.cuda.is_available():
        assert kernels.layer(x.cuda(), weight.cuda(), None, upright=True) is None


def test_words_do_not_run_out():
    taken = kernels._Words(words(2, 3), sets=True)
    every = torch.stack([taken.take() for _ in range(3000)], 1)
    assert torch.equal(every[:, :3], words(2, 3))
    assert len(every.unique()) == 6000


@pytest.mark.filterwarnings("error")
def test_kernels_are_tried_out_where_no_gradient_is_wanted(device):
    for trial in (kernels.works, kernels._work):
        trial.cache_clear()
        with torch.no_grad():
            assert trial(device)
        trial.cache_clear()
    with torch.no_grad():
        kernels._beside(device)


def test_shapes_that_do_not_fit_are_left_to_torch(device, steps):
    x = torch.ones(4, 3, device=device)
    assert kernels.layer(x, torch.ones(2, 5, device=device), None, upright=True) is None
    assert kernels.layer(x[:0], torch.ones(3, 5, device=device), None, upright=True) is None
    assert kernels.read_out(x.view(2, 2, 3), torch.ones(1, 2, device=device)) is None
    assert kernels.cross_entropy(x, x[:, :2]) is None
    assert kernels.contrast(x, x[:, :1]) is None
    assert kernels.candidates(x, x[:2], 2, 2) is None
    drawn = kernels.candidates(x, x, 2, 2)
    assert kernels.weighed(drawn, x[:, :2]) is None
    with kernels.allowed(words().to(device), sets=False):
        assert kernels.candidates(x / 2, x / 2, 2, 2) is None


def test_inputs_that_lie_otherwise_have_the_same_second_derivatives(device, steps):
    torch.manual_seed(0)
    x = torch.randn(70, 33, device=device, requires_grad=True)
    weight = torch.randn(70, 41, device=device, requires_grad=True)
    out = kernels.layer(x.t(), weight, None, True, True)
    expected = F.softplus(x.double().t() @ weight.double())
    found = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    wanted = torch.autograd.grad(expected.sum(), x, create_graph=True)[0]
    for one in (x, weight):
        second = torch.autograd.grad((found**2).sum(), one, retain_graph=True)[0]
        near(second, torch.autograd.grad((wanted**2).sum(), one, retain_graph=True)[0], 4 * ROUNDED)


def layers(device, upright, networks, rows=33, inputs=70, outputs=41):
    torch.manual_seed(0)
    x = torch.randn(networks * rows, inputs, device=device, requires_grad=True)
    shape = (networks, inputs, outputs) if upright else (networks, outputs, inputs)
    weight = torch.randn(shape, device=device, requires_grad=True)
    bias = torch.randn(networks, outputs, device=device, requires_grad=True)
    return x, weight, bias


def formula(x, weight, bias, upright, active, kept):
    x, weight, bias = x.double(), weight.double(), bias.double()
    out = x.unflatten(0, (len(weight), -1)) @ (weight if upright else weight.mT) + bias.unsqueeze(1)
    out = F.softplus(out) if active else out
    return out.flatten(0, 1) * kept


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize(("active", "dropout"), [(False, 0.0), (True, 0.0), (True, 0.3)])
def test_a_layer_and_its_gradients(device, upright, networks, active, dropout):
    inputs = layers(device, upright, networks)
    with kernels.allowed(words(networks).to(device)):
        out = kernels.layer(*inputs, upright, active, dropout)
    kept = (out.detach() != 0).double() / (1 - dropout)
    assert abs(kept.mean().item() - 1) < 0.1
    expected = formula(*inputs, upright, active, kept)
    near(out, expected)
    slopes = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, slopes, retain_graph=True)
    wanted = torch.autograd.grad(expected, inputs, slopes.double(), create_graph=True)
    again = torch.autograd.grad(out, inputs, slopes, create_graph=True)
    for one, other, differentiable in zip(found, wanted, again, strict=True):
        near(one, other)
        near(differentiable, other)
    second = torch.autograd.grad(sum((one**2).sum() for one in again), inputs[:2])
    reference = torch.autograd.grad(sum((one**2).sum() for one in wanted), inputs[:2])
    for one, other in zip(second, reference, strict=True):
        near(one, other, 4 * ROUNDED)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_network_draws_alone_what_it_draws_beside_others(device, dropout):
    x, weight, bias = layers(device, upright=True, networks=3)
    drawn = words(3).to(device)
    with kernels.allowed(drawn):
        together = kernels.layer(x, weight, bias, True, True, dropout).chunk(3)
    with kernels.allowed(drawn[1:2]):
        alone = kernels.layer(x.chunk(3)[1], weight[1], bias[1], True, True, dropout)
    assert torch.equal(alone != 0, together[1] != 0)
    torch.testing.assert_close(alone, together[1], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_value_that_is_no_number_is_not_lost(device, steps):
    x, weight, bias = layers(device, upright=False, networks=1)
    for bad, active in ((float("nan"), True), (float("inf"), False)):
        with torch.no_grad():
            weight[0, 2, 3] = bad
        out = kernels.layer(x, weight, bias, False, active)
        assert not out[:, 2].isfinite().any()
        assert out[:, 3:].isfinite().all()
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert not gradient.isfinite().all()


@pytest.mark.parametrize("networks", [1, 3])
def test_the_read_out_of_an_energy(device, networks):
    torch.manual_seed(0)
    hidden = torch.randn(networks * 7, 11, 50, device=device, requires_grad=True)
    weights = torch.randn(networks, 1, 50, device=device, requires_grad=True)
    with kernels.allowed(words(networks).to(device)):
        found = kernels.read_out(hidden, weights)
    each = weights.double().repeat_interleave(7, 0)
    expected = (F.softplus(hidden.double()) * each).sum(-1)
    near(found, expected, 1e-5)
    slopes = torch.randn_like(found)
    given = torch.autograd.grad(found, (hidden, weights), slopes, retain_graph=True)
    wanted = torch.autograd.grad(expected, (hidden, weights), slopes.double(), retain_graph=True)
    again = torch.autograd.grad(found, (hidden, weights), slopes, create_graph=True)
    for one, differentiable, other in zip(given, again, wanted, strict=True):
        near(one, other, 1e-5)
        near(differentiable, other, 1e-5)


@pytest.mark.parametrize("width", [1, 21, 300])
def test_the_contrast_of_candidates(device, steps, width):
    torch.manual_seed(0)
    energies = (30 * torch.randn(9, width, device=device)).requires_grad_()
    offset = 30 * torch.randn(9, width, device=device)
    found = kernels.contrast(energies, offset)
    expected = -(offset.double() - energies.double()).log_softmax(1)[:, 0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    slopes = torch.randn_like(found)
    (given,) = torch.autograd.grad(found, energies, slopes, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, energies, slopes.double(), create_graph=True)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    (again,) = torch.autograd.grad(found, energies, slopes, create_graph=True)
    torch.testing.assert_close(again, wanted, rtol=1e-4, atol=1e-5)
    (second,) = torch.autograd.grad((again**2).sum(), energies)
    torch.testing.assert_close(
        second, torch.autograd.grad((wanted**2).sum(), energies)[0], rtol=1e-3, atol=1e-4
    )


def test_cross_entropy(device, steps):
    torch.manual_seed(0)
    logits = (20 * torch.randn(9, 983, device=device)).requires_grad_()
    truth = (torch.rand(9, 983, device=device) < 0.1).float()
    found = kernels.cross_entropy(logits, truth)
    expected = F.binary_cross_entropy_with_logits(logits.double(), truth.double(), reduction="none").sum(1)
    near(found, expected, 1e-6)
    (given,) = torch.autograd.grad(found.sum(), logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), logits)
    (again,) = torch.autograd.grad(found.sum(), logits, create_graph=True)
    for one in (given, again):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)
    (second,) = torch.autograd.grad(again.sum(), logits)
    sure = logits.detach().double().sigmoid()
    torch.testing.assert_close(second.double(), sure * (1 - sure), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        logits[3, 4] = float("nan")
    assert kernels.cross_entropy(logits, truth).isnan().tolist() == [row == 3 for row in range(9)]


@pytest.mark.parametrize("labels", [5, 8, 1500])
def test_candidates_are_the_truth_and_draws_by_chance(device, labels):
    torch.manual_seed(0)
    count = 1000 if device.type == "cuda" else 20  # an interpreter is slow
    logits, truth = 2 * torch.randn(6, labels, device=device), torch.ones(6, labels, device=device)
    truth[::2, 1:] = 0
    drawn = words(2).to(device)
    with kernels.allowed(drawn):
        found = kernels.candidates(logits, truth, samples=6, count=count)
    with kernels.allowed(drawn[1:]):
        alone = kernels.candidates(logits[3:], truth[3:], samples=6, count=count)
    assert found.shape == (count, 6, 7, labels)
    assert torch.equal(found[:, 3:], alone)
    assert (found[:, :, 0] == truth).all()
    samples = found[:, :, 1:]
    assert ((samples == 0) | (samples == 1)).all()
    assert (samples.mean((0, 2)) - logits.sigmoid()).abs().max() < 5 * (0.25 / (6 * count)) ** 0.5
    if count > 100:
        assert torch.corrcoef(samples[:, 0].flatten(1).T[:50]).fill_diagonal_(0).abs().max() < 0.2


@pytest.mark.parametrize("networks", [1, 2])
def test_drawn_sets_are_mixed_and_weighed(device, networks):
    torch.manual_seed(0)
    logits = torch.randn(networks * 16, 43, device=device, requires_grad=True)
    weight = torch.randn(networks, 43, 24, device=device, requires_grad=True)
    with kernels.allowed(words(networks).to(device)):
        every = kernels.candidates(logits.detach(), torch.zeros_like(logits), samples=20, count=3)
        drawn = every[1]
        mixed = kernels.layer(drawn, weight, None, upright=True)
        weighed, of_all = kernels.weighed(drawn, logits), kernels.weighed(every, logits)
        assert kernels.layer(drawn.clone(), weight, None, upright=True) is None
        assert kernels.weighed(drawn[:, 1:], logits) is None, "they do not lie together"
        drawn.mul_(2)
        assert kernels.weighed(drawn, logits) is None, "they have changed"
        drawn.div_(2)
    y = every.double()
    expected = y[1].unflatten(0, (networks, -1)).flatten(1, 2) @ weight.double()
    near(mixed.reshape(expected.shape), expected)
    slopes = torch.randn_like(mixed)
    (wanted,) = torch.autograd.grad(expected, weight, slopes.double().reshape(expected.shape))
    (given,) = torch.autograd.grad(mixed, weight, slopes, retain_graph=True)
    near(given, wanted, 3e-5)
    (again,) = torch.autograd.grad(mixed, weight, slopes.requires_grad_(), create_graph=True)
    near(again, wanted)
    assert again.requires_grad, "by the slopes"
    for found, sets in ((weighed, y[1]), (of_all, y)):
        expected = (sets * logits.double().unsqueeze(1)).sum(-1)
        near(found, expected, 3e-5)
        slopes = torch.randn_like(found)
        (wanted,) = torch.autograd.grad(expected, logits, slopes.double(), retain_graph=True)
        for again in (False, True):
            (given,) = torch.autograd.grad(found, logits, slopes, create_graph=again, retain_graph=True)
            near(given, wanted, 3e-5)


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e4, 0.0], ids="slopes {}".format)
def test_sets_interact_in_one_go(device, size):
    torch.manual_seed(0)
    networks, labels, hidden = 3, 43, 20
    logits = torch.randn(networks * 6, labels, device=device)
    mixing = torch.randn(networks, labels, hidden, device=device, requires_grad=True)
    weights = torch.randn(networks, 1, hidden, device=device, requires_grad=True)
    with kernels.allowed(words(networks).to(device)):
        (y,) = kernels.candidates(logits, torch.zeros_like(logits), samples=20, count=1)
        found = kernels.interact(y, mixing, weights)
        assert kernels.interact(y.clone(), mixing, weights) is None, "not drawn here"
        assert kernels.interact(y, mixing[0], weights[0]) is None, "one network"
        sets = y.double().unflatten(0, (networks, -1)).flatten(1, 2)
        expected = (F.softplus(sets @ mixing.double()) @ weights.double().mT).view(found.shape)
        near(found, expected)
        slopes = (
            size
            * torch.randn_like(found)
            * torch.logspace(-4, 0, 3, device=device).repeat_interleave(6)[:, None]
        )
        wanted = torch.autograd.grad(expected, (mixing, weights), slopes.double(), retain_graph=True)
        for create in (False, True):
            given = torch.autograd.grad(
                found, (mixing, weights), slopes, retain_graph=True, create_graph=create
            )
            for network in range(networks):
                for one, other in zip(given, wanted, strict=True):
                    near(one[network].detach(), other[network].double())
        scaled, summed = kernels.gradients((found * slopes).sum(), [mixing, weights])
        assert isinstance(scaled, kernels.Scaled)
        near(scaled.dense(), wanted[0].double())
        near(summed, wanted[1].double())


def test_a_network_in_kernels_is_the_same_network(device, steps):
    torch.manual_seed(0)
    net = MLP(50, hidden=60, layers=2, outputs=43).to(device)
    x, truth = torch.randn(32, 50, device=device), torch.ones(32, 43, device=device)
    ours = Prediction(MultiLabel(43), net(x)).cross_entropy(truth).mean()
    found = torch.autograd.grad(ours, list(net.parameters()))
    with kernels.allowed(None):
        theirs = Prediction(MultiLabel(43), net(x)).cross_entropy(truth).mean()
    expected = torch.autograd.grad(theirs, list(net.parameters()))
    near(ours.detach(), theirs.detach().double())
    for one, other in zip(found, expected, strict=True):
        near(one, other.double(), 2 * ROUNDED)


def test_whoever_hooks_a_module_is_called(device, steps):
    net = MLP(50, hidden=60, layers=2, outputs=43, dropout=0.1).to(device)
    called = []
    for place in (0, 1, 5):
        net[place].register_forward_hook(lambda module, inputs, out, place=place: called.append((place, out)))
    x = torch.randn(32, 50, device=device)
    net(x)
    assert [place for place, _ in called] == [0, 1, 5]
    near(called[1][1], F.softplus(called[0][1]).double(), 1e-6)
    net.eval()
    back = net[1].register_full_backward_hook(lambda *_: called.append("back"))
    net(x).sum().backward()
    assert called[-1] == "back"
    back.remove()
    hook = net[3].register_forward_pre_hook(lambda module, inputs: (0 * inputs[0],))
    near(net(x), nn.Sequential(*list(net)[3:])(torch.zeros(32, 60, device=device)).double())
    hook.remove()


class Layers(nn.Module):
    """Layers of each kind side by side, of ``R`` networks."""

    def __init__(self, networks):
        super().__init__()
        torch.manual_seed(3)
        self.networks = networks
        shapes = [(75, 40), (40,), (33, 40), (33,), (40, 20), (7,)]
        made = [nn.Parameter(torch.randn(networks, *shape) / 8) for shape in shapes]
        self.first, self.offset, self.second, self.shift, self.third, self.unused = made

    def forward(self, x):
        first = kernels.layer(x, self.first, self.offset, True, True)
        return kernels.layer(first, self.second, self.shift, False), kernels.layer(
            first, self.third, None, True
        )


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("rows", [9, 32, 45])
@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_a_step_along_gradients_that_are_never_written(device, networks, rows, clip):
    from lossnet.kernels import adamw

    net = Layers(networks).to(device)
    parameters = list(net.parameters())
    x = torch.randn(networks * rows, 75, device=device)
    with kernels.allowed(words(networks).to(device)):
        loss = sum(part.square().sum() for part in net(x))
        found = kernels.gradients(loss, parameters)
        written = torch.autograd.grad(sum(part.square().sum() for part in net(x)), parameters[:-1])
    assert found[-1] is None
    assert all(isinstance(one, kernels.Thin) for one in found[:-1])
    used = parameters[:-1]
    written, again = list(written), list(found[:-1])
    values = torch.nn.functional.pad(written[4], (0, 0, 0, 3)) * 4
    again[4] = kernels.Scaled(values, torch.full((networks,), 0.25, device=device), used[4].shape)
    for one, other in zip(found, written, strict=False):
        assert one.dense().shape == other.shape
        near(one.dense(), other.double(), 2 * ROUNDED)
    numbers = torch.linspace(1, 2, networks, device=device)
    results = []
    for gradients in (written, found[:-1], again):
        copies = [one.detach().clone() for one in used]
        moments = [
            [torch.rand(one.shape, generator=generator()).to(device) for one in used] for _ in range(2)
        ]
        steps = [torch.full((networks,), 3.0, device=device) for _ in used]
        options = numbers / 100, numbers / 10, numbers * clip, (0.9, 0.999), 1e-8
        norms = adamw.adamw(copies, gradients, *moments, steps, *options)
        results.append([*copies, *moments[0], *moments[1], norms])
        assert all((one == 4).all() for one in steps)
    for found in results[1:]:
        for one, other in zip(found, results[0], strict=True):
            near(one, other.double(), 1e-6)


def generator():
    return torch.Generator().manual_seed(5)


def test_what_is_added_up_is_written(device, steps):
    weight = torch.randn(20, 30, device=device, requires_grad=True)
    x = torch.randn(8, 20, device=device)

    def twice():
        return kernels.layer(kernels.layer(x, weight, None, True).relu() @ weight.t(), weight, None, True)

    (expected,) = torch.autograd.grad(twice().sum(), weight)
    (found,) = kernels.gradients(twice().sum(), [weight])
    near(found, expected.double(), ROUNDED)
    hook = weight.register_hook(lambda gradient: 2 * gradient)
    (found,) = kernels.gradients(kernels.layer(x, weight, None, True).sum(), [weight])
    near(found, 2 * x.sum(0).double().unsqueeze(1).expand(20, 30), ROUNDED)
    hook.remove()
    turned = torch.randn(30, 20, device=device).t().requires_grad_()
    (found,) = kernels.gradients(kernels.layer(x, turned, None, True).sum(), [turned])
    assert isinstance(found, torch.Tensor), "its numbers lie in another order"


@pytest.mark.parametrize("inputs", [75, 1100])
def test_inputs_in_use_come_first(device, inputs):
    from lossnet.kernels import inputs as room

    torch.manual_seed(0)
    x = torch.randn(3, 20, inputs, device=device) * (torch.rand(3, 20, inputs, device=device) < 0.03)
    x[0, 3, 5] = float("nan")
    x[2] = 0
    used = room.used(x)
    flags = (x != 0).any(1)
    assert used.count.tolist() == flags.sum(1).tolist()
    assert used.x.data_ptr() % 16 == 0
    assert used.x.shape[2] % 4 == 0
    for network in range(3):
        order, count = used.order[network].long(), used.count[network]
        assert order.sort().values.tolist() == list(range(inputs))
        assert order[:count].tolist() == flags[network].nonzero().flatten().tolist()
        torch.testing.assert_close(
            used.x[network, :, :inputs], x[network][:, order], equal_nan=True, rtol=0, atol=0
        )


def test_steps_may_wait_for_weights_of_inputs_that_are_not_in_use(device):
    from lossnet.kernels import adamw

    torch.manual_seed(0)
    networks, rows, options = 3, 9, ((0.9, 0.999), 1e-8)
    x = torch.randn(networks * rows, 150, device=device)
    x *= torch.rand(networks, 1, 150, device=device).expand(-1, rows, -1).reshape(-1, 150) < 0.6
    rates, decays, clips = torch.linspace(0.01, 0.3, 9, device=device).view(3, 3)
    results = []
    for waits in (False, True):
        weight = torch.randn(networks, 150, 70, generator=generator()).to(device).requires_grad_()
        with kernels.allowed(words(networks).to(device)):
            if waits:
                kernels.look_at(x)
            moments = [torch.rand(weight.shape, generator=generator()).to(device) for _ in range(2)]
            steps = torch.arange(3.0, device=device)
            for _ in range(4):
                loss = kernels.layer(x, weight, None, True, True).square().sum()
                (gradient,) = kernels.gradients(loss, [weight])
                assert (gradient.used is not None) == waits
                numbers = [[one] for one in (weight.detach(), gradient, *moments, steps)]
                norms = adamw.adamw(*numbers, rates, decays, clips, *options)
            if waits:
                adamw.settle(weight.detach(), *moments, steps, rates, decays, *options, gradient.used, 4)
            assert steps.tolist() == [4, 5, 6]
            results.append([gradient.dense(), weight.detach(), *moments, norms])
    assert (results[0][0] == 0).any()
    for one, other in zip(*results, strict=True):
        near(one, other.double(), 1e-5)


def test_inputs_are_known_as_they_were_looked_at(device):
    x = torch.randn(4, 6, device=device)
    weight = torch.randn(2, 6, 5, device=device, requires_grad=True)
    with kernels.allowed(words(2).to(device)):
        kernels.look_at(x)

        def used(inputs):
            return kernels.gradients(kernels.layer(inputs, weight, None, True).sum(), [weight])[0].used

        assert used(x) is not None
        assert used(x.clone()) is None
        assert used(x[:1].expand(4, 6)) is None
        x.add_(1)
        assert used(x) is None
    with kernels.allowed(words(2).to(device)):
        kernels.look_at(x.t().contiguous().t())
        kernels.look_at(torch.randn(2 * 200, 6, device=device))
        assert not kernels._words.get()._used
