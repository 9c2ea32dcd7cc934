"""What ``import lossnet`` has at hand, and what it costs."""

import importlib
import subprocess
import sys

import pytest

import lossnet

HEAVY = ("sklearn", "scipy", "yaml", "pooch", "rich", "pandas", "jsonargparse")


def loaded_by(code):
    """The heavy libraries that a statement imports in a new process."""
    code += f"\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_loads_nothing_beyond_what_torch_does():
    """Time is too noisy to compare in a test; what takes it is not."""
    assert loaded_by("import lossnet") <= loaded_by("import torch")


@pytest.mark.parametrize(
    "name", ["LearnedLoss", "MultiLabel", "energies", "hypergradient", "losses", "methods"]
)
def test_the_parts_for_ones_own_loop_load_torch_alone(name):
    assert loaded_by(f"import lossnet; lossnet.{name}") <= loaded_by("import torch")


@pytest.mark.parametrize("name", lossnet.__all__)
def test_every_public_name_is_there_and_listed(name):
    assert name in dir(lossnet)
    value = getattr(lossnet, name)
    assert value is getattr(lossnet, name)
    home = lossnet._HOMES.get(name)
    assert value is (
        getattr(importlib.import_module(f"lossnet.{home}"), name) if home else sys.modules[f"lossnet.{name}"]
    )


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'Clasifier'"):
        _ = lossnet.Clasifier


def test_types_are_published():
    assert importlib.resources.files("lossnet").joinpath("py.typed").is_file()
