import pytest

from lossnet.cli import main


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
