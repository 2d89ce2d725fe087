from __future__ import annotations

import json
from pathlib import Path

import pytest

from undilute.errors import InvalidValue
from undilute.models import cache


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDILUTE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"quantised")
    return path


class Build:
    """Writes two files and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, folder: Path) -> None:
        self.times += 1
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_built_once_then_read(source: Path) -> None:
    build = Build()
    folder = cache.folder_for(source, build)
    assert folder.name.startswith("model-")
    assert cache.folder_for(source, build) == folder
    assert build.times == 1
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"weightz"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"weight"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_text('{"format": '),
    ],
    ids=["one byte changed", "cut short", "file gone", "no manifest", "another manifest", "half a manifest"],
)
def test_a_damaged_folder_is_made_anew(damage: object, source: Path) -> None:
    build = Build()
    folder = cache.folder_for(source, build)
    sound = content(folder)
    damage(folder)  # type: ignore[operator]
    assert cache.folder_for(source, build) == folder
    assert build.times == 2
    assert content(folder) == sound
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_folder_of_another_format_is_made_anew(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build()
    folder = cache.folder_for(source, build)
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    cache.folder_for(source, build)
    assert build.times == 2
    assert json.loads((folder / "manifest.json").read_text())["format"] == cache.FORMAT


def test_another_content_has_another_folder(source: Path) -> None:
    build = Build()
    before = cache.folder_for(source, build)
    source.write_bytes(b"quantisee")
    assert cache.folder_for(source, build) != before
    assert build.times == 2


def test_a_folder_that_appeared_meanwhile_is_used(source: Path) -> None:
    others, mine = Build(), Build()

    def build(folder: Path) -> None:
        mine(folder)
        cache.folder_for(source, others)  # another process finishes first

    folder = cache.folder_for(source, build)
    inode = folder.stat().st_ino
    assert (mine.times, others.times) == (1, 1)
    assert cache.folder_for(source, mine).stat().st_ino == inode
    assert mine.times == 1
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, InvalidValue])
def test_a_build_that_stops_leaves_nothing(stop: type[BaseException], source: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise stop

    with pytest.raises(stop):
        cache.folder_for(source, build)
    assert list(cache.directory().iterdir()) == []


def test_a_place_that_cannot_be_written_to(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDILUTE_CACHE", str(source / "below a file"))
    with pytest.raises(InvalidValue, match="set UNDILUTE_CACHE to a folder with room"):
        cache.folder_for(source, Build())


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UNDILUTE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache.directory() == tmp_path / "undilute"
    monkeypatch.setenv("UNDILUTE_CACHE", "~/elsewhere")
    assert cache.directory() == Path.home() / "elsewhere"
