"""Networks for whole sentences and images: features of tokens or pixels, averaged."""

from __future__ import annotations

from torch import Tensor, nn

from lossnet.nets.fcn import FCN, UNet
from lossnet.nets.layers import linear
from lossnet.nets.recurrent import BiLSTM, Tokens

__all__ = ["PooledImages", "PooledTokens"]


class _Pooled(nn.Module):
    """Features ``(batch, width)`` of whole inputs or, given ``outputs``, logits ``(batch, outputs)``."""

    def __init__(self, encoder: nn.Module, width: int, outputs: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.width = width
        self.head = nn.Identity() if outputs is None else linear(width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Return what the logits are read from, ``(batch, self.width)``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, or features where there is no head."""
        outputs: Tensor = self.head(self.features(x))
        return outputs


class PooledTokens(_Pooled):
    """The mean of a `BiLSTM`'s states over the tokens of each sentence, padding left out.

    >>> import torch
    >>> from lossnet.nets import WordVectors
    >>> net = PooledTokens(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), outputs=3)
    >>> net(torch.tensor([[[3], [2], [0]]])).shape
    torch.Size([1, 3])
    """

    def __init__(self, encoder: BiLSTM, outputs: int | None = None) -> None:
        super().__init__(encoder, encoder.width, outputs)

    def features(self, x: Tensor) -> Tensor:
        tokens: Tokens = self.encoder(x)
        return tokens.states.sum(1) / tokens.mask.sum(1, keepdim=True).clamp(min=1)


class PooledImages(_Pooled):
    """The mean of a network's features over the pixels of each image.

    >>> import torch
    >>> PooledImages(FCN(3, (4, 8, 8)), width=4, outputs=3)(torch.rand(2, 3, 9, 7)).shape
    torch.Size([2, 3])
    """

    def __init__(self, encoder: FCN | UNet, width: int, outputs: int | None = None) -> None:
        encoder.head = nn.Identity()  # type: ignore[assignment]  # logits of pixels are not asked for
        super().__init__(encoder, width, outputs)

    def features(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.encoder.features(x)  # type: ignore[operator]
        return pixels.mean((2, 3))
