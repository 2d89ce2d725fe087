"""Files are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

import undilute as ud
from undilute.report import files


def test_writes_text_and_bytes_and_makes_folders(tmp_path: Path) -> None:
    assert files.write(tmp_path / "a" / "b.txt", "ε").read_text() == "ε"
    assert files.write(tmp_path / "a" / "b.txt", b"\x00").read_bytes() == b"\x00"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = files.write(tmp_path / "kept.txt", "old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_unwritable_place_is_a_clear_error(tmp_path: Path) -> None:
    files.write(tmp_path / "file", "x")
    with pytest.raises(ud.InvalidValue, match="cannot write"):
        files.write(tmp_path / "file" / "below", "x")


def test_csv() -> None:
    assert files.csv_text([{"a": 1, "b": "x,y"}]) == 'a,b\n1,"x,y"\n'
