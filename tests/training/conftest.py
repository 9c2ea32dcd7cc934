from __future__ import annotations

import pytest


@pytest.fixture
def train(make_data):
    return make_data(40)


@pytest.fixture
def valid(make_data):
    return make_data(24, seed=1)
