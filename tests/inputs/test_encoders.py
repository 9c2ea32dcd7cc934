"""Pretrained encoders: found, refused, their features cached, and trained with the networks."""

import json
import shutil
import socket

import numpy as np
import pytest
import torch

import lossnet
from benchmarks import encoders
from lossnet.build import build
from lossnet.data import DataError, FeatureTable, LabelTable, Sentences, TextTable
from lossnet.data.examples import Examples
from lossnet.data.pieces import padded
from lossnet.export import export
from lossnet.inputs import Fitting, Text, Words
from lossnet.inputs.encoders import Encoder
from lossnet.loading import Loaded
from lossnet.losses import TaskLoss
from lossnet.methods import CrossEntropy
from lossnet.model import Model, load_energy
from lossnet.nets import TextEncoder
from lossnet.training.state import rate_groups

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["a good film", "the book was bad", "very good music", "not a bad film", "bad music", "good book"] * 4
LABELS = np.array([["good" in text, "film" in text, "music" in text] for text in TEXTS], dtype=np.uint8)


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """A cache of its own, and no network."""
    monkeypatch.setenv("LOSSNET_CACHE", str(tmp_path / "cache"))

    def refuse(*given, **options):
        raise AssertionError("something was asked for over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def examples(beside=False):
    numbers = FeatureTable(np.arange(24.0)[:, None], ["n"]) if beside else None
    return Examples(TextTable(TEXTS, numbers), LabelTable(LABELS, ["good", "film", "music"]))


def loaded(folder, train="none", beside=False):
    data = examples(beside)
    fitting = Fitting(encoder=folder, train_encoder=train)
    return Loaded.from_parts(data.take(range(16)), data.take(range(16, 24)), fitting=fitting)


def reference(folder, texts):
    """Mean-pooled features, computed with transformers alone, one text at a time."""
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    features = []
    for text in texts:
        with torch.no_grad():
            hidden = network(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        mean = hidden.mean(0)
        features.append(mean / mean.norm() * len(mean) ** 0.5)
    return torch.stack(features).numpy()


def test_features_are_those_of_transformers(folder):
    encoder = Encoder.find(folder)
    texts = ["a good film", "", "very very very bad 😀 فيلم " * 3]
    np.testing.assert_allclose(encoder.features(texts), reference(folder, texts), rtol=1e-4, atol=1e-5)
    assert encoder.width == 16


def test_they_are_computed_once(folder, monkeypatch):
    asked = []
    computed = Encoder.computed

    def noted(self, texts, *more):
        asked.append(len(texts))
        return computed(self, texts, *more)

    monkeypatch.setattr(Encoder, "computed", noted)
    first = Encoder.find(folder).features(TEXTS)
    again = Encoder.find(folder).features(["new one", *TEXTS[::-1]])
    assert asked == [6, 1]
    np.testing.assert_array_equal(again[1:], first[::-1])
    other = Encoder.find(folder)
    object.__setattr__(other, "pooling", "first")
    other.features(TEXTS)  # another reading of texts is another encoder
    assert asked == [6, 1, 6]


def test_damaged_parts_of_the_cache_are_computed_again(folder, tmp_path):
    wanted = Encoder.find(folder).features(TEXTS)
    (file,) = (tmp_path / "cache").glob("*/*.safetensors")
    for damaged in (b"", b"nothing", file.read_bytes()[:-9]):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(Encoder.find(folder).features(TEXTS), wanted)


def test_long_texts_are_cut(folder):
    encoder = Encoder.find(folder)
    assert [len(row) for row in encoder.tokenised(["good " * 10_000, "good"])] == [62, 3]


def test_a_model_with_a_frozen_encoder_keeps_it(folder, tmp_path):
    data = loaded(folder, beside=True)
    terms = len(data.task.input.terms.terms)
    matrix = data.train.source.matrix.toarray()
    assert matrix.shape == (16, 1 + terms + 16)
    np.testing.assert_allclose((matrix[:, -16:] ** 2).mean(1), 1, rtol=1e-5)
    model = Model(*_built(data, "seal", "nce"))
    model.save(tmp_path / "model")
    again = lossnet.load(tmp_path / "model")
    rows = [{"text": text, "n": 3.0} for text in TEXTS[:3]]
    np.testing.assert_allclose(again.predict_proba(rows), model.predict_proba(rows), rtol=1e-5)
    shutil.rmtree(tmp_path / "cache")
    again.predict_proba(["unheard of"])
    assert not (tmp_path / "cache").exists()  # what a model is asked is not kept
    with pytest.raises(DataError, match="weights lack"):
        Text.from_state(*_without(data.task.input.state(), "encoder/embeddings.LayerNorm.bias"))


def _without(state, name):
    content, arrays = state
    return content, {key: array for key, array in arrays.items() if key != name}


def _built(data, method="cross-entropy", loss="none"):
    settings = lossnet.Settings(task_hidden=8, task_layers=1, energy_hidden=8, energy_layers=1)
    torch.manual_seed(0)
    return build(method, loss, settings, data.task), (method, loss), settings, data.task


@pytest.mark.parametrize("train", ["top", "lora", "all"])
def test_an_encoder_is_trained_kept_and_exported(folder, tmp_path, train):
    data = loaded(folder, train)
    settings = lossnet.Settings(epochs=8, task_lr=1e-2, task_layers=1, energy_layers=1, batch_size=8)
    run = lossnet.Run("films", "seal", settings=settings, output=tmp_path / "run", progress=False)
    before = data.task.input.encoder.network().state_dict()
    result = lossnet.train(run, data=data)
    assert result["metrics"]["valid"]["f1_tuned"] > 0.8
    model = lossnet.load(tmp_path / "run")
    after = model.method.task_net.encoder.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    if train == "lora":
        assert moved
        assert all("lora" in name for name in moved)
    else:
        assert any("layer.1." in name for name in moved)
        assert any("embeddings" in name for name in moved) == (train == "all")
    assert not any("weights" in name for name in model.task.input.state()[1])
    energy = load_energy(tmp_path / "run")
    assert energy.encoder.encoder.state_dict().keys() == after.keys()
    assert export(model, tmp_path / "model.onnx") < 1e-4


def test_the_trained_parts_have_rates_of_their_own(folder):
    method = _built(loaded(folder, "all"))[0]
    groups = rate_groups(method.task_net, 0.01)
    assert [round(group["lr"] / 0.01, 4) for group in groups] == [1, 0.05, 0.04, 0.032]
    trained = [one for one in method.task_net.parameters() if one.requires_grad]
    assert sum(len(group["params"]) for group in groups) == len(trained)
    assert {id(one) for one in groups[0]["params"]} == {id(one) for one in method.task_net.mlp.parameters()}
    (only,) = rate_groups(_built(loaded(folder))[0].task_net, 0.01)
    assert only["lr"] == 0.01


def test_a_large_batch_has_the_gradient_of_a_whole_one(folder):
    encoder = Encoder.find(folder, "all").network().double().eval()
    pieces = padded(Encoder.find(folder).tokenised((TEXTS * 2)[:45]))
    direction = torch.randn(45, 16, dtype=torch.float64)
    parameters = [one for one in encoder.parameters() if one.requires_grad]
    gradients = []
    for features in (encoder(pieces), encoder._encoded(pieces)):
        gradients.append(torch.autograd.grad((features * direction).sum(), parameters, allow_unused=True))
    for ours, wanted in zip(*gradients, strict=True):
        if wanted is not None:
            torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-10)


def test_states_of_a_large_batch_are_those_of_its_parts(folder):
    encoder = Encoder.find(folder, "all").network().double().eval()
    pieces = padded(Encoder.find(folder).tokenised((TEXTS * 2)[:45]))
    torch.testing.assert_close(encoder.states(pieces), encoder._states(pieces))
    with torch.no_grad():
        torch.testing.assert_close(encoder.states(pieces)[40:], encoder._states(pieces[40:]))


def test_padding_changes_nothing(folder):
    encoder = Encoder.find(folder, "all").network().eval()
    row = torch.tensor([[2, 5, 6, 3]])
    more = torch.cat([row, torch.full((1, 7), -1)], 1)
    torch.testing.assert_close(encoder(more), encoder(row))


def test_an_energy_shares_the_encoder(folder, tmp_path):
    data = loaded(folder, "all")
    fitting = Fitting(encoder=folder, train_encoder="all", energy_encoder="shared")
    data = Loaded.from_parts(data_of(range(16)), data_of(range(16, 24)), fitting=fitting)
    method = _built(data, "seal", "nce")[0]
    encoder = method.task_net.encoder
    assert not any("backbone" in name for name in method.energy.state_dict())
    passes = []
    encoder.backbone.register_forward_hook(lambda *given: passes.append(torch.is_grad_enabled()))
    method.train()
    for update in method.updates(data.train.batch(torch.arange(8))):
        network = method.get_submodule(update.network)
        if update.network == "energy":
            own = set(network.parameters())
            assert not own & set(encoder.parameters())
            gradients = torch.autograd.grad(update.loss, list(own), allow_unused=True)
            assert any(one is not None and one.abs().sum() > 0 for one in gradients)
    assert passes == [True]  # one for the prediction, the energy and the task net's step
    passes.clear()
    method.task_loss = TaskLoss(energy_weight=0.0)
    weights = [one for one in method.task_net.parameters() if one.requires_grad]
    batch = data.train.batch(torch.arange(8))
    for module in method.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    (*_, last) = method.updates(batch)
    ours = torch.autograd.grad(last.loss, weights, allow_unused=True)
    prediction = method.prediction(batch)  # a pass of its own, since that gradient is used
    wanted = torch.autograd.grad(method.task_loss(prediction, batch.y), weights, allow_unused=True)
    assert passes == [True, True]
    for one, other in zip(ours, wanted, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other)
    x = data.train.batch(torch.arange(8)).x
    with torch.no_grad():
        first = method.energy.encoder(x)
        next(encoder.parameters()).mul_(2)
        assert not torch.equal(method.energy.encoder(x), first)  # the weights are others now
    model = Model(method, ("seal", "nce"), _built(data)[2], data.task)
    model.save(tmp_path / "model")
    y = torch.ones(8, 1, 3)
    method.eval()
    with torch.no_grad():
        torch.testing.assert_close(load_energy(tmp_path / "model")(x, y), method.energy(x, y))
    with pytest.raises(ValueError, match="this method has none; give it its own"):
        _built(data, "dvn", "regression")


def data_of(rows):
    return examples().take(rows)


@pytest.fixture(scope="module")
def deep(folder, tmp_path_factory):
    """The same with four layers, of which two are below the top ones."""
    place = tmp_path_factory.mktemp("deep")
    shutil.copytree(folder, place, dirs_exist_ok=True)
    config = transformers.AutoConfig.from_pretrained(folder, num_hidden_layers=4)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        transformers.BertModel(config).save_pretrained(place)
    return place


def reading(method, x):
    """Return a list to which passes through the first and the last layers of both networks are added."""
    encoders = {"task_net": method.task_net.encoder, "energy": method.energy.encoder.encoder}
    read = []
    for name, encoder in encoders.items():
        encoder(x)  # which sees whether it can be parted
        for place in (0, 3):
            layer = encoder.backbone.encoder.layer[place]
            layer.register_forward_hook(lambda *given, key=(name, place): read.append(key))
    method.train()
    return read


def alone(network):
    """Let an encoder read texts anew each time, from its first layer."""
    for module in network.modules():
        if isinstance(module, TextEncoder):
            module.is_read_twice, module._below._is_apart = False, False


@pytest.mark.parametrize("train", ["top", "lora", "all"])
@pytest.mark.parametrize(("energy_steps", "task_steps", "count"), [(1, 1, 8), (2, 2, 8), (1, 1, 40)])
def test_a_step_with_fewer_passes_is_the_same(deep, train, energy_steps, task_steps, count):
    data = loaded(deep, train)
    batch = data.train.batch(torch.arange(count) % 16)
    losses, passes = [], []
    for is_alone in (True, False):
        method = _built(data, "seal", "nce")[0].double()
        method.energy_steps, method.task_steps = energy_steps, task_steps
        for module in method.train().modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if is_alone:
            alone(method)
        read = reading(method, batch.x)
        torch.manual_seed(0)
        found = []
        for update in method.updates(batch._replace(y=batch.y.double())):
            weights = [one for one in method.get_submodule(update.network).parameters() if one.requires_grad]
            gradients = torch.autograd.grad(update.loss, weights, allow_unused=True)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    if gradient is not None:
                        weight.sub_(0.05 * gradient)
            found.append((update.loss, gradients))
        losses.append(found)
        passes.append(read)
    for (loss, gradients), (other, others) in zip(*losses, strict=True):
        torch.testing.assert_close(loss, other, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradients, others, rtol=1e-7, atol=1e-9)
    if count == 8:
        # Each prediction that an energy learns from is a pass, and the last one of them is the task step's.
        tops = [[name for name, layer in read if layer == 3] for read in passes]
        energy = ["energy"] * task_steps * (energy_steps + 1)
        assert sorted(tops[0]) == energy + ["task_net"] * task_steps * (energy_steps + 1)
        assert sorted(tops[1]) == energy + ["task_net"] * task_steps * energy_steps
        below = [[name for name, layer in read if layer == 0] for read in passes]
        assert below == ([tops[0], ["task_net"]] if train == "top" else tops)


def test_a_transformer_that_cannot_be_parted_is_read_as_a_whole(deep):
    network = Encoder.find(deep, "top").network().train()
    layers = network.backbone.encoder.layer

    class Other(torch.nn.Module):
        """A layer that sees how many there are."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hidden, *given, **named):
            return self.inner(hidden, *given, **named) * len(network.backbone.encoder.layer)

    layers[3] = Other(layers[3])
    network(torch.tensor([[2, 5, 6, 3]]))
    assert network._below._is_apart is False


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "electra", "mpnet", "deberta-v2", "modernbert"])
def test_other_transformers_are_parted_too(kind):
    config = {
        "model_type": kind, "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3, "dim": 16,
        "n_layers": 3, "n_heads": 2, "hidden_dim": 16, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 32, "pad_token_id": 0, "embedding_size": 16, "relative_attention": True,
    }  # fmt: skip
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        network = TextEncoder(config, train="top").train()
    pieces = torch.tensor([[2, 5, 6, 3], [4, 7, -1, -1]])
    network(pieces)
    assert network._below._is_apart


def test_tokens_are_read_by_their_first_pieces(folder, tmp_path):
    kind = Words.fit([Sentences((("good",),))], Fitting(encoder=folder, train_encoder="all"))
    encoder = kind.encoder
    assert encoder.by_token([("a", "very-good", "film")]) == ([[2, 9, 12, 1, 4, 6, 3]], [[1, 2, 5]])
    assert encoder.by_token([("good",) * 100])[1] == [[*range(1, 62 - 1), *[0] * 40]]
    prepared = kind.prepare(Sentences((("a", "very-good", "film"), ("bad",))))
    network = kind.network(lossnet.Settings(task_dropout=0.0), "position").eval()
    tokens = network(prepared.batch(torch.arange(2)))
    hidden = network.encoder.states(torch.tensor([[2, 9, 12, 1, 4, 6, 3]]))
    torch.testing.assert_close(tokens.states[0], hidden[0, [1, 2, 5]])
    assert tokens.mask.tolist() == [[True] * 3, [True, False, False]]
    assert not tokens.states[1, 1:].any()
    again = prepared.take(np.array([1])).join([prepared])
    assert again.firsts == [[1], [1, 2, 5], [1]]


@pytest.mark.parametrize("method", ["crf", "seal"])
def test_tags_are_learned_from_word_pieces(folder, tmp_path, method):
    sentences = [text.split() for text in TEXTS]
    tags = [["ADJ" if word in ("good", "bad") else "X" for word in words] for words in sentences]
    tagger = lossnet.SequenceTagger(
        method=method, encoder=folder, train_encoder="all", epochs=6, learning_rate=1e-2, random_state=0
    )
    assert tagger.fit(sentences, tags, X_val=sentences, y_val=tags).score(sentences, tags) > 0.9
    tagger.model_.save(tmp_path / "model")
    model = lossnet.load(tmp_path / "model")
    assert model.named([["a", "good", "book"]]) == [[("a", "X"), ("good", "ADJ"), ("book", "X")]]
    with pytest.raises(ValueError, match=r"cannot be exported|by a search"):
        export(model, tmp_path / "model.onnx")


def test_implicit_training_differentiates_twice(folder):
    data = loaded(folder, "top")
    method = _built(data, "implicit", "nce")[0]
    for update in method.updates(data.train.batch(torch.arange(4))):
        assert torch.isfinite(update.loss)


def test_resumed_training_is_the_same(folder, tmp_path):
    data = loaded(folder, "all")
    histories = []
    for epochs in ((4,), (2, 4)):
        trainer = None
        for place, count in enumerate(epochs):
            torch.manual_seed(0)
            trainer = lossnet.Trainer(
                CrossEntropy(_built(data)[0].task_net, lossnet.MultiLabel(3)), max_epochs=count, lr=1e-2,
                checkpoint=tmp_path / f"{len(epochs)}.safetensors", checkpoint_every=0, progress=False,
            )  # fmt: skip
            history = trainer.fit(data.train, data.valid, resume=place > 0)
        histories.append([entry["losses"] for entry in history])
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda place: (place / "modeling_own.py").write_text("1/0"), "has code in it .modeling_own.py."),
        (lambda place: change(place, auto_map={"AutoModel": "own.Own"}), "code of its own .auto_map."),
        (lambda place: change(place, model_type=3), "names no model_type"),
        (lambda place: change(place, hidden_size=10**12), "hidden_size is 1000000000000"),
        (lambda place: change(place, num_hidden_layers=10**5), "num_hidden_layers is 100000"),
        (lambda place: (place / "config.json").write_text("{"), "config.json is damaged"),
        (lambda place: (place / "config.json").unlink(), "has no config.json"),
        (lambda place: (place / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda place: (place / "tokenizer.json").write_text("{}"), "tokenizer.json is damaged"),
        (lambda place: (place / "tokenizer.json").write_bytes(b"\xff"), "tokenizer.json cannot be read"),
        (lambda place: (place / "model.safetensors").unlink(), "has no weights as model.safetensors, none"),
        (lambda place: pickle(place), "only pickled ones .pytorch_model.bin."),
        (lambda place: cut(place), "model.safetensors is damaged"),
        (lambda place: change(place, intermediate_size=31), "has the shape"),
        (lambda place: change(place, num_hidden_layers=3), "weights lack"),
        (lambda place: change(place, model_type="t5"), "is of no encoder"),
    ],
)
def test_folders_that_cannot_be_used_are_refused(folder, tmp_path, damage, message):
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    damage(place)
    with pytest.raises(DataError, match=message):
        Encoder.find(place).features(TEXTS)


def change(place, **values):
    content = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(content | values))


def pickle(place):
    (place / "model.safetensors").rename(place / "pytorch_model.bin")


def cut(place):
    content = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(content[: len(content) // 2])


def test_no_hub_is_asked_unless_a_name_was_given(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(name, allow_patterns):
        asked.append(name)
        assert not any(pattern.endswith((".py", ".bin")) for pattern in allow_patterns)
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    Encoder.find(folder)
    with pytest.raises(DataError, match="there is no such folder"):
        Encoder.find("../nowhere/at/all")
    assert not asked
    with pytest.raises(DataError, match=r"no folder or installed encoder is called 'some/encoder'.*no net"):
        Encoder.find("some/encoder")
    assert asked == ["some/encoder"]


def test_the_estimator_takes_an_encoder(folder):
    quick = {"method": "cross-entropy", "task_layers": 1, "random_state": 0}
    for train, epochs in (("none", 30), ("all", 4)):
        classifier = lossnet.MultiLabelClassifier(
            encoder=folder, train_encoder=train, epochs=epochs, learning_rate=1e-2, **quick
        )
        classifier.fit(TEXTS, LABELS, X_val=TEXTS, y_val=LABELS)
        assert classifier.score(TEXTS, LABELS) > 0.8
    with pytest.raises(DataError, match="encoders read texts"):
        classifier.fit(np.eye(24), LABELS)


def test_what_is_missing_is_said(folder):
    content, arrays = Text.fit([TextTable(TEXTS)], Fitting(encoder=folder)).state()
    for changed in ({"pieces": 0}, {"pooling": "last"}, {"train": "some"}, {"tokenizer": 3}, {"config": []}):
        with pytest.raises((DataError, TypeError)):
            Text.from_state({**content, "encoder": {**content["encoder"], **changed}}, arrays)
    assert isinstance(Text.from_state(json.loads(json.dumps(content)), arrays).encoder.network(), TextEncoder)


def test_the_benchmark_measures_steps_and_the_cache(folder, tmp_path):
    encoders.run(tmp_path, str(folder), batch=4, words=5, repeats=1)
    content = json.loads((tmp_path / "encoders.json").read_text())
    assert list(content["steps"]) == ["all", "top", "lora"]
    assert all(list(seconds) == list(encoders.WAYS) for seconds in content["steps"].values())
    assert content["cache"]["texts"] == 1024


def test_energies_of_sentences_share_no_encoder(folder):
    with pytest.raises(DataError, match="energies of sentences have encoders of their own; leave"):
        Encoder.of_sentences(folder, "top", "shared")
    assert Encoder.of_sentences(folder, "top").train == "top"
