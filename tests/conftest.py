"""Shared by all tests: a test with an argument ``rule`` runs for every rule of ``tests.cases``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from tests.cases import RULES

torch.set_num_threads(1)
settings.register_profile("suite", max_examples=200, deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rule" in metafunc.fixturenames:
        metafunc.parametrize("rule", RULES.values(), ids=RULES.keys())
