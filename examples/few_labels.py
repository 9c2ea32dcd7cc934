"""Learn three tags from two labelled sentences, and from rules about two hundred others."""

import numpy as np

from lossnet import SequenceTagger
from lossnet.energies import forbids, once, suggests

random = np.random.default_rng(0)
GOODS = ["tea", "rice", "salt", "soap", "bread", "milk", "cups", "nails"]


def order() -> tuple[list[str], list[str]]:
    """Return an order, such as "3 kg rice for Ann", with a tag for each token."""
    amount = [
        (str(random.integers(1, 90)), "amount"),
        (str(random.choice(["kg", "bags", "boxes"])), "amount"),
    ]
    goods = [(str(random.choice(GOODS)), "goods")]
    person = [("for", "other"), (str(random.choice(["Ann", "Bo", "Ida", "Max"])), "person")]
    words = [*amount, *goods, *person] if random.random() < 0.5 else [*person, *amount, *goods]
    return [token for token, _ in words], [tag for _, tag in words]


sentences, tags = zip(*(order() for _ in range(300)), strict=True)
rules = [
    suggests(r"\d+ \w+", "amount", weight=4.0),
    suggests(r"[A-Z]\w+", "person", weight=4.0),
    suggests("for", "other", weight=4.0),
    suggests("|".join(GOODS), "goods", weight=4.0),
    forbids("[a-z]+", "person", weight=4.0),
    once("amount", "goods", "person"),
]
tagger = SequenceTagger(
    method="rules", epochs=10, task_hidden=32, learning_rate=5e-3, ramp_up=20, batch_size=32, random_state=0
)
tagger.set_params(validation_fraction=0)  # two sentences leave none to validate with
tagger.fit(sentences[:200], [*tags[:2], *[None] * 198], rules=rules)
pairs = zip(tagger.predict(sentences[200:]), tags[200:], strict=True)
right = np.mean([list(predicted) == list(true) for predicted, true in pairs])
print(f"sentences right as a whole: {right:.2f}")
