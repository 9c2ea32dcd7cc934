import shutil
from pathlib import Path

import pytest

from lossnet.cli import main
from lossnet.report import write


def test_the_command(label_runs, tmp_path, capsys):
    folders = [str(folder) for folder in label_runs]
    assert main(["report", *folders, "--output", str(tmp_path / "new" / "page.html")]) == 0
    assert "page.html" in capsys.readouterr().out.replace("\n", "")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
    assert main(["report", folders[2], folders[2]]) == 0
    assert (label_runs[2] / "report.html").is_file(), "the same folder given twice counts once"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "no such folder"), (["{run}", "--output", "{run}"], "is a folder"), ([], "runs")],
)
def test_bad_requests_are_one_line(label_runs, arguments, message, capsys):
    try:
        status = main(["report", *(part.format(run=label_runs[0]) for part in arguments)])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


# ---------------------------------------------------------------- where the page goes


@pytest.fixture
def runs(label_runs, tmp_path):
    """Copies of two runs in ``somewhere``, without pages."""
    copies = []
    for run in (label_runs[0], label_runs[2]):
        copies.append(tmp_path / "somewhere" / run.name)
        shutil.copytree(run, copies[-1], ignore=shutil.ignore_patterns("*.html"))
    return copies


def pages(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.glob("**/*.html"))


def report(*arguments):
    return main(["report", *map(str, arguments), "--data-dir", "nowhere"])


def test_a_page_about_several_runs_is_beside_their_folders(runs, tmp_path, capsys):
    assert report(runs[0]) == 0
    first = (runs[0] / "report.html").read_bytes()
    assert report(*runs) == 0
    both = "report-cross-entropy-0-seal-0.html"
    assert both in capsys.readouterr().out.replace("\n", "")
    assert pages(tmp_path / "somewhere") == ["cross-entropy-0/report.html", both]
    assert (runs[0] / "report.html").read_bytes() == first, "a run's own page stays"
    assert report(*runs[::-1]) == 0
    assert len(pages(tmp_path)) == 2, (
        "a page about the same runs is replaced, in whatever order they are given"
    )


def test_another_page_is_not_replaced(runs, tmp_path, capsys):
    place = tmp_path / "somewhere" / "report-cross-entropy-0-seal-0.html"
    place.write_text("my notes")
    for _ in range(2):
        assert report(*runs) == 0
        assert "seal-0-2.html" in capsys.readouterr().out.replace("\n", "")
    (runs[0] / "report.html").write_text("my notes")
    assert report(runs[0]) == 0
    assert pages(tmp_path / "somewhere") == [
        "cross-entropy-0/report-2.html", "cross-entropy-0/report.html",
        "report-cross-entropy-0-seal-0-2.html", "report-cross-entropy-0-seal-0.html",
    ]  # fmt: skip
    assert place.read_text() == (runs[0] / "report.html").read_text() == "my notes"


def test_a_place_that_is_asked_for_is_used_or_refused(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    for _ in range(2):
        assert report(*runs, "--output", page) == 0, "the same again"
    before = page.read_bytes()
    assert report(runs[0], "--output", page) == 2
    assert "not a page about these runs; give another --output, or remove it" in capsys.readouterr().err
    assert page.read_bytes() == before


def test_runs_and_their_pages_can_be_moved(runs, tmp_path):
    for arguments in (runs[:1], runs):
        assert report(*arguments) == 0
    (tmp_path / "somewhere").rename(tmp_path / "elsewhere")
    moved = [tmp_path / "elsewhere" / run.name for run in runs]
    for arguments in (moved[:1], moved):
        assert report(*arguments) == 0
    assert len(pages(tmp_path)) == 2


def test_folders_given_from_here_have_a_page_named_from_here(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [run.relative_to(tmp_path) for run in runs]
    found = write(folders, data_dir="nowhere", progress=False)
    assert found == Path("somewhere/report-cross-entropy-0-seal-0.html")
    assert found.is_file()


def test_a_folder_and_one_inside_it(runs, tmp_path):
    inner = shutil.move(runs[1], runs[0] / "inner")
    assert report(runs[0], inner) == 0
    assert pages(tmp_path / "somewhere") == ["cross-entropy-0/report-cross-entropy-0-inner.html"]


def test_names_of_many_runs_are_not_all_in_the_pages_name(runs, tmp_path):
    longer = [run.rename(run.with_name("长" * 70 + run.name)) for run in runs]
    assert report(*longer) == 0
    (page,) = pages(tmp_path / "somewhere")
    assert page == f"report-{'长' * 30}-and-1-others.html"


def test_runs_without_a_common_folder(runs, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("os.path.commonpath", lambda paths: "/")
    assert report(*runs) == 0
    assert pages(tmp_path / "here") == ["report-somewhere-cross-entropy-0-somewhere-seal-0.html"]
