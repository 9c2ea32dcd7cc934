"""cGLOW: masks from a conditional flow (Lu & Huang 2020)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lossnet.methods.base import Method, Stage, Update
from lossnet.methods.spec import MethodSpec
from lossnet.nets import MaskFlow
from lossnet.spaces import Batch, Mask
from lossnet.trees import Tree, first_leaf

#: masks that a prediction is the mean of
SAMPLES = 10


class CGLOW(Method):
    """A flow trained on the likelihood of masks, which predicts by the mean of samples (Lu & Huang 2020).

    ``L = −log p(v | x)`` of the dequantised truth ``v`` (`MaskFlow`), and ``P(y_i = 1 | x)`` is about
    ``½ + 1/M Σ_m v_i⁽ᵐ⁾`` over samples ``v⁽ᵐ⁾`` of ``p(v | x)``, kept within [0, 1].  Every prediction draws
    the same noise, so that the same inputs give the same output.

    Args:
        task_net: the flow, with its encoder.
        space: masks.
        samples: ``M``.

    >>> from lossnet.nets import FCN
    >>> method = CGLOW(MaskFlow(FCN(3, (4, 8, 8)), levels=2, steps=1), Mask())
    >>> x = torch.rand(2, 3, 8, 8)
    >>> [update.network for update in method.updates(Batch(x, torch.ones(2, 8, 8)))]
    ['task_net']
    >>> torch.equal(method.predict(x), method.predict(x))
    True
    """

    predictors = ("task_net",)
    task_net: MaskFlow

    def __init__(self, task_net: MaskFlow, space: Mask, samples: int = SAMPLES) -> None:
        super().__init__()
        self.space, self.task_net, self.samples = space, task_net, samples

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("task net", ("task_net",), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        yield Update("task_net", batch.mean(self.task_net.losses(batch.x, batch.y)))

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        generator = torch.Generator(first_leaf(x).device).manual_seed(0)
        drawn = self.task_net.sample(x, self.samples, generator)
        return self.space.project(0.5 + drawn.mean(1), mask)


SPEC = MethodSpec(
    "cglow",
    CGLOW,
    "a conditional flow, which draws masks from noise (masks only)",
    losses={"likelihood": None},
    rates={"task_net": "task_lr"},
    search=("task_dropout",),
    build=lambda parts: CGLOW(
        MaskFlow(parts.encoder()),  # type: ignore[arg-type]
        parts.space,  # type: ignore[arg-type]
    ),
    spaces=(Mask,),
)
