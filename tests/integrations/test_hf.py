"""Learned losses inside Hugging Face's `Trainer`, with models and tokenizers of a few kilobytes."""

import copy
import doctest
import importlib
import json
import multiprocessing
import os
import subprocess
import sys

import pytest
import torch
from torch import distributed, nn

import lossnet
from lossnet.decoding import tune_threshold
from lossnet.energies import Chain, LabelInteraction, Local, Scorer, Sum
from lossnet.losses import NCE, Margin, TaskLoss
from lossnet.nets import MLP
from lossnet.spaces import MultiLabel, Tags

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(26))]


@pytest.fixture(scope="module", autouse=True)
def hf():
    """Imported when the first test begins: it takes seconds, and collecting tests should not."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    transformers.logging.set_verbosity_error()
    from lossnet.integrations import hf

    return hf


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def bert(tags=False, dropout=0.0, **config):
    from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    torch.manual_seed(0)
    kind = BertForTokenClassification if tags else BertForSequenceClassification
    return kind(BertConfig(**{"vocab_size": len(WORDS), "num_labels": 3, **sizes, **dropouts, **config}))


def rows(count=20, tags=False):
    """Sentences of 4 to 7 pieces; a label is true, or a piece has a tag, where its words say so."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        ids = torch.randint(4, len(WORDS), (4 + number % 4,), generator=generator)
        truth = torch.stack([(ids % 3 == label).sum() > 1 for label in range(3)]).float()
        if tags:  # the first and the last are no words, and every fourth piece is not the first of its word
            truth = ids % 3
            truth[[0, -1]] = -100
            truth[ids % 4 == 0] = -100
            truth[1] = ids[1] % 3
        made.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": truth})
    return made


def collate(batch):
    columns = {name: [row[name] for row in batch] for name in batch[0]}
    padded = nn.utils.rnn.pad_sequence
    labels = columns.pop("labels")
    tags = labels[0].dtype == torch.long
    made = {name: padded(column, batch_first=True) for name, column in columns.items()}
    return {**made, "labels": padded(labels, True, -100) if tags else torch.stack(labels)}


class Fixed(MultiLabel):
    """Draws that depend on nothing but chances, so that batches can be cut anywhere."""

    def sampler(self, logits, mask=None):
        chances = logits.detach().sigmoid().unsqueeze(1)
        return lambda count: (chances > torch.linspace(0.2, 0.8, count).view(-1, 1)).to(logits.dtype)


def criterion(tags=False, loss=None, space=None, **options):
    torch.manual_seed(1)
    if tags:
        energy = Sum(nn.Identity(), Chain(16, tags=3))
    else:
        energy = Sum(MLP(16, hidden=8, layers=1), Local(8, labels=3), LabelInteraction(3, hidden=4))
    space = space or (Tags(3) if tags else MultiLabel(3))
    return lossnet.LearnedLoss(energy, space, loss or Margin(), **{"lr": 1e-2, "steps": 2, **options})


def arguments(folder, **options):
    from transformers import TrainingArguments

    defaults = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "num_train_epochs": 2}
    defaults |= {"per_device_train_batch_size": 8, "learning_rate": 1e-3, "save_strategy": "no"}
    return TrainingArguments(str(folder), **{**defaults, "dataloader_pin_memory": False, **options})


def trainer_of(folder, learned_loss, model=None, tags=False, plain=False, callbacks=(), **options):
    """A trainer of ours; ``plain``: one of theirs, with our callback unless there is no loss to learn."""
    from transformers import Trainer

    from lossnet.integrations.hf import StructuredLoss, StructuredLossTrainer

    kinds = {"data_collator": collate, "train_dataset": rows(tags=tags), "eval_dataset": rows(8, tags)}
    reads = options.pop("reads", "features")
    given = model or bert(tags), arguments(folder, **options)
    if not plain:
        kinds |= {"learned_loss": learned_loss, "reads": reads, "callbacks": [*callbacks]}
        return StructuredLossTrainer(*given, **kinds)
    if learned_loss is None:
        return Trainer(*given, **kinds)
    structured = StructuredLoss(learned_loss, reads)
    return Trainer(*given, compute_loss_func=structured, callbacks=[structured, *callbacks], **kinds)


def weights(trainer, learned_loss):
    return dict(trainer.model.state_dict()), dict(learned_loss.energy.state_dict())


def assert_bits(one, other):
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        assert [name for name, value in mine.items() if not torch.equal(value, theirs[name])] == []


# ---------------------------------------------------------------- accumulation and scale


@pytest.mark.parametrize(
    ("tags", "loss", "space"), [(False, Margin(), None), (False, NCE(5), Fixed(3)), (True, Margin(), None)]
)
def test_four_micro_batches_are_one_batch(tmp_path, tags, loss, space):
    """Of 20 rows, so that the last batch of an epoch is a part of one; sentences differ in length."""
    trained = []
    for steps, size in ((1, 8), (4, 2)):
        learned = criterion(tags, loss, space).double()
        options = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": size}
        trainer = trainer_of(tmp_path, learned, bert(tags).double(), tags, **options)
        before = copy.deepcopy(weights(trainer, learned))
        trainer.train()
        assert trainer.state.global_step == 6
        trained.append(weights(trainer, learned))
        for old, new in zip(before, trained[-1], strict=True):
            assert any(not torch.allclose(old[name], new[name], atol=1e-4) for name in old)
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("tags", [False, True])
def test_without_weight_of_the_energy_it_is_plain_trainer(tmp_path, tags):
    kind = {"problem_type": None if tags else "multi_label_classification"}
    learned = criterion(tags, task_loss=TaskLoss(energy_weight=0.0)).double()
    models = [bert(tags, **kind).double() for _ in range(2)]
    # Theirs adds up the means of micro-batches, as BERT's loss makes nothing of num_items_in_batch.
    micro = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    ours = trainer_of(tmp_path, learned, models[0], tags, **micro)
    theirs = trainer_of(tmp_path, None, models[1], tags, plain=True)
    losses = [trainer.train().training_loss for trainer in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(*(dict(model.state_dict()) for model in models), rtol=1e-6, atol=1e-9)
    evaluated = [trainer.evaluate()["eval_loss"] for trainer in (ours, theirs)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-6)


def test_the_callback_alone_trains_as_the_trainer_does(tmp_path):
    trained = []
    for plain in (False, True):
        learned = criterion(loss=NCE(5))
        trainer = trainer_of(tmp_path, learned, plain=plain, gradient_accumulation_steps=2)
        trainer.train()
        trained.append(weights(trainer, learned))
    assert_bits(*trained)


def test_the_energys_loss_is_logged_and_evaluation_leaves_the_energy(tmp_path):
    learned = criterion()
    trainer = trainer_of(tmp_path, learned, logging_steps=1)
    trainer.train()
    logged = [logs["energy_loss"] for logs in trainer.state.log_history if "loss" in logs]
    assert len(logged) == 6
    assert logged[-1] == learned.energy_loss.item() != logged[0]
    before = copy.deepcopy(learned.energy.state_dict())
    evaluated = trainer.evaluate()
    assert_bits([before], [learned.energy.state_dict()])
    assert {"eval_f1", "eval_exact_match", "eval_loss"} <= set(evaluated)


def test_a_bfloat16_pass_leaves_the_energy_float32(tmp_path):
    learned = criterion(loss=NCE(5))
    trainer = trainer_of(tmp_path, learned, bf16=True, num_train_epochs=1)
    before = copy.deepcopy(weights(trainer, learned))
    trainer.train()
    for old, new in zip(before, weights(trainer, learned), strict=True):
        assert {value.dtype for value in new.values() if value.is_floating_point()} == {torch.float32}
        assert any(not torch.equal(old[name], value) for name, value in new.items())


def test_another_model_needs_another_energy(tmp_path):
    trainer = trainer_of(tmp_path, criterion(), max_steps=1)
    trainer.model_init = lambda: bert()  # made anew by each training
    trainer.train()
    with pytest.raises(
        ValueError, match="was trained beside another model; make a new learned loss for each"
    ):
        trainer.train()


# ---------------------------------------------------------------- checkpoints


class KilledError(Exception):
    pass


def killer(step):
    from transformers import TrainerCallback

    class Killer(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                raise KilledError

    return Killer()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("saved", [2, 3])
def test_a_training_that_was_killed_goes_on_bit_for_bit(tmp_path, plain, saved):
    """From within an epoch of three steps, and from its end; with dropout in both networks, and draws."""

    def make(folder, callbacks=()):
        learned = criterion(loss=NCE(5))
        learned.energy.encoder = nn.Sequential(nn.Dropout(0.2), learned.energy.encoder)
        options = {"save_strategy": "steps", "save_steps": saved, "gradient_accumulation_steps": 2}
        options |= {"per_device_train_batch_size": 4, "logging_steps": 1}
        options |= {"eval_strategy": "steps", "eval_steps": saved}  # after a checkpoint it would shift draws
        return trainer_of(folder, learned, bert(dropout=0.2), False, plain, callbacks, **options), learned

    whole, whole_loss = make(tmp_path / "whole")
    whole.train()
    with pytest.raises(KilledError):
        make(tmp_path / "killed", [killer(saved + 1)])[0].train()
    resumed, resumed_loss = make(tmp_path / "killed")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == whole.state.global_step == 6
    assert_bits(weights(resumed, resumed_loss), weights(whole, whole_loss))
    moments = [each.optimizer.state_dict()["state"].values() for each in (resumed_loss, whole_loss)]
    for mine, theirs in zip(*moments, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    losses = [
        [logs["loss"] for logs in each.state.log_history if "loss" in logs] for each in (resumed, whole)
    ]
    assert losses[0] == losses[1]


def test_a_checkpoint_elsewhere_is_resumed_with_its_own_energy(tmp_path):
    def make(folder, **options):
        learned = criterion()
        return trainer_of(tmp_path / folder, learned, save_strategy="epoch", **options), learned

    first, first_loss = make("one")
    first.train()
    second, second_loss = make("two", num_train_epochs=1, learning_rate=5e-3)
    second.train()  # has a checkpoint of the same step as the first one's first
    second, second_loss = make("two")
    second.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-3"))
    assert_bits(weights(second, second_loss), weights(first, first_loss))


def test_a_checkpoint_without_its_energy_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, criterion(), save_strategy="epoch")
    trainer.train()
    path = tmp_path / "checkpoint-3" / "learned_loss.pt"
    torch.save({**torch.load(path), "step": 2}, path)
    again = trainer_of(tmp_path, criterion(), save_strategy="epoch")
    with pytest.raises(ValueError, match=r"is of step 2, and the training goes on from step 3"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"learned_loss\.pt is not there: the checkpoint was written"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


# ---------------------------------------------------------------- several processes


@pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA does not survive")
def test_two_processes_train_as_one(tmp_path):
    def train(folder, steps, size):
        learned = criterion().double()
        options = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": size}
        trainer = trainer_of(folder, learned, bert().double(), save_strategy="epoch", **options)
        trainer.train_dataset = rows(16)  # the samplers of several processes fill up the last batch
        trainer.train()
        return weights(trainer, learned)

    def work(rank):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        os.environ["OMP_NUM_THREADS"] = "1"  # accelerate warns without
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/group", rank=rank, world_size=2
        )
        torch.save(train(tmp_path / "two", 2, 2), tmp_path / f"{rank}.pt")
        distributed.barrier()

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    expected = train(tmp_path / "one", 1, 8)
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert_bits(first, second)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-8)
    assert (tmp_path / "two" / "checkpoint-2" / "learned_loss.pt").is_file()


# ---------------------------------------------------------------- what is saved


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


CLASSIFY = """
import sys
sys.modules["lossnet"] = None  # importing it raises an ImportError
import json
from transformers import pipeline
labels, tags = sys.argv[1:]
classify = pipeline("text-classification", model=labels, top_k=None)
config = classify.model.config
tag = pipeline("token-classification", model=tags, aggregation_strategy="none")
chances = {one["label"]: one["score"] for one in classify(["w3 w4 w5"])[0]}
found = {"chances": chances, "thresholds": config.thresholds, "problem": config.problem_type}
print(json.dumps({**found, "tags": [str(one["entity"]) for one in tag("w3 w4 w5")]}))
"""


def test_a_saved_folder_classifies_where_lossnet_cannot_be_imported(tmp_path, hf):
    names = {"id2label": {0: "drama", 1: "war", 2: "noir"}, "label2id": {"drama": 0, "war": 1, "noir": 2}}
    folders = []
    for tags in (False, True):
        trainer = trainer_of(tmp_path / str(tags), criterion(tags), bert(tags, **names), tags)
        trainer.processing_class = tokenizer()
        trainer.train()
        if not tags:
            thresholds = hf.tune_thresholds(trainer, per_label=True)
            model = trainer.model.eval()
        trainer.save_model()
        folders.append(str(tmp_path / str(tags)))
    run = subprocess.run(
        [sys.executable, "-c", CLASSIFY, *folders], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    logits = model(**tokenizer()("w3 w4 w5", return_tensors="pt")).logits[0]
    chances = dict(zip(("drama", "war", "noir"), logits.sigmoid().tolist(), strict=True))
    assert found["chances"] == pytest.approx(chances, abs=1e-5)
    assert found["thresholds"] == pytest.approx(thresholds)
    assert found["problem"] == "multi_label_classification"
    assert len(found["tags"]) == 3
    assert set(found["tags"]) <= set(chances)


def test_thresholds_are_those_of_validation_data(tmp_path, hf):
    trainer = trainer_of(tmp_path, criterion())
    data = rows(8)
    chances = torch.as_tensor(trainer.predict(data).predictions).sigmoid()
    truth = torch.stack([row["labels"] for row in data])
    assert (
        hf.tune_thresholds(trainer, goal="micro-f1") == [tune_threshold(chances, truth, goal="micro-f1")] * 3
    )
    assert trainer.model.config.thresholds == hf.tune_thresholds(trainer, data, "micro-f1")
    trainer.eval_dataset = None
    with pytest.raises(ValueError, match="tuned on validation data; give a dataset"):
        hf.tune_thresholds(trainer)


@pytest.mark.parametrize("tags", [False, True])
def test_the_card_has_licence_task_and_metrics(tmp_path, hf, tags):
    from huggingface_hub import ModelCard

    trainer = trainer_of(tmp_path / "films", criterion(tags), tags=tags)
    trainer.train()
    metrics = trainer.evaluate()
    if not tags:
        hf.tune_thresholds(trainer)
    trainer.create_model_card(license="apache-2.0", dataset="Film tables")
    card = ModelCard.load(tmp_path / "films" / "README.md")
    kind = "token-classification" if tags else "text-classification"
    data = card.data
    assert (data.license, data.pipeline_tag, data.library_name) == ("apache-2.0", kind, "transformers")
    assert {"lossnet", "generated_from_trainer"} <= set(data.tags)
    assert {result.dataset_name for result in data.eval_results} == {"Film tables"}
    said = {result.metric_type: result.metric_value for result in data.eval_results}
    labels = {"f1", "micro_f1", "macro_f1", "exact_match", "hamming_loss"}
    assert said.keys() == ({"accuracy"} if tags else labels)
    assert said == pytest.approx({name: metrics[f"eval_{name}"] for name in said})
    assert f'pipeline("{kind}"' in card.text
    assert ("config.thresholds" in card.text) == (not tags)


def test_what_is_pushed_is_the_model_with_its_card(tmp_path, monkeypatch):
    """Without a hub: the upload itself is caught."""
    from types import SimpleNamespace

    pushed = {}
    hub = SimpleNamespace(upload_folder=lambda **given: pushed.update(given))
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)
    trainer = trainer_of(tmp_path / "films", criterion())
    trainer.hub_model_id = "somebody/films"  # as if the repository had been made
    trainer.evaluate()
    trainer.push_to_hub(license="mit", dataset="Film tables")
    assert pushed["repo_id"] == "somebody/films"
    card = (tmp_path / "films" / "README.md").read_text(encoding="utf-8")
    assert all(line in card for line in ("license: mit", "pipeline_tag: text-classification", "model-index:"))
    assert 'model="somebody/films"' in card
    assert (tmp_path / "films" / "model.safetensors").is_file()


def test_adapters_are_trained_and_merged(tmp_path, hf):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForSequenceClassification

    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    model = peft.get_peft_model(bert(problem_type="multi_label_classification"), adapters)
    learned = criterion()
    trainer = trainer_of(tmp_path, learned, model)
    trainer.train()
    assert learned.energy_loss is not None
    thresholds = hf.tune_thresholds(trainer)
    trainer.model.merge_and_unload().save_pretrained(tmp_path / "merged")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert plain.config.thresholds == thresholds
    batch = collate(rows(4))
    torch.testing.assert_close(plain.eval()(**batch).logits, trainer.model.eval()(**batch).logits)


# ---------------------------------------------------------------- what the energy reads


def test_the_energy_reads_means_over_real_tokens(tmp_path):
    seen = []

    class Reads(nn.Module):
        def forward(self, x, y):
            seen.append(x)
            return y.sum(-1) * x.mean(1, keepdim=True)

    trainer = trainer_of(tmp_path, lossnet.LearnedLoss(Scorer(Reads()), MultiLabel(3)))
    data, model = rows(4), trainer.model.eval()
    trainer.evaluate(data)
    alone = [model.bert(row["input_ids"][None]).last_hidden_state.mean(1)[0] for row in data]
    torch.testing.assert_close(seen[-1], torch.stack(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tags", [False, True])
def test_the_energy_may_read_the_models_inputs(tmp_path, tags):
    seen = []

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.vectors = nn.Embedding(len(WORDS), 3)

        def forward(self, x, y):
            seen.append(x)
            return (y.sum(2) if tags else y).mul(self.vectors(x["input_ids"]).mean(1).unsqueeze(1)).sum(-1)

    space = Tags(3) if tags else MultiLabel(3)
    learned = lossnet.LearnedLoss(Scorer(Reads()), space)
    trainer = trainer_of(tmp_path, learned, tags=tags, reads="inputs", num_train_epochs=1)
    trainer.train()
    assert learned.energy_loss is not None
    assert set(seen[0]) == {"input_ids", "attention_mask", *(["words"] if tags else [])}


@pytest.fixture
def alignment(hf):
    return sys.modules["lossnet.integrations.hf.alignment"]


def test_words_of_tags_stand_beside_each_other(alignment):
    logits = torch.randn(2, 5, 3, requires_grad=True)
    labels = torch.tensor([[-100, 2, -100, 1, -100], [-100, 0, -100, -100, -100]])
    aligned = alignment.align(Tags(3), logits, labels)
    assert aligned.mask.tolist() == [[True, True], [True, False]]
    assert aligned.y.argmax(-1)[aligned.mask].tolist() == [2, 1, 0]
    assert aligned.y.sum(2).tolist() == [[1, 1], [1, 0]]
    torch.testing.assert_close(aligned.logits[0], logits[0, [1, 3]])
    (aligned.logits.sum(2) * aligned.mask).sum().backward()
    assert torch.equal(logits.grad.abs().sum(2) > 0, labels >= 0)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("space", "shapes", "message"),
    [
        (MultiLabel(3), ((2, 3), (2,)), r"labels of shape \(2,\); the learned loss expects \(batch, 3\) of"),
        (Tags(3), ((2, 5, 4), (2, 5)), r"expects \(batch, pieces, 3\) and \(batch, pieces\)"),
    ],
)
def test_other_shapes_are_refused(alignment, space, shapes, message):
    logits, labels = shapes
    with pytest.raises(ValueError, match=message):
        alignment.align(space, torch.zeros(logits), torch.zeros(labels, dtype=torch.long))


def test_labels_other_than_0_and_1_are_refused(alignment):
    with pytest.raises(ValueError, match="labels of a label set must be 0 or 1"):
        alignment.align(MultiLabel(2), torch.zeros(1, 2), torch.tensor([[1, -100]]))


def test_what_does_not_fit_is_refused_at_once(tmp_path, hf):
    with pytest.raises(ValueError, match="the model has 4 labels, the learned loss 3; load the model with"):
        trainer_of(tmp_path, criterion(), bert(num_labels=4))
    with pytest.raises(ValueError, match="problem_type is regression; set it to multi_label"):
        trainer_of(tmp_path, criterion(), bert(problem_type="regression"))
    with pytest.raises(ValueError, match="of a Mask space; give one of MultiLabel or Tags"):
        hf.StructuredLoss(lossnet.LearnedLoss(criterion().energy, lossnet.Mask()))
    with pytest.raises(ValueError, match="reads is 'text'; give one of features, inputs"):
        hf.StructuredLoss(criterion(), reads="text")
    with pytest.raises(ValueError, match="leave out compute_loss_func"):
        hf.StructuredLossTrainer(bert(), learned_loss=criterion(), compute_loss_func=print)
    structured = hf.StructuredLoss(criterion())
    with pytest.raises(RuntimeError, match="give the same StructuredLoss to `callbacks`"):
        structured({"logits": torch.zeros(2, 3)}, torch.ones(2, 3))
    trainer = trainer_of(tmp_path, None, bert(problem_type="multi_label_classification"), plain=True)
    trainer.add_callback(hf.StructuredLoss(criterion()))
    with pytest.raises(RuntimeError, match="was not asked; give the StructuredLoss as `compute_loss_func`"):
        trainer.train()
    with pytest.raises(ValueError, match="the batch has no labels"):
        structured({"logits": torch.zeros(2, 3)}, None)


@pytest.mark.parametrize("module", ["alignment", "sharing", "structured_loss", "trainer"])
def test_examples_of_docstrings(module):
    """They are not collected with the others: every worker would import transformers for them."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    outcome = doctest.testmod(sys.modules[f"lossnet.integrations.hf.{module}"], optionflags=options)
    assert outcome.failed == 0
    assert outcome.attempted > 0 or module == "sharing"


def test_without_transformers_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lossnet.integrations.hf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers; install lossnet\[text\]"):
        importlib.import_module("lossnet.integrations.hf")
