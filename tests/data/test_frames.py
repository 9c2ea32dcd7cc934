"""Files of frames, and frames that are found in data."""

import json

import pytest

from lossnet.data import DataError, Examples, find_frames, read_frames
from lossnet.data.propbank import PredicateSentences, RoleColumn

FRAMES = {"give.01": ("ARG0", "ARG1", "ARG2"), "rain": (), "up, put": ("A1",)}


def test_json_and_csv_say_the_same(tmp_path):
    (tmp_path / "frames.json").write_text(json.dumps(FRAMES))
    (tmp_path / "frames.csv").write_text(
        '\ufeffpredicate,roles\n\ngive.01,ARG0 ARG1  ARG2\nrain,\n"up, put",A1\n', encoding="utf-8"
    )
    assert read_frames(tmp_path / "frames.json") == read_frames(tmp_path / "frames.csv") == FRAMES


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "give,ARG0\n", "a.csv:1: the header is 'give,ARG0'; write predicate,roles"),
        ("a.csv", "predicate,roles\ngive,ARG0,ARG1\n", r"a.csv:2: 3 column\(s\); a predicate has 2"),
        ("a.csv", "predicate,roles\nrun,\nrun,ARG0\n", "a.csv:3: the predicate 'run' comes twice"),
        ("a.csv", "predicate,roles\n,ARG0\n", "a.csv:2: a frame has no predicate"),
        ("a.csv", "predicate,roles\nrun,ARG0 ARGM-TMP\n", "a.csv:2: 'ARGM-TMP' of 'run' is no core role"),
        ("a.csv", 'predicate,roles\n"run,ARG0\n', "a.csv:2: is no CSV"),
        ("a.csv", "predicate,roles\n", "no frame is in it"),
        ("a.csv", "", "the file is empty"),
        ("a.json", '{"run": ["ARG0"]', "a.json:1: is no JSON"),
        ("a.json", "[" * 10**5, "a.json: is no JSON"),
        ("a.json", '["run"]', "a.json: is no object"),
        ("a.json", '{"run": "ARG0"}', "the roles of 'run' are no list of strings"),
        ("a.json", '{"run": {"ARG0": 1}}', "the roles of 'run' are no list of strings"),
        ("a.json", '{"run": [], "run": []}', "the predicate 'run' comes twice"),
        ("a.json", "{}", "no frame is in it"),
    ],
)
def test_what_is_no_frame_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_frames(tmp_path / name)


def test_frames_are_found_by_all_names_of_a_predicate():
    words = [("She", "gave", "it"), ("He", "Gives", "up"), ("So", "be", "it")] * 2
    senses = [("-", "give.01", "-"), ("-", "give.09", "-"), ("-", "-", "-")] * 2
    source = PredicateSentences.of(words, [[1], [1], []] * 2, {"rolesets": tuple(senses)})
    assert source.called[:3] == (("give.01", "give", "gave"), ("give.09", "give", "gives"), ())
    assert PredicateSentences.of([("gmail.com", "Runs")], [[0, 1]]).called == (("gmail.com",), ("runs",))
    tags = [("B-ARG0", "O", "B-ARG1"), ("B-ARG0", "O", "B-C-ARG1"), ("O", "O", "O")] * 2
    data = Examples(source, RoleColumn(tuple(tags)))
    assert find_frames(data, least=3) == {"give": ("ARG0", "ARG1")}
    assert find_frames(data, least=2)["gives"] == ("ARG0",)
    assert find_frames(Examples(PredicateSentences.of(words, [[1], [1], []] * 2), data.target), 2).keys() == {
        "gave", "gives"
    }  # fmt: skip
