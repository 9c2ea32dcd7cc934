import dataclasses
import subprocess
import sys

import pytest

from lossnet.settings import GROUPS, Settings, all_settings, checked


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", -1),
        ("samples", 0),
        ("task_hidden", 0),
        ("task_layers", 0),
        ("energy_steps", 0),
        ("task_steps", 0),
        ("task_lr", 0.0),
        ("energy_lr", -1e-3),
        ("energy_lr", float("nan")),
        ("clip", 0.0),
        ("patience", 0),
        ("inference_candidates", 0),
        ("task_dropout", 1.0),
        ("energy_dropout", -0.1),
        ("plateau_factor", 1.0),
        ("patches", 1.1),
        ("patches", -0.1),
        ("patches", float("nan")),
        ("image_enlarge", 0),
        ("image_enlarge", 9),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("perturb_std", -1.0),
        ("inference_steps", -1),
        ("plateau_patience", -1),
    ],
)
def test_values_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} must"):
        Settings(**{name: value})


def test_every_image_may_have_a_rectangle_of_another():
    assert Settings(patches=1.0).patches == 1.0


def test_settings_cannot_be_changed_behind_our_back():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().epochs = 3


def test_the_implicit_term_needs_an_energy_step_to_be_in():
    with pytest.raises(ValueError, match="implicit_every must be at most energy_steps=2, not 3"):
        Settings(energy_steps=2, implicit_every=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task_layers": 101}, "task_layers must be above 0 and at most 100, not 101"),
        ({"task_dropout": 1.5}, "task_dropout must be at least 0 and below 1, not 1.5"),
        ({"inference_steps": -1}, "inference_steps must be at least 0 and at most 10000, not -1"),
        ({"solver": "exact"}, "solver cannot be .exact.; there are identity, neumann"),
    ],
)
def test_a_value_out_of_bounds_is_an_error_that_says_the_bounds(values, message):
    with pytest.raises(ValueError, match=message):
        Settings(**values)
    if "solver" not in values:
        with pytest.raises(ValueError, match=message):
            checked(values)


# ---------------------------------------------------------------- groups and help


def test_every_setting_has_one_group_and_a_line_of_help():
    names = [field.name for field in dataclasses.fields(Settings)]
    assert [one.name for group in GROUPS for one in all_settings().values() if one.group == group] == names
    for one in all_settings().values():
        assert one.help
        assert not one.help.endswith(".")
        assert one.group in GROUPS
        assert f"{one.name}: {one.help}." in Settings.__doc__


def test_defaults_are_within_bounds_and_so_is_where_a_search_looks():
    for one in all_settings().values():
        one.check(one.default)
        for end in one.search or ():
            one.check(end)


def test_settings_and_recipes_are_read_without_torch():
    # The package itself is not imported: this is about what these two modules need.
    code = (
        "import importlib.util, sys, types\n"
        "package = types.ModuleType('lossnet')\n"
        "package.__path__ = importlib.util.find_spec('lossnet').submodule_search_locations\n"
        "sys.modules['lossnet'] = package\n"
        "from lossnet.recipes import recipe_settings\n"
        "assert recipe_settings('bibtex', 'seal', 'nce')\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
