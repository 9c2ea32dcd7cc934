from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real data sets; tests that need it are skipped where there is none."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    for folder in (os.environ.get("LOSSNET_DATA"), beside):
        if folder and Path(folder).is_dir():
            return Path(folder)
    pytest.skip("no real data sets here: set LOSSNET_DATA to the folder that has them")


@pytest.fixture(autouse=True)
def _no_data_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest):
    """Tests must not find data sets that happen to be on this machine, nor write to its cache."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("LOSSNET_DATA", raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setattr("pooch.os_cache", lambda name: cache / name)
