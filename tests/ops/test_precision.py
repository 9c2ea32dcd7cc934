"""Who decides how a GPU multiplies; the flag is there without one."""

import pytest
import torch

from lossnet.ops import matmul_precision

MATMUL = torch.backends.cuda.matmul
pytestmark = pytest.mark.skipif(not hasattr(MATMUL, "fp32_precision"), reason="needs torch 2.9")
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _kept():
    before = MATMUL.fp32_precision
    yield
    MATMUL.fp32_precision = before


def test_full_products_within_rounded_ones():
    with matmul_precision(GPU, rounded=True):
        assert MATMUL.fp32_precision == "tf32"
        with matmul_precision(GPU, rounded=False):
            assert MATMUL.fp32_precision == "ieee"
        assert MATMUL.fp32_precision == "tf32"
    assert MATMUL.fp32_precision == "none"


def test_what_went_wrong_leaves_nothing_behind():
    with pytest.raises(KeyError), matmul_precision(GPU, rounded=True):
        raise KeyError
    assert MATMUL.fp32_precision == "none"


@pytest.mark.parametrize("chosen", ["ieee", "tf32"])
def test_what_the_user_chose_is_heeded(chosen):
    MATMUL.fp32_precision = chosen
    with matmul_precision(GPU, rounded=True):
        assert MATMUL.fp32_precision == chosen
    with matmul_precision(torch.device("cpu"), rounded=True):
        assert MATMUL.fp32_precision == chosen
    assert MATMUL.fp32_precision == chosen
