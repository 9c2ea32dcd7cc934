"""Energies of tag sequences: explicit loops, all sequences of small problems, and padding."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lossnet.energies import Chain, SelfAttention, Sum, TagLM
from lossnet.energies.chain import Potentials, log_partition, marginals
from lossnet.nets import BiLSTM, Tokens, WordVectors

TAGS, WIDTH, WORDS = 3, 5, 9


def encoder():
    return BiLSTM(WordVectors(torch.randn(WORDS, WIDTH)), hidden=2)


def chain(seed=0):
    torch.manual_seed(seed)
    term = Chain(features=4, tags=TAGS)
    torch.nn.init.normal_(term.transitions)
    return term


def lm(**options):
    term = TagLM(TAGS, hidden=4, **options)
    torch.nn.init.normal_(term.start)
    return term


def attention(hidden=6):
    torch.manual_seed(0)
    return SelfAttention(features=4, tags=TAGS, hidden=hidden, heads=2)


TERMS = {
    "chain": lambda: [chain()],
    "ge_a": lambda: [lm()],
    "ge_b": lambda: [lm(), lm(backward=True)],
    "ge_c": lambda: [lm(), lm(backward=True), lm(words=WIDTH), lm(backward=True, words=WIDTH, weight=0.3)],
    "attention": lambda: [attention()],
    "everything": lambda: [chain(), attention(), lm(), lm(backward=True, words=WIDTH)],
}
every_energy = pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)


def make(terms):
    torch.manual_seed(0)
    return Sum(encoder(), *terms()).double()


def sentences(lengths, seed=0, length=None):
    """Inputs and relaxed candidates of which the padded part is zero."""
    generator = torch.Generator().manual_seed(seed)
    length = length or max(lengths)
    mask = torch.arange(length) < torch.tensor(lengths).unsqueeze(1)
    x = torch.randint(1, WORDS, (len(lengths), length), generator=generator) * mask
    y = torch.randn(len(lengths), 4, length, TAGS, generator=generator, dtype=torch.float64).softmax(-1)
    y[:, 0] = F.one_hot(y[:, 0].argmax(-1), TAGS).double()
    return x.unsqueeze(-1), y * mask[:, None, :, None]


def lm_by_hand(term, words, y):
    """Each tag's probability from a model that has read nothing but the tags (and words) before it."""
    if term.backward:
        words, y = words.flip(0), y.flip(0)
    total = 0.0
    for t in range(len(y) + 1):
        inputs = [term.start]
        for s in range(t):
            vector = term.tags.weight @ y[s]
            inputs.append(vector if term.words is None else vector + term.words.weight @ words[s])
        state = term.lstm(torch.stack(inputs).unsqueeze(0))[0][0, -1]
        following = term.head(state).softmax(-1)
        chance = following[-1] if t == len(y) else sum(y[t][j] * following[j] for j in range(TAGS))
        total -= math.log(chance)
    return term.weight * total


def chain_by_hand(term, states, y):
    total = 0.0
    for t in range(len(y)):
        scores = term.local.weight @ states[t] + term.local.bias
        total -= float(y[t] @ scores)
        if t:
            total -= sum(
                float(y[t - 1][i] * term.transitions[i, j] * y[t][j])
                for i in range(TAGS)
                for j in range(TAGS)
            )
    return total


def attention_by_hand(term, states, y):
    """Token by token and head by head."""
    u = [term.tags.weight @ tag + term.tokens.weight @ state for tag, state in zip(y, states, strict=True)]
    u = [one + term.tokens.bias for one in u]
    query, key, value = ([part @ one for one in u] for part in term.attended.weight.split(6))
    total = 0.0
    for t, own in enumerate(u):
        read = []
        for head in (slice(0, 3), slice(3, 6)):
            weights = [math.exp(float(query[t][head] @ other[head]) / math.sqrt(3)) for other in key]
            read.append(sum(w * v[head] for w, v in zip(weights, value, strict=True)) / sum(weights))
        mixed = term.mixing(torch.cat([own, *read]))
        total += sum(
            float(v) * math.log1p(math.exp(m)) for v, m in zip(term.weights.weight[0], mixed, strict=True)
        )
    return total


BY_HAND = {
    Chain: lambda term, tokens, y: chain_by_hand(term, tokens.states[0], y),
    TagLM: lambda term, tokens, y: lm_by_hand(term, tokens.words[0], y),
    SelfAttention: lambda term, tokens, y: attention_by_hand(term, tokens.states[0], y),
}


@every_energy
@torch.no_grad()
def test_energies_match_explicit_loops(terms):
    energy, (x, y) = make(terms), sentences([3, 1, 4])
    found = energy(x, y)
    for row, candidates, values in zip(x, y, found, strict=True):
        count = int((row != 0).sum())
        tokens = energy.encoder(row[:count].unsqueeze(0))
        for candidate, value in zip(candidates, values, strict=True):
            expected = sum(BY_HAND[type(term)](term, tokens, candidate[:count]) for term in energy.terms)
            assert float(value) == pytest.approx(expected, rel=1e-9)


@every_energy
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    extra=st.integers(0, 4),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_padding_changes_no_energies(terms, lengths, extra, seed):
    energy = make(terms)
    x, y = sentences(lengths, seed, max(lengths) + extra)
    together = energy(x, y)
    for row, (length, values) in enumerate(zip(lengths, together, strict=True)):
        alone = energy(x[row : row + 1, :length], y[row : row + 1, :, :length])
        torch.testing.assert_close(values, alone[0], rtol=1e-12, atol=1e-12)


@every_energy
def test_padding_gets_no_gradient(terms):
    energy, (x, y) = make(terms), sentences([2, 4])
    (gradient,) = torch.autograd.grad(energy(x, y.requires_grad_()).sum(), y)
    assert torch.isfinite(gradient).all()
    real = gradient[0, :, :2]
    assert real.any()
    if not any(
        isinstance(term, Chain) for term in energy.terms
    ):  # the space masks what the chain would pass on
        assert not gradient[0, :, 2:].any()


@every_energy
def test_gradients_in_outputs_and_parameters_are_correct(terms):
    energy, (x, y) = make(terms), sentences([2, 3])
    y = y[:, 1:2].requires_grad_()
    assert torch.autograd.gradcheck(lambda y: energy(x, y), (y,), fast_mode=True)
    parameters = list(energy.terms.parameters())
    assert torch.autograd.gradcheck(lambda *_: energy(x, y), tuple(parameters), fast_mode=True)


@pytest.mark.parametrize("name", ["attention", "everything"])
def test_second_derivatives_are_correct(name):
    energy, (x, y) = make(TERMS[name]), sentences([2, 3])
    assert torch.autograd.gradgradcheck(lambda y: energy(x, y), (y[:, 1:2].requires_grad_(),))


def test_an_output_of_zeros_has_an_energy_and_a_gradient():
    energy, (x, y) = make(TERMS["ge_b"]), sentences([3])
    y = torch.zeros_like(y).requires_grad_()
    (gradient,) = torch.autograd.grad(energy(x, y).sum(), y)
    assert torch.isfinite(gradient).all()


@torch.no_grad()
def test_a_language_model_is_a_distribution_over_sequences():
    """Over all sequences up to a length, probabilities sum to one but for what is longer."""
    torch.manual_seed(0)
    term = lm(backward=True).double()
    term.head.bias[-1] = 3.0  # ends soon
    total = 0.0
    for length in range(1, 7):
        every = torch.tensor(list(itertools.product(range(TAGS), repeat=length)))
        y = F.one_hot(every, TAGS).double().unsqueeze(0)
        mask = torch.ones(1, length, dtype=torch.bool)
        tokens = Tokens(torch.zeros(1, length, 1), torch.zeros(1, length, 1), mask)
        total += float((-term.evaluate(term.prepare(tokens), y)).exp().sum())
    empty = term.head(term.lstm(term.start.view(1, 1, -1))[0]).softmax(-1)[0, 0, -1]
    assert float(empty) + total == pytest.approx(1, abs=1e-3)
    assert float(empty) + total < 1


def every_sequence(length):
    found = torch.tensor(list(itertools.product(range(TAGS), repeat=length)))
    return F.one_hot(found, TAGS).double()


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
@torch.no_grad()
def test_viterbi_and_partition_are_those_of_all_sequences(lengths, seed):
    torch.manual_seed(seed)
    energy = Sum(encoder(), chain(seed)).double()
    x, _ = sentences(lengths, seed)
    (prepared,) = energy.encode(x)
    term = energy.terms[0]
    best, partition = term.viterbi(prepared), term.log_partition(prepared)
    found = energy(x, best.unsqueeze(1)).squeeze(1)
    for row, length in enumerate(lengths):
        energies = energy(x[row : row + 1, :length], every_sequence(length).unsqueeze(0))[0]
        assert float(found[row]) == pytest.approx(float(energies.min()), rel=1e-10)
        assert float(partition[row]) == pytest.approx(float((-energies).logsumexp(0)), rel=1e-10)
        assert best[row, :length].sum(-1).eq(1).all()
        assert not best[row, length:].any()


def test_no_relaxed_output_undercuts_viterbi():
    """The relaxed chain is multilinear in each token, so that its minimum is at a corner."""
    energy, (x, y) = make(TERMS["chain"]), sentences([4, 2, 3])
    (prepared,) = energy.encode(x)
    lowest = energy(x, energy.terms[0].viterbi(prepared).unsqueeze(1))
    assert (energy(x, y) >= lowest - 1e-12).all()


def test_the_gradient_of_the_partition_is_the_marginals():
    term = chain().double()
    local = torch.randn(1, 3, TAGS, dtype=torch.float64, requires_grad=True)
    prepared = Potentials(local, torch.ones(1, 3, dtype=torch.bool))
    (marginals,) = torch.autograd.grad(term.log_partition(prepared), local)
    every = every_sequence(3)
    weights = (-term.evaluate(prepared, every.unsqueeze(0))[0]).softmax(0)
    torch.testing.assert_close(marginals[0], torch.einsum("n,ntl->tl", weights, every))


def test_the_partition_of_many_tags_is_that_of_explicit_sums():
    """In float32 within 1e-6 of float64, its gradients too; with forbidden tags and pairs as a scheme has."""
    torch.manual_seed(0)
    tags, lengths, never = 60, torch.tensor([12, 7, 1]), torch.finfo(torch.float32).min / 26
    local, pairs = 3 * torch.randn(3, 12, tags), torch.randn(tags, tags)
    pairs = torch.where(torch.rand(tags, tags) < 0.3, never, pairs)
    local[:, 0, :20] = never
    mask = torch.arange(12) < lengths.unsqueeze(1)
    partition, chances = log_partition(local, pairs, mask), marginals(local, pairs, mask)
    exact = local.double().requires_grad_()
    rows = []
    for row, length in enumerate(lengths.tolist()):
        total = exact[row, 0]
        for place in range(1, length):
            total = (total.unsqueeze(1) + pairs.double()).logsumexp(0) + exact[row, place]
        rows.append(total.logsumexp(0))
    torch.testing.assert_close(partition.double(), torch.stack(rows), rtol=1e-6, atol=0)
    (expected,) = torch.autograd.grad(sum(rows), exact)
    torch.testing.assert_close(chances.double(), expected, rtol=0, atol=1e-5)


def test_the_chain_starts_inference_and_pretraining():
    energy, (x, _) = make(TERMS["everything"]), sentences([2, 3])
    tokens = energy.encoder(x)
    torch.testing.assert_close(energy.unary_logits(x), energy.terms[0].local(tokens.states))
    with pytest.raises(ValueError, match="no local term"):
        make(TERMS["ge_a"]).unary_logits(x)


@torch.no_grad()
def test_attention_judges_all_sequences_as_explicit_loops_do():
    energy, (x, _) = make(TERMS["attention"]), sentences([3], length=5)
    every = every_sequence(3)
    (term,), tokens = energy.terms, energy.encoder(x[:, :3])
    expected = torch.tensor([attention_by_hand(term, tokens.states[0], y) for y in every])
    padded = F.pad(every, (0, 0, 0, 2)).unsqueeze(0)
    torch.testing.assert_close(energy(x, padded)[0], expected.double())
    assert expected.std() > 1e-3


def test_attention_in_single_precision_does_not_see_padding():
    energy, (x, y) = make(TERMS["attention"]).float(), sentences([2, 6])
    alone = energy(x[:1, :2], y[:1, :, :2].float())
    torch.testing.assert_close(energy(x, y.float())[0], alone[0], rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_attention_can_count_a_tag_and_a_chain_cannot():
    space = every_sequence(4).unsqueeze(0)
    twice = (space[..., 1].sum(-1) > 1).double()

    def left(term):
        """What least squares cannot explain, on tokens that all look alike."""
        torch.manual_seed(0)
        tokens = Tokens(torch.ones(1, 4, 4).double(), torch.ones(1, 4, WIDTH).double(), torch.ones(1, 4) > 0)
        optimizer = torch.optim.LBFGS(term.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            with torch.enable_grad():
                error = ((term.evaluate(term.prepare(tokens), space) - twice) ** 2).mean()
                error.backward()
            return error.detach()

        optimizer.step(closure)
        return float(closure())

    assert left(attention(hidden=8).double()) < 0.3 * left(chain().double())


def test_heads_share_out_the_hidden_units():
    with pytest.raises(ValueError, match="6 hidden units are not shared out among 4 heads; give a multiple"):
        SelfAttention(4, TAGS, hidden=6)
