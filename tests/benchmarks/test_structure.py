from benchmarks import structure


def test_the_table_has_means_over_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "SETS", ("digits-pairs",))
    results = [
        {
            "dataset": "digits-pairs",
            "seed": seed,
            "seconds": 2.0,
            "figures": {"labels corrected one by one": {"mean": 3 + seed, "error": 0.1}},
        }
        for seed in (1, 0)
    ]
    assert structure.table(results) == [["digits-pairs", "3.500 ± 0.100", "2", "0, 1"]]
