"""Taggers against loops over cells, and what padding, dropout and second derivatives do to them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lossnet.nets.recurrent import BiLSTM, CharacterCNN, Tagger, WordVectors, turned

WORDS, COLUMNS, ALPHABET, LETTERS, TAGS = 11, (3, 30), 6, 4, 5


def make(hidden=3, tuned=False, dropout=0.0):
    torch.manual_seed(0)
    words = WordVectors(torch.randn(WORDS, 4), tuned, COLUMNS, column_width=2, characters=ALPHABET)
    return Tagger(BiLSTM(words, hidden, dropout), TAGS).double()


def sentence(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    word = torch.randint(1, WORDS, (length, 1), generator=generator)
    columns = [torch.randint(0, size, (length, 1), generator=generator) for size in COLUMNS]
    letters = torch.randint(1, ALPHABET, (length, LETTERS), generator=generator)
    count = torch.randint(0, LETTERS + 1, (length, 1), generator=generator)
    letters = letters * (torch.arange(LETTERS) < count)
    return torch.cat([word, *columns, letters], 1)


def padded(sentences, length=None):
    length = length or max(map(len, sentences))
    batch = torch.zeros(len(sentences), length, sentences[0].shape[1], dtype=torch.long)
    for row, one in zip(batch, sentences, strict=True):
        row[: len(one)] = one
    return batch


def lstm_by_hand(lstm, inputs):
    """Hidden states of one sequence, gate by gate."""
    size = lstm.hidden_size
    hidden = cell = torch.zeros(size, dtype=inputs.dtype)
    states = []
    for vector in inputs:
        gates = lstm.weight_ih_l0 @ vector + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ hidden + lstm.bias_hh_l0
        entry, forget, candidate, exit_ = gates.split(size)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(candidate)
        hidden = torch.sigmoid(exit_) * torch.tanh(cell)
        states.append(hidden)
    return torch.stack(states)


def vector_by_hand(words, token):
    parts = [words.vectors[token[0]]]
    parts += [table.weight[token[1 + i]] for i, table in enumerate(words.columns)]
    cnn, letters = words.characters, [int(c) for c in token[1 + len(COLUMNS) :] if c]
    known = [cnn.letters.weight[c] for c in letters]
    zero = torch.zeros(cnn.letters.embedding_dim, dtype=torch.float64)
    window = [zero, *known, zero]
    responses = [
        sum(cnn.convolution.weight[:, :, j] @ window[i + j] for j in range(3)) + cnn.convolution.bias
        for i in range(len(known))
    ]
    zeros = torch.zeros(cnn.width, dtype=torch.float64)
    return torch.cat([*parts, torch.stack(responses).amax(0) if responses else zeros])


def test_logits_match_a_loop_over_tokens_and_gates():
    net, one = make(), sentence(5)
    vectors = torch.stack([vector_by_hand(net.encoder.words, token) for token in one])
    ahead = lstm_by_hand(net.encoder.forwards, vectors)
    back = lstm_by_hand(net.encoder.backwards, vectors.flip(0)).flip(0)
    expected = torch.cat([ahead, back], 1) @ net.head.weight.T + net.head.bias
    torch.testing.assert_close(net(one.unsqueeze(0))[0], expected)


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    extra=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_padding_changes_no_logits(lengths, extra, seed):
    net = make()
    sentences = [sentence(length, seed + i) for i, length in enumerate(lengths)]
    batch = padded(sentences, max(lengths) + extra)
    batch[..., 1:] = torch.where(
        batch[..., :1] == 0, 1, batch[..., 1:]
    )  # whatever padding holds, it is not read
    logits = net(batch)
    for row, one in zip(logits, sentences, strict=True):
        torch.testing.assert_close(row[: len(one)], net(one.unsqueeze(0))[0], rtol=1e-13, atol=1e-13)


def test_states_and_words_are_zero_on_padding():
    tokens = make(dropout=0.5).encoder(padded([sentence(2), sentence(4)]))
    assert tokens.mask.tolist() == [[True, True, False, False], [True] * 4]
    assert not tokens.states[0, 2:].any()
    assert not tokens.words[0, 2:].any()
    assert tokens.states[1].any(1).all()


def test_vectors_are_trained_only_when_tuned():
    frozen, tuned = make(), make(tuned=True)
    x = padded([sentence(3)])
    assert "encoder.words.vectors" not in dict(frozen.named_parameters())
    assert torch.equal(frozen(x), tuned(x))
    (gradient,) = torch.autograd.grad(tuned(x).sum(), [tuned.encoder.words.vectors])
    assert sorted(x[0, :, 0].unique().tolist()) == gradient.any(1).nonzero().flatten().tolist()


def test_given_vectors_are_copied():
    given_vectors = torch.randn(WORDS, 4)
    net = WordVectors(given_vectors, tuned=True)
    with torch.no_grad():
        net.vectors.zero_()
    assert given_vectors.any()


def test_dropout_works_in_training_only():
    net, x = make(dropout=0.5), padded([sentence(6)])
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_gradients_and_second_derivatives_are_correct():
    """Hessian products against finite differences of gradients, in float64, over padded sentences."""
    net, x = make(tuned=True), padded([sentence(3, 1), sentence(5, 2)])
    parameters = list(net.parameters())

    def loss():
        return (torch.tanh(net(x)) ** 2)[x[..., 0] != 0].sum()

    def gradients(**options):
        return torch.autograd.grad(loss(), parameters, **options)

    torch.manual_seed(3)
    direction = [torch.randn_like(p) for p in parameters]
    names = [name for name, _ in net.named_parameters()]
    direction[names.index("encoder.words.characters.letters.weight")][0] = 0  # stays zero for ever
    along = sum((g * d).sum() for g, d in zip(gradients(create_graph=True), direction, strict=True))
    exact = torch.autograd.grad(along, parameters)
    step, sides = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, change in zip(parameters, direction, strict=True):
                parameter += sign * step * change
        sides.append(gradients())
        with torch.no_grad():
            for parameter, change in zip(parameters, direction, strict=True):
                parameter -= sign * step * change
    for product, ahead, behind in zip(exact, *sides, strict=True):
        torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)


def test_second_derivatives_exist_in_float32():
    net, x = make(tuned=True).float(), padded([sentence(3), sentence(5)])
    gradients = torch.autograd.grad((net(x) ** 2).sum(), list(net.parameters()), create_graph=True)
    assert all(
        torch.isfinite(g).all()
        for g in torch.autograd.grad(sum((g**2).sum() for g in gradients), list(net.parameters()))
    )


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_turning_twice_gives_back_the_same(lengths):
    values = torch.arange(len(lengths) * 5 * 2).reshape(len(lengths), 5, 2)
    once = turned(values, torch.tensor(lengths))
    for row, before, length in zip(once, values, lengths, strict=True):
        assert torch.equal(row, torch.cat([before[:length].flip(0), before[length:]]))
    assert torch.equal(turned(once, torch.tensor(lengths)), values)


def test_words_without_letters_have_no_response():
    net = CharacterCNN(ALPHABET)
    nn.init.ones_(net.convolution.bias)
    assert not net(torch.zeros(1, 2, 4, dtype=torch.long)).any()


@pytest.mark.parametrize("letters", [4, 9])
def test_the_room_for_letters_does_not_matter(letters):
    net, word = CharacterCNN(ALPHABET).double(), torch.tensor([[[1, 2, 3]]])
    wide = torch.zeros(1, 1, letters, dtype=torch.long)
    wide[..., :3] = word
    torch.testing.assert_close(net(wide), net(word))
