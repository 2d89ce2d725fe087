"""What has left the theory says where it went."""

from __future__ import annotations

import importlib

import pytest

from undilute import theory


@pytest.mark.parametrize("name", theory._MOVED)
def test_a_module_that_has_moved_names_its_new_place(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^undilute\.theory\.{name} has moved to (\S+)\.$") as told:
        getattr(theory, name)
    assert importlib.import_module(str(told.value).split()[-1].rstrip(".")).__name__ == f"undilute_papers.theory.{name}"


@pytest.mark.parametrize("name", theory.jacobian._MOVED)
def test_a_function_that_has_moved_names_its_new_place(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^undilute\.theory\.jacobian\.{name} has moved to (\S+)\.$") as told:
        getattr(theory.jacobian, name)
    module, _, function = str(told.value).split()[-1].rstrip(".").rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_another_name_is_unknown_as_ever() -> None:
    with pytest.raises(AttributeError, match="no attribute 'capacities'"):
        _ = theory.capacities  # type: ignore[attr-defined]
