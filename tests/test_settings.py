import dataclasses

import pytest
import yaml

from lossnet import settings as room
from lossnet.build import build, default_loss
from lossnet.data import Lexicon, Vocabulary
from lossnet.settings import (
    RecipeError,
    Settings,
    default_recipe,
    find_recipe,
    read_recipe,
    recipe_names,
    recipe_names_of,
    recipe_settings,
)
from lossnet.tasks import LabelTask, TagTask


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# ---------------------------------------------------------------- the recipes that we ship


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_builds(name):
    path = find_recipe(name)
    read = read_recipe(path)
    written = yaml.safe_load(path.read_text())
    assert set(read) == set(written)
    for key, value in written.items():
        assert read[key] == type(read[key])(value), key
    names = recipe_names_of(name)
    assert name.removesuffix("-none").find(names["method"]) > 0
    settings = Settings(**recipe_settings("", "", "", name))
    small = dataclasses.replace(settings, task_hidden=4, energy_hidden=4, global_hidden=2)
    loss = names.get("loss", default_loss(names["method"]))
    task = LabelTask.of_size(3, 2) if loss != "likelihood" else TagTask(Lexicon(Vocabulary(), ("N", "V")))
    assert build(names["method"], loss, small, task).predictors


def test_there_are_recipes_for_the_papers_tables():
    names = recipe_names()
    for dataset in ("bibtex", "delicious", "cal500", "genbase", "eurlexev", "expr_fun", "spo_fun"):
        for method in ("cross-entropy", "seal-nce", "seal-margin", "spen", "dvn", "nce-energy"):
            assert f"{dataset}-{method}" in names


def test_types_come_back_as_the_settings_have_them():
    read = read_recipe(find_recipe("bibtex-seal-nce"))
    for field in dataclasses.fields(Settings):
        if field.name in read:
            assert type(read[field.name]) is type(field.default), field.name


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-05", 1e-5),
        ("1e-5", 1e-5),
        ("4.513e-05", 4.513e-5),
        ("1", 1.0),
        ("0.25", 0.25),
        ("'2'", 2.0),
    ],
)
def test_numbers_as_people_write_them(recipe, text, value):
    read = read_recipe(recipe(f"weight_decay: {text}\n"))
    assert read == {"weight_decay": value}
    assert type(read["weight_decay"]) is float


def test_words_flags_and_comments(recipe):
    text = "# mine\nconditioned: true\ninference_start: net\nsamples: 3\n"
    read = read_recipe(recipe(text))
    assert read == {"conditioned": True, "inference_start": "net", "samples": 3}


def test_an_empty_recipe_changes_nothing(recipe):
    assert read_recipe(recipe("# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("samples: [1\n", "not valid YAML"),
        ("a: b: c\n", "not valid YAML"),
        ("- samples\n- 3\n", "expected 'setting: value' lines, found list"),
        ("just words\n", "expected 'setting: value' lines, found str"),
        ("sample: 3\n", "unknown setting 'sample'; known are energy_weight"),
        ("3: 3\n", "unknown setting 3"),
        ("samples: many\n", "samples cannot be 'many'"),
        ("samples: 2.5\n", "samples cannot be 2.5"),
        ("samples: true\n", "samples cannot be True"),
        ("samples:\n", "samples cannot be None"),
        ("energy_lr: fast\n", "energy_lr cannot be 'fast'"),
        ("energy_lr: true\n", "energy_lr cannot be True"),
        ("energy_lr: [1, 2]\n", r"energy_lr cannot be \[1, 2\]"),
        ("conditioned: 1\n", "conditioned cannot be 1"),
        ("conditioned: maybe\n", "conditioned cannot be 'maybe'"),
        ("inference_start: anywhere\n", "inference_start cannot be 'anywhere'"),
        ("inference_start: [net]\n", "inference_start cannot be"),
    ],
)
def test_a_bad_recipe_is_an_error_that_names_the_file(recipe, text, message):
    path = recipe(text)
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_recipe_in_another_encoding_is_an_error(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes("# für später\n".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"mine\.yaml: "):
        read_recipe(path)


def test_yaml_runs_nothing(recipe, tmp_path):
    path = recipe(f"samples: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    with pytest.raises(RecipeError, match="not valid YAML"):
        read_recipe(path)
    assert not (tmp_path / "made").exists()


# ---------------------------------------------------------------- finding


def test_a_recipe_is_found_by_name_file_name_or_path(recipe):
    path = recipe("samples: 3\n")
    assert find_recipe(str(path)) == path
    by_name = find_recipe("bibtex-seal-nce")
    assert by_name == find_recipe("bibtex-seal-nce.yaml")
    assert by_name.is_file()


def test_a_missing_recipe_names_those_that_exist(tmp_path):
    for name in ("bibtex-seal-nice", str(tmp_path), str(tmp_path / "no.yaml")):
        with pytest.raises(RecipeError, match=r"no recipe .*bibtex-seal-nce"):
            find_recipe(name)


def test_the_losss_own_recipe_comes_before_the_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "recipe_folder", lambda: tmp_path)
    assert default_recipe("mine", "seal", "nce") is None
    (tmp_path / "mine-seal.yaml").touch()
    assert default_recipe("mine", "seal", "nce").name == "mine-seal.yaml"
    (tmp_path / "mine-seal-nce.yaml").touch()
    assert default_recipe("mine", "seal", "nce").name == "mine-seal-nce.yaml"
    assert default_recipe("mine", "seal", "margin").name == "mine-seal.yaml"
    assert default_recipe("mine", "seal", None).name == "mine-seal.yaml"
    assert default_recipe("mine", "dvn", "regression") is None
    assert default_recipe("other", "seal", "nce") is None


def test_a_file_elsewhere_is_no_data_set_with_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine-seal.yaml").touch()
    (tmp_path / "mine-seal.yaml").touch()
    monkeypatch.setattr(room, "recipe_folder", lambda: tmp_path / "recipes")
    assert default_recipe("../mine", "seal", "nce") is None


# ---------------------------------------------------------------- values


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
