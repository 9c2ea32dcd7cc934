"""Find the pixels of a disc on a noisy background, with an energy that sees the whole mask."""

import numpy as np
from numpy.typing import NDArray

import lossnet

random = np.random.default_rng(0)
SIDE = 16


def scene() -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    down, across = np.mgrid[:SIDE, :SIDE]
    middle, radius = random.uniform(5, 11, size=2), random.uniform(3, 5)
    mask = (down - middle[0]) ** 2 + (across - middle[1]) ** 2 < radius**2
    image = random.normal(100, 25, (SIDE, SIDE, 3)) + mask[..., None] * random.uniform(20, 60, 3)
    return image.clip(0, 255).astype(np.uint8), mask


images, masks = (np.stack(arrays) for arrays in zip(*(scene() for _ in range(120)), strict=True))
segmenter = lossnet.Segmenter(
    method="seal",
    epochs=5,
    batch_size=8,
    learning_rate=5e-3,
    image_net="unet",
    image_width=8,
    task_dropout=0.0,
    noise="smooth",
    samples=4,
    random_state=0,
)
segmenter.fit(images[:80], masks[:80])
print(f"mean intersection over union on other images: {segmenter.score(images[80:], masks[80:]):.2f}")
