"""Train, keep the model as a folder, and predict from it: in Python and over HTTP."""

import tempfile
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient

import lossnet
from lossnet.serve import create_app

random = np.random.default_rng(0)
X = random.normal(size=(200, 3))
Y = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 0] + X[:, 1] > 0], axis=1).astype(int)
classifier = lossnet.MultiLabelClassifier(method="cross-entropy", learning_rate=0.01, random_state=0)
classifier.fit(X, Y)

folder = Path(tempfile.mkdtemp()) / "model"
classifier.model_.save(folder)
model = lossnet.load(folder)
print(model.predict([[1, 1, 0], [-1, -1, 0]]))

with TestClient(create_app(model)) as client:  # 'lossnet serve FOLDER' answers the same to other programs
    print(client.post("/predict", json={"instances": [[1, 1, 0]]}).json())
