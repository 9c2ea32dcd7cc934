import pytest
import torch

from benchmarks import text, text_trained

WORDS = ["good", "bad", "film", "book", "very", "not"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A transformer with random weights, and a small set in the format of GoEmotions."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    pieces = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "encoder" / "tokenizer.json"))
    place = tmp_path / "goemotions"
    place.mkdir()
    lines = [f"{a} {b}\t{int(a == 'good')},{2 + int(b == 'film')}\tx\n" for a in WORDS for b in WORDS]
    for part in ("train", "dev", "test"):
        (place / f"{part}.tsv").write_text("".join(lines))
    (place / "labels.txt").write_text("other\njoy\nthing\nfilm\n")
    about = text_trained.TextSet(str(tmp_path / "encoder"), "all", {"train": 20, "valid": 10})
    monkeypatch.setattr(text_trained, "SETS", {"goemotions": about})
    small = {"task_hidden": 8, "energy_hidden": 8, "global_hidden": 4, "samples": 3, "epochs": 1}
    monkeypatch.setattr(text_trained, "SETTINGS", small)
    return tmp_path


@pytest.mark.parametrize("title", ["SEAL-NCE", "implicit NCE", "LACO, CLCP", "SGM"])
def test_encoders_are_trained_by_every_kind_of_method(folder, title):
    torch.manual_seed(0)
    (line,) = text_trained.work("goemotions", title, 0, folder, "cpu")
    assert line["rows"] == {"train": 20, "valid": 10, "test": 36}
    assert 0 <= line["metrics"]["test"][text.CHOICE] <= 1


def test_every_published_figure_has_a_row():
    rows = {row.title for row in text_trained.ROWS}
    assert all(set(published) <= rows for published in text_trained.PUBLISHED.values())
    assert set(text_trained.PUBLISHED) <= set(text_trained.SETS)
