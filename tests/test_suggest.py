from lossnet.suggest import close_names, did_you_mean

NAMES = ["nce", "margin", "soft-f1", "task_lr", "energy_lr", "cross-entropy"]


def test_case_and_joints_do_not_count():
    for given in ("Soft-F1", "soft_f1", "softf1", "SOFT F1"):
        assert close_names(given, NAMES) == ["soft-f1"]


def test_slips_beginnings_and_words_of_a_name_are_recognised():
    assert close_names("margni", NAMES) == ["margin"]
    assert close_names("cross", NAMES) == ["cross-entropy"]
    assert close_names("lr", NAMES) == ["task_lr", "energy_lr"]


def test_what_is_like_nothing_gets_no_suggestion():
    for given in ("banana", "", 7, None, ["nce"], "x" * 1_000_000):
        assert close_names(given, NAMES) == []
        assert did_you_mean(given, NAMES) == f"there are {', '.join(NAMES)}"


def test_long_lists_are_cut_and_empty_ones_said():
    many = [f"label_{number}" for number in range(1000)]
    assert did_you_mean("banana", many).endswith("label_59, …")
    assert did_you_mean("label_77x", many).startswith("did you mean label_77")
    assert did_you_mean("a", [], "it has") == "it has none"
