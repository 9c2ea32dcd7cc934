"""Recipes: files of settings for a data set, a method and a loss.

``recipes/DATA/METHOD-LOSS.yaml`` is the default for that data set, method and loss, ``DATA/METHOD.yaml`` for
those losses of the method that have no file of their own; ``METHOD-LOSS-VARIANT.yaml`` has to be asked for.
A recipe that ``extends`` another starts from its settings and overrides some.  Files called ``base``,
``base-…`` and those beside the folders hold settings that recipes share; they are no recipes themselves.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from lossnet.settings import checked, of_type
from lossnet.suggest import did_you_mean

__all__ = ["RecipeError", "find_recipe", "read_recipe", "recipe_names", "recipe_settings"]

#: entries of a recipe beside settings
NAMES = ("method", "loss")


class RecipeError(ValueError):
    """A recipe that cannot be used, and why."""


def recipe_folder() -> Path:
    """Return the folder of recipes: beside the sources in a checkout, inside the package when installed."""
    checkout = Path(__file__).parents[2] / "recipes"
    return checkout if checkout.is_dir() else Path(str(resources.files("lossnet") / "_recipes"))


def recipe_names() -> list[str]:
    """Return the names of all recipes.

    >>> "bibtex/seal-nce" in recipe_names()
    True
    """
    paths = sorted(recipe_folder().glob("*/*.yaml"))
    return [f"{path.parent.name}/{path.stem}" for path in paths if path.stem.split("-")[0] != "base"]


def default_recipe(dataset: str, method: str, loss: str | None) -> Path | None:
    """Return a data set's recipe for a method and loss, if it has one.

    >>> default_recipe("bibtex", "seal", "nce").name
    'seal-nce.yaml'
    >>> default_recipe("mine.csv", "seal", "nce") is None
    True
    """
    if Path(dataset).name != dataset or dataset in ("", ".."):
        return None  # a path, not the name of a data set
    paths = (recipe_folder() / dataset / f"{stem}.yaml" for stem in (f"{method}-{loss}", method))
    return next((path for path in paths if path.is_file()), None)


def find_recipe(name: str) -> Path:
    """Return the file of a recipe, given as a name (``bibtex/seal-nce``) or a path."""
    path = _file(Path(), name)
    if path is None:
        advice = did_you_mean(name, recipe_names(), "give a YAML file, or one of")
        raise RecipeError(f"no recipe {name!r}; {advice}")
    return path


def recipe_settings(dataset: str, method: str, loss: str, recipe: str | None = None) -> dict[str, Any]:
    """Return the settings of the recipe asked for, else of the data set's own, else none.

    >>> recipe_settings("bibtex", "seal", "nce")["energy_steps"]
    12
    >>> recipe_settings("mine.csv", "seal", "nce")
    {}
    """
    path = find_recipe(recipe) if recipe else default_recipe(dataset, method, loss)
    values = {} if path is None else read_recipe(path)
    return {name: value for name, value in values.items() if name not in NAMES}


def recipe_names_of(recipe: str) -> dict[str, str]:
    """Return the method and loss that a recipe is for.

    >>> recipe_names_of("bibtex/seal-nce")
    {'method': 'seal', 'loss': 'nce'}
    """
    values = read_recipe(find_recipe(recipe))
    return {name: values[name] for name in NAMES if name in values}


def read_recipe(path: Path, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the settings of a recipe and of those that it extends, and the names of its method and loss.

    ``children`` are the recipes that extend this one, the nearest first.

    >>> read_recipe(find_recipe("bibtex/seal-nce"))["samples"]
    20
    """
    where = ", extended by ".join(map(str, [path, *children]))
    if any(path.resolve() == child.resolve() for child in children):
        raise RecipeError(f"{where}: a recipe cannot extend itself")
    name, values = _read(path, where)
    if name is None:
        return values
    parent = _file(path.parent, name)
    if parent is None:
        what = f"extends {name!r}, which is neither a file beside it nor the name of a recipe"
        raise RecipeError(f"{where}: {what}")
    return read_recipe(parent, (path, *children)) | values


def _read(path: Path, where: str) -> tuple[str | None, dict[str, Any]]:
    """Return the name of the recipe that a file extends, and the file's own values."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates and numbers give ValueErrors
        raise RecipeError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{where}: expected 'setting: value' lines, found {type(content).__name__}")
    try:
        names = {
            name: of_type(name, content.pop(name), str) for name in ("extends", *NAMES) if name in content
        }
        return names.pop("extends", None), checked(content) | names
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from error


def _file(folder: Path, name: str) -> Path | None:
    """Return the YAML file that a name means in a folder, or among our recipes."""
    for place in (folder, recipe_folder()):
        for path in (place / name, place / f"{name}.yaml"):
            try:
                if path.is_file():
                    return path
            except (OSError, ValueError):  # too long, or no name of a file at all
                return None
    return None
