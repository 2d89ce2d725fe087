"""The public names: what a user may hold in the head. A new one is added here on purpose, or not at all."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import undilute as ud

NAMES = """
Diagnosis Evaluation InvalidTensor InvalidValue Library MissingExtra Plan Reply Selection UndiluteError UnknownName
apply ask attention calibrate capture compare diagnose evaluate evaluation explain export exporting integrations
losses measures models nn reading rules select selection set_memory_budget structures theory treatment tune tuning watch
"""


MODULES = [each.name for each in pkgutil.walk_packages(ud.__path__, "undilute.") if not each.name.endswith("__main__")]


def test_the_public_names() -> None:
    assert sorted(ud.__all__) == sorted(NAMES.split())


@pytest.mark.parametrize("module", MODULES)
def test_every_name_a_module_offers_is_there(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in getattr(found, "__all__", ()) if not hasattr(found, name)]
    assert missing == []
