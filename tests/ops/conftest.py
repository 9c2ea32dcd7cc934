"""Kernels where they can be run: on a GPU, or without one in Triton's interpreter."""

from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch


@pytest.fixture
def device(monkeypatch):
    """A GPU; or a CPU, on which kernels are interpreted as if it were one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed, and there is no GPU: `make triton` gets its interpreter")
    _interpret(monkeypatch)
    return torch.device("cpu")


def _interpret(monkeypatch):
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    from lossnet.ops._triton import adamw, losses, readout

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
    for module in (adamw, losses, readout):
        monkeypatch.setattr(module, "libdevice", Functions)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())


def _with_masks(access, place):
    """The interpreter makes numbers of masks that ``&`` joins, and then refuses them as masks."""

    def accessed(self, *handles):
        mask = handles[place]
        mask.data = mask.data.astype(bool)
        return access(self, *handles)

    return accessed
