"""Files are complete or absent, follow links, and never take the place of what is no file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

import undilute as ud
from tests.disk import full_disk
from undilute import files


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_writes_text_and_bytes_and_makes_folders(tmp_path: Path) -> None:
    assert files.write(tmp_path / "a" / "b.txt", "ε").read_text() == "ε"
    assert files.write(tmp_path / "a" / "b.txt", b"\x00").read_bytes() == b"\x00"
    assert names(tmp_path / "a") == {"b.txt"}


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = files.write(tmp_path / "kept.txt", "old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(target, "new")
    assert target.read_text() == "old"
    assert names(tmp_path) == {"kept.txt"}


def test_unwritable_place_is_a_clear_error(tmp_path: Path) -> None:
    files.write(tmp_path / "file", "x")
    with pytest.raises(ud.InvalidValue, match="cannot write"):
        files.write(tmp_path / "file" / "below", "x")


# ---------------------------------------------------------------- links, pipes, devices, permissions


def test_a_link_stays_and_its_target_gets_the_content(tmp_path: Path) -> None:
    target, link, chain = tmp_path / "there" / "target", tmp_path / "link", tmp_path / "chain"
    files.write(target, "old")
    link.symlink_to("there/target")
    chain.symlink_to(link)
    assert files.write(chain, "new") == chain
    assert link.is_symlink()
    assert chain.is_symlink()
    assert target.read_text() == "new"
    assert names(target.parent) == {"target"}


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "target")
    files.write(link, "content")
    assert link.is_symlink()
    assert (tmp_path / "new" / "target").read_text() == "content"


def test_a_link_to_itself_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ud.InvalidValue, match=r"cannot write .*symbolic links"):
        files.write(tmp_path / "loop", "x")


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path, through_a_link: bool) -> None:
    pipe, given, heard = tmp_path / "pipe", tmp_path / ("link" if through_a_link else "pipe"), []
    os.mkfifo(pipe)
    if through_a_link:
        given.symlink_to(pipe)
    files.check_writable(given)  # nobody reads it yet: asking must not wait
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    files.write(given, "content")
    assert stat.S_ISFIFO(given.stat().st_mode)
    reader.join(60)
    assert heard == ["content"]


def test_a_device_is_written_to(tmp_path: Path) -> None:
    ours, theirs = os.openpty()  # a terminal, which is a device that needs no rights
    try:
        (tmp_path / "link").symlink_to(os.ttyname(theirs))
        files.write(tmp_path / "link", "content")
        assert (tmp_path / "link").is_symlink()
        assert stat.S_ISCHR((tmp_path / "link").stat().st_mode)
        assert os.read(ours, 100) == b"content"
    finally:
        os.close(ours)
        os.close(theirs)


def test_permissions_of_a_file_stay_and_a_new_one_has_the_users(tmp_path: Path) -> None:
    private = files.write(tmp_path / "private", "old")
    private.chmod(0o600)
    assert stat.S_IMODE(files.write(private, "new").stat().st_mode) == 0o600
    before = os.umask(0o027)
    try:
        assert stat.S_IMODE(files.write(tmp_path / "fresh", "x").stat().st_mode) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["", "/", ".", "a\0b", "x" * 300, "a/" + "x" * 300, "x/" * 3000, "file/x", "\ud800"])
def test_a_name_that_cannot_be_is_one_sentence_before_and_after_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    for attempt in (files.check_writable, lambda path: files.write(path, "content")):
        with pytest.raises(ud.InvalidValue, match="cannot write") as caught:
            attempt(Path(name))
        assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"file"}


def test_a_name_as_long_as_the_file_system_takes_can_be_written(tmp_path: Path) -> None:
    assert files.write(tmp_path / ("x" * 255), "content").read_text() == "content"


def test_text_that_utf8_cannot_hold_is_written(tmp_path: Path) -> None:
    assert files.write(tmp_path / "file", "a\udcffb").read_text() == "a?b"


# ---------------------------------------------------------------- several files


def test_all_files_or_none(tmp_path: Path) -> None:
    old = files.write(tmp_path / "old.txt", "old")
    contents = {old: "new", tmp_path / "a" / "b" / "small": "x", tmp_path / "a" / "large": "x" * 10_000}
    with full_disk(1000), pytest.raises(ud.InvalidValue, match=r"cannot write .*large.*: File too large; choose"):
        files.write_all(contents)
    assert old.read_text() == "old"
    assert names(tmp_path) == {"old.txt"}
    assert files.write_all(contents) == list(contents)
    assert [path.read_text() for path in contents] == list(contents.values())


def test_two_outputs_with_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for other in (tmp_path / "link", tmp_path / "folder" / ".." / "file"):
        for attempt in (files.check_writable, lambda *paths: files.write_all(dict.fromkeys(paths, "x"))):
            with pytest.raises(ud.InvalidValue, match="two outputs are the same file"):
                attempt(tmp_path / "file", other)
    with pytest.raises(ud.InvalidValue, match="must be a file, not a folder"):
        files.check_writable(tmp_path / "file" / "below", tmp_path / "file")
    assert names(tmp_path) == {"link"}


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    book = files.write(tmp_path / "book.txt", "text")
    (tmp_path / "link").symlink_to(book)
    with pytest.raises(ud.InvalidValue, match=r"cannot write .*link.*: this command reads it"):
        files.check_writable(tmp_path / "link", read=[book])
    files.check_writable(tmp_path / "other", read=[book, tmp_path / "missing", Path("a\0b")])


# ---------------------------------------------------------------- reading


def test_text_is_read_from_files_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("ε\r\nb\rc".encode())
    assert files.read_text(tmp_path / "file", "hint") == "ε\nb\nc"
    ours, theirs = os.pipe()
    os.write(theirs, b"piped")
    os.close(theirs)
    assert files.read_text(Path(f"/dev/fd/{ours}"), "hint") == "piped"
    os.close(ours)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", ".", "", "missing", "a\0b", "x" * 300, "/proc/self/mem"])
def test_what_is_no_text_is_one_sentence(name: str) -> None:
    with pytest.raises(ud.InvalidValue, match=r"cannot read the plan .*; give another\.$"):
        files.read_text(Path(name), "give another", "the plan ")


def test_what_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 2**21)
    ours, theirs = os.pipe()

    def pour() -> None:
        try:
            while True:
                os.write(theirs, b"x" * 2**16)
        except BrokenPipeError:
            os.close(theirs)

    thread = threading.Thread(target=pour, daemon=True)
    thread.start()
    with pytest.raises(ud.InvalidValue, match="larger than 2,097,152 bytes"):
        files.read_text(Path(f"/dev/fd/{ours}"), "hint")
    os.close(ours)
    thread.join(60)


def test_csv() -> None:
    assert files.csv_text([{"a": 1, "b": "x,y"}]) == 'a,b\n1,"x,y"\n'
