from benchmarks import streaming
from lossnet.data import stream_inputs


def test_files_have_their_size_and_are_for_the_model(tmp_path):
    for kind, write in (("svm", streaming._write_svm), ("csv", streaming._write_csv)):
        path = tmp_path / f"rows.{kind}"
        rows = write(path, 1 << 20)
        assert 0.2 < path.stat().st_size / 2**20 < 1.2
        model = streaming._model(streaming.FEATURES if kind == "svm" else 50, first=int(kind == "svm"))
        parts = stream_inputs(path, model.feature_names, model.label_names)
        assert sum(len(part) for part in parts) == rows


def test_the_peak_of_a_process_is_what_it_took_and_not_ours():
    small, _ = streaming._peak("import sys")
    large, seconds = streaming._peak("import sys\nb'x' * int(sys.argv[1])", str(64 << 20))
    assert 50 < large - small < 80
    assert seconds > 0
