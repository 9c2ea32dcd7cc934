"""Training on inputs that are mostly zeros: the same weights whichever way they are read."""

import numpy as np
import pytest
import torch
from scipy import sparse

from lossnet.build import build
from lossnet.data import Examples, MultiLabelData, Weighted
from lossnet.data.tables import SparseFeatures
from lossnet.settings import Settings
from lossnet.spaces import Batch
from lossnet.task import Task
from lossnet.training import Trainer

METHODS = [("cross-entropy", "soft-f1"), ("seal", "nce"), ("implicit", "nce"), ("dvn", "regression")]
INPUTS, LABELS = 60, 20


def rows(count=40):
    generator = np.random.default_rng(0)
    x = (generator.random((count, INPUTS)) < 0.05) * generator.integers(1, 3, (count, INPUTS))
    y = generator.random((count, LABELS)) < 0.1
    y[:, 0] = True
    return MultiLabelData.from_arrays(sparse.csr_array(x.astype(np.float32)), y.astype(np.uint8))


class Double:
    """Batches in double precision."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        batch = self.data.batch(indices)
        return Batch(batch.x.double(), batch.y.double())


def weights_after(method, loss, data, epochs=2):
    settings = Settings(
        task_hidden=12, energy_hidden=12, global_hidden=7, samples=4, energy_steps=2, inference_steps=3
    )
    torch.manual_seed(0)
    trained = build(method, loss, settings, Task.of_sizes(INPUTS, LABELS)).double()
    trainer = Trainer(trained, lr=0.01, max_epochs=epochs, batch_size=16, progress=False)
    trainer.fit(Double(data), Double(data))
    return trained.state_dict()


@pytest.mark.parametrize(("method", "loss"), METHODS)
def test_sparse_batches_few_values_and_dense_products_train_alike(method, loss, monkeypatch):
    data = rows()
    sparse = Examples(data.source.sparse(width=INPUTS), data.target)
    assert isinstance(sparse.source, SparseFeatures)
    found = [weights_after(method, loss, sparse), weights_after(method, loss, data)]
    monkeypatch.setattr("lossnet.ops.sparse.SPARSE_SHARE", -1.0)
    plain = weights_after(method, loss, data)
    for weights in found:
        torch.testing.assert_close(weights, plain, rtol=1e-7, atol=1e-9)


def test_sparse_batches_are_the_dense_ones():
    data = rows()
    chosen = torch.tensor([7, 3, 3, 39])
    found, expected = data.sparse(width=1).batch(chosen), data.batch(chosen)
    assert found.x.layout == torch.sparse_csr
    assert torch.equal(found.x.to_dense(), expected.x)
    assert torch.equal(found.y, expected.y)
    weighted = Weighted(data.sparse(width=1), torch.arange(40.0)).batch(chosen)
    assert weighted.weight.tolist() == [7, 3, 3, 39]
    assert data.sparse(width=INPUTS + 1) is data


def test_dense_data_stay_dense():
    data = MultiLabelData.from_arrays(np.ones((3, 2)), np.ones((3, 1)))
    assert data.sparse(width=1) is data
