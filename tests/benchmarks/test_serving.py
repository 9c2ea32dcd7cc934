import json

from benchmarks import serving


def test_a_short_load_without_a_failure(tmp_path, capsys):
    found = serving.run(tmp_path, clients=8, seconds=1.0, warm_up=0.3)
    assert found["failures"] == {}
    assert found["exit_status"] == 0
    assert found["requests"] > 8
    assert 0 < found["milliseconds"]["p50"] <= found["milliseconds"]["p99"]
    assert found["resident_mib"]["after"] - found["resident_mib"]["before"] < 64
    assert json.loads((tmp_path / "serving.json").read_text()) == found
    assert "requests per second" in capsys.readouterr().out
