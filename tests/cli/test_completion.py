"""Scripts that complete words in shells."""

import shutil
import subprocess

import pytest

from lossnet.build import AUTO, METHODS
from lossnet.cli import main, parsers
from lossnet.cli.parsers import GOALS
from lossnet.data import names
from lossnet.data.sentences import TagSet
from lossnet.outputs import Labels, Masks, Tags


@pytest.fixture(scope="module")
def scripts():
    from lossnet.cli.completion import script

    return {shell: script(shell, parsers()) for shell in ("bash", "zsh", "fish")}


@pytest.fixture
def complete(scripts, tmp_path):
    """What bash offers for the last word of a command line."""
    file = tmp_path / "lossnet.bash"
    file.write_text(scripts["bash"], encoding="utf-8")
    code = f'source {file}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lossnet; echo "${{COMPREPLY[@]}}"'

    def complete(*words):
        command = ["bash", "-c", code, "bash", "lossnet", *words]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        assert run.stderr == ""
        return run.stdout.split()

    return complete


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_values(complete, tmp_path):
    assert complete("tr") == ["train"]
    assert set(parsers()) <= set(complete(""))
    assert complete("train", "digits-c") == ["digits-completion"]
    assert complete("train", "digits-pairs", "--meth") == ["--method"]
    assert set(complete("train", "d", "--method", "")) == {AUTO, *METHODS}
    assert {"nce", "soft-f1", "likelihood"} <= set(complete("train", "d", "--loss", ""))
    assert set(complete("tune", "d", "--goal", "")) == set(GOALS)
    assert complete("train", "d", "--solver", "neu") == ["neumann"]
    assert set(names()) <= set(complete("data", "show", ""))
    assert "running" in complete("train", "--help", "")
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("train", "d", "--nothing-like-it") == []
    (tmp_path / "mine.csv").touch()
    assert complete("train", "mi") == complete("train", "d", "--test", "mi") == ["mine.csv"]
    assert complete("train", "d", "--method", "mi") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_flag_is_in_each_script(scripts, shell):
    for name, parser in parsers().items():
        assert name in scripts[shell]
        flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        missing = [
            flag for flag in flags if (f"-l {flag[2:]} " if shell == "fish" else flag) not in scripts[shell]
        ]
        assert missing == []
    assert all(name in scripts[shell] for name in (*names(), *METHODS, *GOALS))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_are_read_where_these_are_installed(scripts, shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(scripts[shell], encoding="utf-8")
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_the_command_prints_the_script(capsys, scripts):
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == scripts["bash"]


def test_goals_are_those_of_the_kinds_of_output():
    kinds = [Labels.of_size(2), Masks(), Tags(TagSet(("O", "B-X", "I-X"), "IOB2")), Tags(TagSet(("N", "V")))]
    assert {goal for kind in kinds for goal in kind.goals} == set(GOALS)
