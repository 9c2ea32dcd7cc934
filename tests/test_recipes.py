import dataclasses
import hashlib
import json

import pytest
from torch import nn

from lossnet import recipes as room
from lossnet.build import build, default_loss
from lossnet.data import Lexicon, TagSet, Vocabulary
from lossnet.inputs import Images, Words
from lossnet.outputs import Masks, Roles, Tags
from lossnet.recipes import (
    RecipeError,
    default_recipe,
    find_recipe,
    read_recipe,
    recipe_folder,
    recipe_names,
    recipe_names_of,
    recipe_settings,
)
from lossnet.settings import Settings
from lossnet.task import Task


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# ---------------------------------------------------------------- the recipes that we ship


#: of the method, loss and settings of each data set's recipes, with what they extend
DIGESTS = {
    "bibtex": "60b0da3d523de776",
    "cal500": "7025703df95e984d",
    "conll2003": "fff84c97f3d3e2b3",
    "cora-citations": "fc1a4b8cc16957b0",
    "delicious": "17f230e65c4dd64b",
    "digits-completion": "9d0443d519d5c3de",
    "digits-pairs": "3a57aa93a856e3c5",
    "digits-scenes": "40a421da5aff7f97",
    "eurlexev": "22d0f1351383e088",
    "ewt-propbank": "71b233df7998243f",
    "ewt-trees": "9f8cfabb17ab4eeb",
    "expr_fun": "255284d13debfb9a",
    "genbase": "1ead286e21bf294c",
    "horses": "943af0046439d749",
    "spo_fun": "72dbd3d48931def0",
    "twitter-pos": "35a4237890b81ead",
}


def of_data_set(name):
    """All recipes of a data set, resolved."""
    recipes = [recipe for recipe in recipe_names() if recipe.startswith(f"{name}/")]
    return {recipe.split("/")[1]: read_recipe(find_recipe(recipe)) for recipe in recipes}


@pytest.mark.parametrize("name", DIGESTS)
def test_recipes_change_on_purpose_only(name):
    content = json.dumps(of_data_set(name), sort_keys=True)
    assert hashlib.sha256(content.encode()).hexdigest()[:16] == DIGESTS[name]


def test_no_data_set_is_without_a_digest():
    assert {name.split("/")[0] for name in recipe_names()} == set(DIGESTS)
    assert len(recipe_names()) == 187


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "bibtex/seal-nce",
            {
                "energy_weight": 5.515,
                "ce_weight": 1.0,
                "samples": 20,
                "energy_steps": 12,
                "task_steps": 5,
                "energy_lr": 4.513e-05,
                "task_lr": 0.001168,
                "weight_decay": 1e-05,
                "task_layers": 2,
                "task_hidden": 400,
                "task_dropout": 0.5,
                "energy_layers": 2,
                "energy_hidden": 400,
                "energy_dropout": 0.5,
                "global_hidden": 200,
                "batch_size": 32,
                "epochs": 300,
                "patience": 20,
                "clip": 10.0,
                "energy_limits": False,
                "last_layer_dropout": False,
                "output_bias": False,
                "global_bias": True,
                "schedule": "nested",
                "inference_update": "gradient",
                "inference_optimizer": "adam",
                "method": "seal",
                "loss": "nce",
            },
        ),
        (
            "horses/cross-entropy-none-unet-enlarged",
            {
                "image_net": "unet",
                "image_width": 32,
                "image_enlarge": 2,
                "crop": 28,
                "flips": True,
                "batch_size": 16,
                "epochs": 800,
                "patience": 800,
                "plateau_patience": 80,
                "task_lr": 0.001,
                "weight_decay": 0.01,
                "warp": 0.2,
                "colour": 0.2,
                "patches": 0.5,
                "task_dropout": 0.2,
                "method": "cross-entropy",
                "loss": "none",
            },
        ),
        (
            "conll2003/infnet",
            {
                "features": "ner",
                "energy_lr": 0.001,
                "task_lr": 0.001,
                "weight_decay": 1e-05,
                "task_hidden": 128,
                "task_dropout": 0.3,
                "energy_hidden": 128,
                "energy_dropout": 0.3,
                "batch_size": 32,
                "epochs": 12,
                "patience": 10,
                "clip": 10.0,
                "method": "infnet",
            },
        ),
    ],
)
def test_a_recipe_with_all_that_it_extends(name, wanted):
    assert read_recipe(find_recipe(name)) == wanted


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds_the_method_that_its_file_is_named_after(name):
    names = recipe_names_of(name)
    method, loss = names["method"], names.get("loss", default_loss(names["method"]))
    stem = name.split("/")[1]
    assert stem == method or stem == f"{method}-{loss}" or stem.startswith(f"{method}-{loss}-")
    settings = Settings(**recipe_settings("", "", "", name))
    small = dataclasses.replace(settings, task_hidden=4, energy_hidden=4, global_hidden=2)
    words = Words(Lexicon(Vocabulary()))
    of_others = {
        "cglow": Task(Images(channels=1, size=(8, 8)), Masks()),
        "structured-tuning": Task(words, Roles(TagSet(("O", "B-A0", "I-A0"), "IOB2"))),
        **dict.fromkeys(("crf", "expectation"), Task(words, Tags(TagSet(("N", "V"))))),
    }
    task = of_others.get(method, Task.of_sizes(3, 2))
    assert build(method, loss, small, task).predictors


@pytest.mark.parametrize("path", sorted(recipe_folder().rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_file_repeats_what_it_extends(path):
    parent, own = room._read(path, str(path))
    inherited = read_recipe(room._file(path.parent, parent)) if parent else {}
    assert not own.items() & inherited.items()


#: of SEAL's released configurations: λ_E, λ_CE, n_E, n_T and the rates of energy and task net
JOINT = """
    bibtex/seal-regression-s 9.936 1 5 5 0.006602 0.001051
    bibtex/seal-regression 3.235 1 9 1 0.005631 0.003087
    bibtex/seal-nce 5.515 1 12 5 4.513e-05 0.001168
    bibtex/seal-ranking 9.214 1 9 10 4.477e-05 0.001443
    bibtex/infnet-plus-margin 0.001525 3.89 1 6 6.882e-05 0.001594
    cal500/seal-regression-s 8.893 1 9 5 0.008659 0.006228
    cal500/seal-regression 1.379 1 3 10 0.005993 0.006913
    cal500/seal-nce 0.4781 1 9 10 0.007793 0.004911
    cal500/seal-ranking 8.715 1 6 5 0.002441 4.575e-05
    cal500/infnet-plus-margin 0.004897 3.992 1 10 0.0005102 0.008267
    delicious/seal-regression-s 9.848 1 6 1 0.0001289 0.003305
    delicious/seal-regression 9.266 1 3 5 0.0001137 0.001757
    delicious/seal-nce 0.9102 1 6 5 0.003732 0.0008478
    delicious/seal-ranking 1.005 1 3 10 0.0008593 9.949e-05
    delicious/infnet-plus-margin 0.001177 5.603 1 1 0.002697 0.004973
    eurlexev/seal-regression-s 0.07781 1 12 1 5.263e-05 0.006438
    eurlexev/seal-regression 0.001102 1 6 5 0.0002215 0.002325
    eurlexev/seal-nce 1.497 1 6 5 0.0004985 0.0025
    eurlexev/seal-ranking 0.2946 1 9 5 0.0003048 0.001957
    eurlexev/infnet-plus-margin 0.001641 0.8189 1 5 0.0003401 0.002088
    expr_fun/seal-regression-s 0.0212 1 9 5 3.164e-05 0.0008778
    expr_fun/seal-regression 0.1378 1 9 5 0.0003269 0.0005899
    expr_fun/seal-nce 4.141 1 6 10 5.252e-05 0.0002164
    expr_fun/seal-ranking 1.046 1 6 5 0.01022 0.0005224
    expr_fun/infnet-plus-margin 0.001121 4.04 1 5 0.000103 0.001217
    genbase/seal-regression-s 0.02758 1 3 10 0.0004636 0.0009966
    genbase/seal-regression 0.002435 1 6 10 0.000366 0.001365
    genbase/seal-nce 0.002031 1 9 10 0.0005472 0.001246
    genbase/seal-ranking 0.001927 1 3 10 1.691e-05 0.001663
    genbase/infnet-plus-margin 0.01014 7.529 1 10 0.0002697 0.0007418
    spo_fun/seal-regression-s 0.01938 1 9 10 0.0002121 0.0009355
    spo_fun/seal-regression 9.049 1 12 5 0.00139 0.0001549
    spo_fun/seal-nce 1.0 1 3 10 0.008205 0.0005437
    spo_fun/seal-ranking 1.19 1 3 5 0.00612 0.001089
    spo_fun/infnet-plus-margin 0.00521 0.6304 1 10 7.931e-05 0.002243
"""
#: the energy's rate, and step size and steps of inference, of energies alone
ALONE = """
    bibtex/dvn-regression 0.0002191 0.3478 30
    bibtex/nce-energy 0.0009189 0.1 20
    bibtex/spen-margin 1.704e-05 0.006768 20
    cal500/dvn-regression 6.518e-05 0.1074 30
    cal500/nce-energy 0.003538 0.1 20
    cal500/spen-margin 1.08e-05 0.0169 20
    delicious/dvn-regression 0.0003294 0.07496 30
    delicious/nce-energy 0.002046 0.1 20
    delicious/spen-margin 0.002946 0.006777 20
    eurlexev/dvn-regression 0.0001603 0.05492 30
    eurlexev/nce-energy 1.147e-05 0.1 20
    eurlexev/spen-margin 1.295e-05 0.006851 20
    expr_fun/dvn-regression 0.0002843 0.5726 30
    expr_fun/nce-energy 0.0002366 0.1 20
    expr_fun/spen-margin 1.016e-05 0.007178 20
    genbase/dvn-regression 0.0008456 0.1094 30
    genbase/nce-energy 0.0003223 0.1 20
    genbase/spen-margin 0.0004229 0.01055 20
    spo_fun/dvn-regression 0.0002033 0.3464 30
    spo_fun/nce-energy 0.0002611 0.1 20
    spo_fun/spen-margin 1.037e-05 0.008152 20
"""


def rows_of(table):
    return [line.split() for line in table.strip().splitlines()]


def settings_of(name):
    return Settings(**recipe_settings("", "", "", name))


def authored(name):
    """Whether a recipe says that its settings are those of SEAL's authors."""
    return "settings tuned by SEAL's authors" in find_recipe(name).read_text()


@pytest.mark.parametrize(("name", "numbers"), [(name, numbers) for name, *numbers in rows_of(JOINT)])
def test_recipes_have_the_numbers_of_seals_authors(name, numbers):
    s = settings_of(name)
    assert authored(name)
    found = s.energy_weight, s.ce_weight, s.energy_steps, s.task_steps, s.energy_lr, s.task_lr
    assert found == tuple(map(float, numbers))


@pytest.mark.parametrize(("name", "numbers"), [(name, numbers) for name, *numbers in rows_of(ALONE)])
def test_recipes_of_energies_alone_have_the_authors_numbers(name, numbers):
    s = settings_of(name)
    assert authored(name)
    assert (s.energy_lr, s.inference_lr, s.inference_steps) == tuple(map(float, numbers))


@pytest.mark.parametrize("name", [name for name in recipe_names() if authored(name)])
def test_the_authors_recipes_train_and_build_networks_as_released(name):
    s = settings_of(name)
    assert (s.schedule, s.energy_limits, s.clip, s.plateau_factor) == ("nested", False, 10.0, 0.5)
    assert (s.output_bias, s.global_bias, s.last_layer_dropout) == (False, True, False)
    assert (s.regression_term, s.batch_size, s.epochs, s.patience) == ("score", 32, 300, 20)
    assert (s.inference_update, s.inference_optimizer) == ("gradient", "adam")
    method, loss = recipe_names_of(name)["method"], recipe_names_of(name)["loss"]
    starts = (
        {"margin": "task-net", "nce": "uniform"} if method in ("spen", "nce-energy", "seal-static") else {}
    )
    assert s.inference_start == starts.get(loss, "zeros")
    if method == "infnet-plus":
        assert (s.cost_net, s.margin_cost, s.energy_steps) == ("stacked", "manhattan", 1)
    small = dataclasses.replace(s, task_hidden=4, energy_hidden=4, global_hidden=2)
    built = build(method, loss, small, Task.of_sizes(3, 2))
    networks = dict(built.named_children())
    if "task_net" in networks:
        assert networks["task_net"].head.bias is None
    if "energy" in networks:
        assert networks["energy"].terms[1].mixing.bias is not None
        assert not isinstance(networks["energy"].encoder[-1], nn.Dropout)
    assert getattr(built, "schedule", "nested") == "nested"


def test_recipes_that_were_tuned_here_stay_as_they_were_tuned():
    """With several steps on a batch they were trained with grouped ones."""
    tuned = [name for name in recipe_names() if not authored(name) and "seal-authors" not in lineage(name)]
    assert len(tuned) > 40
    for name in tuned:
        s, method = settings_of(name), recipe_names_of(name)["method"]
        assert (s.output_bias, s.global_bias, s.last_layer_dropout, s.energy_limits) == (
            True,
            False,
            True,
            True,
        )
        if method in ("seal", "infnet-plus") and max(s.energy_steps, s.task_steps) > 1:
            assert s.schedule == "grouped"
        if "regression" in name and method == "seal":
            assert s.regression_term == "energy"


def lineage(name):
    """The names of the files that a recipe extends."""
    names, path = [], find_recipe(name)
    while (parent := room._read(path, str(path))[0]) is not None:
        path = room._file(path.parent, parent)
        names.append(path.stem)
    return names


def test_there_are_recipes_for_the_papers_tables():
    names = recipe_names()
    methods = ("cross-entropy", "seal-nce", "seal-margin", "spen-margin", "dvn-regression", "nce-energy")
    for dataset in ("bibtex", "delicious", "cal500", "genbase", "eurlexev", "expr_fun", "spo_fun"):
        for method in methods:
            assert f"{dataset}/{method}" in names


def test_what_recipes_share_is_no_recipe():
    assert not [name for name in recipe_names() if "base" in name.split("/")[1].split("-")]
    assert (recipe_folder() / "bibtex" / "base.yaml").is_file()


def test_types_come_back_as_the_settings_have_them():
    read = read_recipe(find_recipe("bibtex/seal-nce"))
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
        ("sample: 3\n", "unknown setting 'sample'; did you mean samples"),
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
    by_name = find_recipe("bibtex/seal-nce")
    assert by_name == find_recipe("bibtex/seal-nce.yaml")
    assert by_name.is_file()


def test_a_missing_recipe_names_those_that_exist(tmp_path):
    for name in ("bibtex/seal-nice", str(tmp_path), str(tmp_path / "no.yaml")):
        with pytest.raises(RecipeError, match=r"no recipe .*bibtex/seal-nce"):
            find_recipe(name)


def test_the_losss_own_recipe_comes_before_the_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "recipe_folder", lambda: tmp_path)
    assert default_recipe("mine", "seal", "nce") is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "seal.yaml").touch()
    assert default_recipe("mine", "seal", "nce").name == "seal.yaml"
    (tmp_path / "mine" / "seal-nce.yaml").touch()
    assert default_recipe("mine", "seal", "nce").name == "seal-nce.yaml"
    assert default_recipe("mine", "seal", "margin").name == "seal.yaml"
    assert default_recipe("mine", "seal", None).name == "seal.yaml"
    assert default_recipe("mine", "dvn", "regression") is None
    assert default_recipe("other", "seal", "nce") is None


def test_a_file_elsewhere_is_no_data_set_with_a_recipe(tmp_path, monkeypatch):
    for folder in (tmp_path / "recipes", tmp_path / "mine"):
        folder.mkdir()
        (folder / "seal.yaml").touch()
    (tmp_path / "seal.yaml").touch()
    monkeypatch.setattr(room, "recipe_folder", lambda: tmp_path / "recipes")
    for name in ("../mine", "..", ".", "", str(tmp_path / "mine")):
        assert default_recipe(name, "seal", "nce") is None


# ---------------------------------------------------------------- extending


def test_a_recipe_extends_a_file_beside_it_or_a_named_recipe(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared.yaml").write_text("samples: 3\nepochs: 4\nmethod: seal\n")
    (tmp_path / "mine" / "first.yaml").write_text("extends: ../shared.yaml\nepochs: 5\n")
    path = tmp_path / "mine" / "second.yaml"
    path.write_text("extends: first\nloss: nce\npatience: 6\n")
    assert read_recipe(path) == {"samples": 3, "epochs": 5, "method": "seal", "loss": "nce", "patience": 6}
    path.write_text("extends: bibtex/seal-nce\nepochs: 5\n")
    assert read_recipe(path) == {**read_recipe(find_recipe("bibtex/seal-nce")), "epochs": 5}


def test_a_recipe_beside_comes_before_one_of_ours(tmp_path):
    (tmp_path / "multi-label.yaml").write_text("samples: 3\n")
    path = tmp_path / "mine.yaml"
    path.write_text("extends: multi-label\n")
    assert read_recipe(path) == {"samples": 3}


def test_recipes_that_extend_each_other_are_an_error(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("extends: second\n")
    second.write_text("extends: ../" + tmp_path.name + "/first\n")
    with pytest.raises(RecipeError, match="cannot extend itself") as caught:
        read_recipe(first)
    assert f"extended by {second}, extended by {first}" in str(caught.value)
    first.write_text("extends: first\n")
    with pytest.raises(RecipeError, match="cannot extend itself"):
        read_recipe(first)


@pytest.mark.parametrize("parent", ["nowhere", "..", "../nowhere.yaml", "a" * 5000, '"a\\0b"'])
def test_a_missing_parent_is_an_error_that_names_the_file(recipe, parent):
    path = recipe(f"extends: {parent}\n")
    with pytest.raises(
        RecipeError, match="which is neither a file beside it nor the name of a recipe"
    ) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: extends ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample: 3\n", "unknown setting 'sample'"),
        ("samples: many\n", "samples cannot be 'many'"),
        ("epochs: 0\n", "epochs must be above 0"),
        ("- 3\n", "expected 'setting: value' lines"),
        ("a: b: c\n", "not valid YAML"),
        ("extends: 3\n", "extends cannot be 3"),
        ("extends: nowhere\n", "extends 'nowhere'"),
    ],
)
def test_a_bad_parent_is_an_error_that_says_which_file_and_who_extends_it(recipe, tmp_path, text, message):
    parent = tmp_path / "parent.yaml"
    parent.write_text(text)
    path = recipe("extends: parent\n")
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{parent}, extended by {path}: ")
