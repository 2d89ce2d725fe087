"""Shared by all tests: a test with an argument ``rule`` runs for every rule of ``tests.cases``."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from hypothesis import settings

from tests.cases import RULES
from tests.command import Here, Ran

torch.set_num_threads(1)
# for processes that tests start, those of pytest-xdist included: cores are shared, and a thread that waits by spinning
# takes one away from the thread it waits for
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
settings.register_profile("suite", max_examples=200, deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rule" in metafunc.fixturenames:
        metafunc.parametrize("rule", RULES.values(), ids=RULES.keys())


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """The command in this process, which spares the start of another."""
    from undilute.__main__ import main

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["undilute", *arguments])
        monkeypatch.setenv("COLUMNS", "160")
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return Ran(int(left.value.code or 0), *capsys.readouterr())

    return run
