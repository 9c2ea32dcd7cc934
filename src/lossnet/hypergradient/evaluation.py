"""Extra evaluations of a loss that leave no trace: same random numbers, buffers as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["Layout", "RandomState", "evaluate", "first_order"]


def evaluate(loss: Tensor | Callable[[], Tensor], name: str) -> Tensor:
    """The scalar with its graph, ``()``; a callable's modules keep their buffers (batch-norm statistics)."""
    if callable(loss):
        with torch.enable_grad(), kept_buffers():
            loss = loss()
    if loss.numel() != 1:
        raise ValueError(f"the {name} loss must be a scalar, not of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError(f"the {name} loss has no graph: it depends on no parameter, or was made in no_grad")
    return loss


def first_order(loss: Tensor, targets: Sequence[Tensor], create_graph: bool = False) -> tuple[Tensor, ...]:
    """Gradients like ``targets``, 0 where the loss does not reach; the graph stays usable."""
    with torch.autocast(loss.device.type, enabled=False):  # backward has the types of the forward pass
        return torch.autograd.grad(
            loss,
            targets,
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )


@contextmanager
def kept_buffers() -> Iterator[None]:
    """Puts back the buffers of every module called inside, whoever calls it.

    >>> norm = nn.BatchNorm1d(2)
    >>> with kept_buffers():
    ...     _ = norm(torch.randn(4, 2))
    >>> norm.running_mean, int(norm.num_batches_tracked)
    (tensor([0., 0.]), 0)
    """
    kept: dict[nn.Module, dict[str, tuple[Tensor, Tensor]]] = {}

    def keep(module: nn.Module, _: object) -> None:
        if module not in kept:
            own = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
            kept[module] = {name: (buffer, buffer.detach().clone()) for name, buffer in own.items()}

    hook = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
        for module, buffers in kept.items():
            for name, (buffer, content) in buffers.items():
                buffer.data.copy_(content)  # through ``data``: graphs made before stay valid
                module._buffers[name] = buffer


class RandomState:
    """Torch's random numbers on the CPU and on a tensor's device, as they are now."""

    def __init__(self, like: Tensor) -> None:
        self.cpu = torch.get_rng_state()
        self.device = like.device if like.is_cuda else None
        self.cuda = torch.cuda.get_rng_state(self.device) if self.device is not None else None

    def restore(self) -> None:
        """Draws begin again from here."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None and self.device is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


class Layout:
    """Parameters end to end in one vector ``(n,)``, in their common precision and at least float32."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = tuple(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.dtype = torch.float32
        for parameter in self.parameters:
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors like the parameters as a vector."""
        return torch.cat([tensor.reshape(-1).to(self.dtype) for tensor in tensors])

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector as tensors like the parameters."""
        parts = zip(vector.split(self.sizes), self.parameters, strict=True)
        return tuple(part.view(parameter.shape).to(parameter.dtype) for part, parameter in parts)
