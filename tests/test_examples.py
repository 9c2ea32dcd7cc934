"""Every script of examples/ runs as it stands, is short, and prints what it found out."""

import ast
import re
import runpy
from pathlib import Path

import pytest
import torch

SCRIPTS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
#: what a script must print, so that one which learns nothing is noticed
PRINTS = {
    "few_labels": r"as a whole: (0\.9|1\.)",
    "grid_search": r"F1 of each row, averaged, on test data: 0\.[5-9]",
    "hypergradient": r"validation loss 1\.",
    "own_energy": r"validation F1 0\.[4-9]",
    "own_network": r"epoch 5: 0\.[89]",
    "saved_model": r"\[\[1 1 1\]\n \[0 0 0\]\][^$]*'labels': \['0', '1', '2'\]",
    "segmentation": r"over union on other images: 0\.[6-9]",
    "tagging": r"Eve/B-PER Lee/I-PER left/O Cairo/B-LOC today/O",
    "with_accelerate": r"^0\.[89]\d+ of the pixels are right",
    "with_lightning": r"0\.[89]\d+ of the pixels are right",
}
#: what a script imports that is not installed everywhere
NEEDS = {"with_accelerate": "accelerate", "with_lightning": "lightning"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs(script, tmp_path, monkeypatch, capsys):
    if script.stem in NEEDS:
        needed = NEEDS[script.stem]
        pytest.importorskip(needed, reason=f"{script.name} needs {needed}, which is not installed here")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(script), run_name="__main__")
    assert re.search(PRINTS[script.stem], capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_says_what_it_shows_in_forty_lines(script):
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert ast.get_docstring(ast.parse(text))


def test_all_are_checked():
    assert [script.stem for script in SCRIPTS] == sorted(PRINTS)
