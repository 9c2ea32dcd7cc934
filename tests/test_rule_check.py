"""Rules beside data: counts against loops, of tags and masks too; the command, facts, unlabelled files."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import lossnet
from lossnet.cli import main
from lossnet.data import DataError, Facts, MaskData, MultiLabelData, TaggedSentences
from lossnet.energies import RuleError, allowed, connected, exactly, excludes, forbids, rule, smooth, sums_to
from lossnet.loading import Loaded, keep_labels, load
from lossnet.rule_check import HEADING, check_rules

RANDOM = np.random.default_rng(0)
Y = np.zeros((200, 6))
for labels in Y:
    labels[RANDOM.choice(6, 2, replace=False)] = 1
X = (Y + 0.3 * RANDOM.normal(size=Y.shape)).astype("float32")
SUMS = np.where(np.arange(200) % 4 == 0, np.nan, Y @ np.arange(6))
SUMS[[3, 7]] += 1  # two mistakes


def data(facts=SUMS):
    whole = MultiLabelData.from_arrays(X, Y).with_facts(Facts(facts))
    return Loaded.from_parts(whole.take(range(100)), whole.take(range(100, 150)))


def test_counts_are_those_of_a_loop():
    rules = [exactly(2), sums_to(), excludes(0, 1, weight=2.0)]
    two, total, apart = check_rules(rules, data())
    known = ~np.isnan(SUMS[:100])
    assert (two.instances, two.fires, two.labelled, two.right, two.wrong) == (100, 100, 100, 100, None)
    assert (total.fires, total.labelled, total.right, total.wrong) == (75, 75, 73, 3)
    assert total.truth == pytest.approx(2 / 75)
    assert 0.02 < total.chance < 0.3, "the sums of other rows are seldom the same"
    both = (Y[:100, 0] * Y[:100, 1]).astype(bool)
    assert apart.labelled - apart.right == both.sum()
    assert apart.wrong == np.flatnonzero(both)[0]
    assert apart.right / apart.labelled == pytest.approx(apart.chance, abs=0.06), "it tells nothing here"
    assert known.sum() == 75
    assert all(len(one.row()) == len(HEADING) for one in (two, total, apart))


def test_rows_without_labels_fire_and_are_not_judged():
    whole = data()
    kept, others = keep_labels(whole.train, 10, seed=0)
    few = Loaded.from_parts(kept, kept, unlabelled=others)
    (total,) = check_rules([sums_to()], few)
    assert total.instances == 100
    assert total.labelled <= 10 < total.fires
    partly = Y[:100].copy()
    partly[:50, 0] = np.nan
    target = MultiLabelData.from_arrays(X[:100], Y[:100])
    target = target.replace(target=type(target.target)(partly))
    (two,) = check_rules([exactly(2)], Loaded.from_parts(target, target))
    assert (two.fires, two.labelled) == (100, 50), "what is known in part is not judged"


def test_the_same_data_give_the_same_table():
    rows = [[one.row()[:-1] for one in check_rules([sums_to(), excludes(0, 1)], data())] for _ in range(2)]
    assert rows[0] == rows[1]


def test_tags():
    sentences = [("Ann", "saw", "Bo"), ("Bo", "left"), ("it", "saw", "Ann", "there")] * 10
    tags = [("N", "V", "N"), ("N", "V"), ("P", "V", "N", "A")] * 10
    examples = TaggedSentences(tuple(sentences), tuple(tags))
    loaded = Loaded.from_parts(examples, examples)
    never_noun, verbs = forbids("saw", "N"), rule(lambda x, y, facts: (y[..., 3].sum(-1) - 1).abs())
    word, number = check_rules([never_noun, verbs], loaded)
    assert (word.instances, word.fires, word.labelled, word.right) == (30, 20, 20, 20), "where the word is"
    assert (number.fires, number.right) == (30, 30)
    assert word.truth == word.others == 0, "the second word is a verb everywhere"
    assert word.chance == 1


def test_masks():
    images = np.zeros((20, 10, 10))
    images[:, 2:6, 3:7] = 1
    images[5, 9, 9] = 1
    examples = MaskData.from_arrays(images, images > 0)
    one_piece, smoothness = check_rules([connected(), smooth()], Loaded.from_parts(examples, examples))
    assert (one_piece.right, one_piece.wrong) == (19, 5)
    assert smoothness.right == 0
    assert smoothness.truth == pytest.approx((19 * 16 + 18) / 20)


def test_a_rule_that_fails_is_named_with_its_row():
    bad = rule(lambda x, y, facts: 1 / (0 if (facts == 40).any() else 1) + 0 * y.sum(-1))
    with pytest.raises(RuleError, match="raises ZeroDivisionError on row 40"):
        check_rules([bad], data(np.arange(200)))


# ---------------------------------------------------------------- files

RULES = "from lossnet.energies import exactly, sums_to\npair, total = exactly(2), sums_to()\n"


@pytest.fixture
def files(tmp_path):
    """A table with a column of facts, another without labels, and rules."""
    frame = pd.DataFrame(X, columns=[f"x{n}" for n in range(6)]).assign(total=SUMS)
    for label in range(6):
        frame[f"label_{label}"] = Y[:, label].astype(int)
    frame[:80].to_csv(tmp_path / "few.csv", index=False)
    frame[80:].drop(columns=[f"label_{n}" for n in range(6)]).to_csv(tmp_path / "more.csv", index=False)
    (tmp_path / "rules.py").write_text(RULES)
    return tmp_path


def test_the_command_shows_a_table(files, capsys):
    words = ["rules", "check", str(files / "rules.py"), str(files / "few.csv"), "--labels", "label_*"]
    assert main([*words, "--facts", "total", "--unlabelled", str(files / "more.csv")]) == 0
    out = capsys.readouterr().out
    assert "170 training instances, 50 with labels for which a rule fires" in " ".join(out.split())
    assert re.search(r"exactly\(2\) │ hard │ 100% │ 100% │ 100%", " ".join(out.split()))
    assert main(words) == 2
    assert "rule sums_to reads facts of each instance, and there are none" in capsys.readouterr().err


def test_a_named_set_brings_its_sums(files, capsys):
    assert main(["rules", "check", str(files / "rules.py"), "digits-pairs", "--labelled", "10"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1800 training instances, 10 with labels for which a rule fires" in out


def test_facts_and_rows_without_labels_train(files):
    options = {"labels": ["label_*"], "facts": ["total"], "unlabelled": files / "more.csv"}
    settings = lossnet.Settings(epochs=2, task_hidden=8, batch_size=16)
    run = lossnet.Run(str(files / "few.csv"), "rules", settings=settings, progress=False, **options)
    run = lossnet.Run(**{**vars(run), "own": lossnet.OwnParts(rules=[exactly(2), sums_to()])})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = lossnet.train(run)
    assert result["source"]["facts"] == ["total"]
    assert result["source"]["unlabelled"] == str(files / "more.csv")
    assert list(result["columns"]["used"]) == [f"x{n}" for n in range(6)], "facts are no inputs"
    assert result["columns"]["dropped"] == {"total": "dropped on request"}
    loaded = load(files / "few.csv", labels="label_*", facts=["total"], unlabelled_file=files / "more.csv")
    assert [len(part) for part in (loaded.train, loaded.valid, loaded.test, loaded.unlabelled)] == [
        50,
        15,
        15,
        120,
    ]
    told = loaded.unlabelled.batch(torch.arange(120)).facts["total"]
    np.testing.assert_allclose(told.numpy(), SUMS[80:], equal_nan=True)
    with pytest.raises(ValueError, match="method cross-entropy learns nothing from instances without labels"):
        lossnet.train(lossnet.Run(**{**vars(run), "method": "cross-entropy", "loss": "none"}))


def test_the_command_trains_with_them_and_reports(files, capsys):
    words = ["train", str(files / "few.csv"), "--labels", "label_*", "--facts", "total", "--epochs", "1"]
    words += ["--unlabelled", str(files / "more.csv"), "--rules", str(files / "rules.py"), "--quiet"]
    assert main([*words, "--task-hidden", "8", "--output", str(files / "run")]) == 0
    assert (files / "run" / "report.html").exists()
    assert main(["report", str(files / "run")]) == 0
    capsys.readouterr()


def test_facts_of_data_frames_and_of_texts(files):
    frame = pd.read_csv(files / "few.csv")
    loaded = load("few", data=frame, labels=["label_*"], facts=["total", "x0"])
    assert loaded.train.source.names == tuple(f"x{n}" for n in range(1, 6))
    assert set(loaded.train.batch(torch.arange(2)).facts) == {"total", "x0"}
    frame["text"] = ["a film"] * len(frame)
    frame.to_csv(files / "texts.csv", index=False)
    texts = load(files / "texts.csv", labels="label_*", words="text", facts=["total"])
    assert texts.train.batch(torch.arange(2)).facts["total"].shape == (2,)


def test_what_is_wrong_with_facts_is_said(files):
    with pytest.raises(DataError, match="no column 'sum'"):
        load(files / "few.csv", labels="label_*", facts=["sum"])
    frame = pd.read_csv(files / "few.csv").assign(total="many")
    frame.to_csv(files / "words.csv", index=False)
    with pytest.raises(DataError, match="row 1 has 'many' in the column of facts 'total'; write a number"):
        load(files / "words.csv", labels="label_*", facts=["total"])
    with pytest.raises(DataError, match="names columns of a CSV"):
        load(files / "rules.arff", facts=["total"])
    with pytest.raises(DataError, match="facts= names columns of a data frame or file"):
        load("pairs", data=(X, Y), facts=["total"])
    with pytest.raises(DataError, match="'digits-pairs' is read as it is; facts="):
        load("digits-pairs", facts=["total"])


def test_allowed_labels_are_facts_too():
    told = data(np.ones_like(Y))
    (may,) = check_rules([allowed()], told)
    assert may.fires == 0, "where everything is allowed there is nothing to say"
