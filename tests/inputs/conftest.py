"""A small pretrained encoder."""

import pytest
import torch

WORDS = ["good", "bad", "film", "book", "music", "a", "the", "was", "very", "not", "😀", "فيلم"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A transformer of two layers with random weights and a tokenizer, as ``save_pretrained`` writes them."""
    transformers, tokenizers = (pytest.importorskip(name) for name in ("transformers", "tokenizers"))
    place = tmp_path_factory.mktemp("encoder")
    pieces = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(place)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(place / "tokenizer.json"))
    return place
