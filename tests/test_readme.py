"""What the README shows must run."""

import re
from pathlib import Path

import pytest

from lossnet import run

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_python_in_the_readme_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "recipe_settings", lambda *names: {"epochs": 1, "task_hidden": 8})
    exec(compile(code, str(README), "exec"), {})


def test_there_is_python_to_run():
    assert len(BLOCKS) == 2
