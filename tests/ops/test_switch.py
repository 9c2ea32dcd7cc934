import subprocess
import sys

import pytest
import torch

from lossnet import ops
from lossnet.ops import switch


def keys(networks=1, count=8):
    return torch.randint(2**62, (networks, count), generator=torch.Generator().manual_seed(5))


def test_kernels_are_off_unless_asked_for():
    assert not ops.kernels_enabled()
    code = "from lossnet import ops; print(ops.kernels_enabled())"
    for value, expected in (("1", "True"), ("0", "False"), ("", "False")):
        environment = {"LOSSNET_KERNELS": value, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.strip() == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels can be had on a GPU")
def test_kernels_that_cannot_be_had_are_missed_aloud_and_references_do_the_work():
    with pytest.warns(UserWarning, match=r"kernels are not used: (Triton is not installed|there is no GPU)"):
        asked = ops.use_kernels()
    with asked, ops.accelerated(keys()):
        assert ops.kernels_enabled()
        assert not switch.kernels_fit(torch.ones(2, 3))
        assert ops.contrast(torch.zeros(1, 4), torch.zeros(1, 4)).item() == pytest.approx(1.3863, abs=1e-4)
    assert not ops.kernels_enabled()


def test_a_device_on_which_kernels_fail_is_named_once_with_the_reason(monkeypatch):
    monkeypatch.setattr(switch, "_missing", lambda: None)
    monkeypatch.setattr("lossnet.ops._triton.try_out", lambda device: 1 / 0)
    switch.works.cache_clear()
    with pytest.warns(UserWarning, match="kernels are not used: division by zero"):
        assert not switch.works(torch.device("cpu"))
    assert not switch.works(torch.device("cpu"))
    switch.works.cache_clear()


def test_keys_do_not_run_out(monkeypatch):
    monkeypatch.setattr(switch, "_fit", lambda tensors: True)
    monkeypatch.setattr(switch, "_enabled", True)
    with ops.accelerated(keys(2, 3)):
        every = torch.stack([switch.rng_key() for _ in range(3000)], 1)
    assert torch.equal(every[:, :3], keys(2, 3))
    assert len(every.unique()) == 6000
    with ops.accelerated(keys(), truth_is_sets=False):
        assert switch.rng_key() is None
    with ops.accelerated(None):
        assert switch.rng_key() is None
        assert not switch.kernels_fit(torch.ones(2))
