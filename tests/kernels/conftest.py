"""Kernels where they can be run: on a GPU, or without one in Triton's interpreter."""

from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch

from lossnet import kernels, spaces
from lossnet.methods import implicit
from lossnet.precision import products
from lossnet.training.engines import Eager

GPU = torch.cuda.is_available()
INTERPRETER = find_spec("triton") is not None


@pytest.fixture
def device(monkeypatch):
    """A GPU in steps of training; or a CPU, on which kernels are interpreted as if it were one."""
    if GPU:
        with products(torch.device("cuda"), rounded=True):
            yield torch.device("cuda")
        return
    if not INTERPRETER:
        pytest.skip("needs Triton")
    _interpret(monkeypatch)
    yield torch.device("cpu")


def _interpret(monkeypatch):
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    from lossnet.kernels import adamw, elementary, layers, losses

    class Functions:
        """What a GPU's library of functions has, which the interpreter does not know."""

        @staticmethod
        def expm1(x):
            return tl.exp(x) - 1

        @staticmethod
        def log1p(x):
            return tl.log(1 + x)

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        access = getattr(InterpreterBuilder, name)
        monkeypatch.setattr(InterpreterBuilder, name, _with_masks(access, place))
    for module in (adamw, elementary, layers, losses):
        if hasattr(module, "libdevice"):
            monkeypatch.setattr(module, "libdevice", Functions)
    for module in (adamw, layers):
        monkeypatch.setattr(module, "rounded", lambda x: x)  # an instruction of a GPU
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    bmm = torch.bmm

    def product(one, other, out_dtype=None):
        return bmm(one, other) if out_dtype is None else bmm(one.to(out_dtype), other.to(out_dtype))

    monkeypatch.setattr(torch, "bmm", product)
    exact = []

    class Products:
        """Where products must be exact, kernels step aside."""

        def __init__(self, device, rounded):
            self.rounded = rounded

        def __enter__(self):
            exact.append(not self.rounded)

        def __exit__(self, *_):
            exact.pop()

    monkeypatch.setattr(implicit, "products", Products)
    monkeypatch.setattr(spaces, "products", lambda device, rounded: nullcontext())
    monkeypatch.setattr(
        kernels, "_words_for", lambda *tensors: None if exact and exact[-1] else kernels._words.get()
    )
    monkeypatch.setattr(kernels, "several", lambda device: True)
    monkeypatch.setattr(Eager, "has_keys", True)


def _with_masks(access, place):
    """The interpreter makes numbers of masks that ``&`` joins, and then refuses them as masks."""

    def accessed(self, *handles):
        mask = handles[place]
        mask.data = mask.data.astype(bool)
        return access(self, *handles)

    return accessed
