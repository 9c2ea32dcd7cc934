"""A conditional flow: a density of masks given their images, by a map to noise that can be inverted."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet.nets.fcn import FCN, UNet, conv


class FlowStep(nn.Module):
    """A step of `MaskFlow`, for maps ``u`` ``(batch, channels, height, width)`` beside features ``c``.

    ::

        u ← (u + b(c)) ⊙ exp s(c)                         actnorm, which sees the image
        u ← W u                                           a 1×1 convolution
        u ← [u_1, (u_2 + t(u_1, c)) ⊙ exp r(u_1, c)]      coupling of the halves of the channels

    ``W`` starts as a rotation, all else as the identity.  Scales ``s`` and ``r`` are between −2 and 2.

    >>> step, u, c = FlowStep(channels=4, features=3), torch.randn(2, 4, 5, 6), torch.randn(2, 3, 5, 6)
    >>> z, log_det = step(u, c)
    >>> log_det.shape, torch.allclose(step.inverse(z, c), u, atol=1e-5)
    (torch.Size([2]), True)
    """

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        self.kept = channels // 2
        self.norm = _still(features, 2 * channels)
        self.mixing = nn.Parameter(nn.init.orthogonal_(torch.empty(channels, channels)))
        self.coupling = nn.Sequential(
            conv(self.kept + features, features, 3),
            nn.SiLU(),
            conv(features, features, 1),
            nn.SiLU(),
            _still(features, 2 * (channels - self.kept)),
        )

    def forward(self, u: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step's output and ``log |det ∂step/∂u|``, ``(batch,)``."""
        shift, scale = _affine(self.norm(c))
        u = torch.einsum("ij,bjhw->bihw", self.mixing, (u + shift) * scale.exp())
        kept, rest = u.tensor_split([self.kept], 1)
        further, more = _affine(self.coupling(torch.cat([kept, c], 1)))
        pixels = u.shape[2] * u.shape[3]
        log_det = scale.flatten(1).sum(1) + pixels * torch.linalg.slogdet(self.mixing).logabsdet
        return torch.cat([kept, (rest + further) * more.exp()], 1), log_det + more.flatten(1).sum(1)

    def inverse(self, z: Tensor, c: Tensor) -> Tensor:
        """Return the input of which the step makes ``z``."""
        kept, rest = z.tensor_split([self.kept], 1)
        further, more = _affine(self.coupling(torch.cat([kept, c], 1)))
        u = torch.cat([kept, rest * (-more).exp() - further], 1)
        u = torch.einsum("ij,bjhw->bihw", torch.linalg.inv(self.mixing), u)
        shift, scale = _affine(self.norm(c))
        return u * (-scale).exp() - shift


class MaskFlow(nn.Module):
    """A density ``p(v | x)`` of dequantised masks of images, the flow of cGLOW (Lu & Huang 2020).

    ``log p(v | x) = log N(z; 0, I) + log |det ∂z/∂v|``, ``z = f(v; x)``: on each level, 2×2 pixels become
    the channels of one and ``steps`` of `FlowStep` follow, which see the encoder's features at that
    resolution.  A mask ``y`` is dequantised as ``v = y + u − 1``, ``u`` uniform in [0, 1): the mean of
    ``−log p(v | x)`` over ``u`` is no less than ``−log P(y | x)``.

    The paper also makes ``W`` of the image, takes half of the channels out after each level, and has
    networks of its own for the image; here all of it is one encoder.

    Args:
        encoder: an `FCN` or `UNet`, of which only the features are used.
        levels: how often the resolution is halved.
        steps: of each level.

    >>> flow = MaskFlow(FCN(3, (4, 8, 8)), levels=2, steps=1)
    >>> x = torch.rand(2, 3, 10, 7)  # sides of no multiple of 4 are padded
    >>> flow.losses(x, torch.ones(2, 10, 7)).shape, flow.sample(x, 5).shape
    (torch.Size([2]), torch.Size([2, 5, 10, 7]))
    """

    def __init__(self, encoder: FCN | UNet, levels: int = 3, steps: int = 4) -> None:
        super().__init__()
        encoder.head = nn.Identity()  # type: ignore[assignment]  # logits of pixels are not asked for
        self.encoder, width = encoder, encoder.width
        self.down = nn.ModuleList(conv(width, width, 3, stride=2) for _ in range(levels))
        self.of_level = steps
        self.steps = nn.ModuleList(
            FlowStep(4**level, width) for level in range(1, levels + 1) for _ in range(steps)
        )

    def conditions(self, x: Tensor) -> list[Tensor]:
        """Return features of images, ``(batch, width, …)``, at the resolution of each level."""
        seen = [self._padded(self.encoder.features(x))]
        for down in self.down:
            seen.append(F.silu(down(seen[-1])))
        return seen[1:]

    def forward(self, v: Tensor, conditions: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``z`` and ``log |det ∂z/∂v|`` ``(batch,)`` of ``v`` ``(batch, 1, height, width)``."""
        log_det = v.new_zeros(len(v))
        for number, step in enumerate(self.steps):
            if number % self.of_level == 0:
                v = F.pixel_unshuffle(v, 2)
            v, more = step(v, conditions[number // self.of_level])
            log_det = log_det + more
        return v, log_det

    def inverse(self, z: Tensor, conditions: list[Tensor]) -> Tensor:
        """Return the ``v`` ``(batch, 1, height, width)`` of which `forward` makes ``z``."""
        for number, step in reversed([*enumerate(self.steps)]):
            assert isinstance(step, FlowStep)
            z = step.inverse(z, conditions[number // self.of_level])
            if number % self.of_level == 0:
                z = F.pixel_shuffle(z, 2)
        return z

    def log_density(self, v: Tensor, conditions: list[Tensor]) -> Tensor:
        """Return ``log p(v | x)``, ``(batch,)``."""
        z, log_det = self(v, conditions)
        density: Tensor = log_det - (z.square() + math.log(2 * math.pi)).flatten(1).sum(1) / 2
        return density

    def losses(self, x: Tensor, truth: Tensor) -> Tensor:
        """Return ``−log p(v | x)``, ``(batch,)``, of masks ``(batch, height, width)`` with fresh noise."""
        y = self._padded(truth.unsqueeze(1))
        return -self.log_density(y + torch.rand_like(y) - 1, self.conditions(x))

    def sample(self, x: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Return dequantised masks drawn from ``p(v | x)``, ``(batch, count, height, width)``.

        Positive pixels are foreground.  Two by two, they are made of opposite noise, ``z`` and ``−z``, so
        that their mean has a smaller error.  Noise comes from ``generator``, the device's own by default, and
        is the same for all images of a batch, so that none depends on the others.
        """
        conditions = self.conditions(x)
        last, (height, width) = conditions[-1], x.shape[-2:]
        shape = (1, 4 ** len(self.down), *last.shape[2:])
        drawn: list[Tensor] = []
        while len(drawn) < count:  # not all together, which would take as many times the memory
            z = torch.randn(shape, dtype=last.dtype, device=last.device, generator=generator)
            z = z.expand(len(x), -1, -1, -1)
            drawn += [self.inverse(noise, conditions)[:, 0, :height, :width] for noise in (z, -z)]
        return torch.stack(drawn[:count], 1)

    def _padded(self, maps: Tensor) -> Tensor:
        """Return maps with zeros behind them, so that each level can halve their sides."""
        height, width = (-side % 2 ** len(self.down) for side in maps.shape[-2:])
        return F.pad(maps, (0, width, 0, height))


def _still(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 3×3 convolution that gives zeros at first."""
    layer = conv(inputs, outputs, 3)
    nn.init.zeros_(layer.weight)
    return layer


def _affine(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Return shifts and scales, the latter as logarithms, from the two halves of channels."""
    shift, scale = parameters.chunk(2, 1)
    return shift, 2 * torch.tanh(scale / 2)
