"""A model gets text that can be read and tokens that it knows, or a clear error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.models.attending import VOCABULARY, random_model
from undilute.errors import InvalidValue
from undilute.models.texts import IN_FOLDERS, known_tokens, read, read_each, shipped, shipped_texts


@pytest.mark.parametrize(
    "ids", [torch.tensor([0, VOCABULARY - 1]), torch.arange(3, dtype=torch.int32), torch.arange(0)]
)
def test_known_tokens_are_left_as_they_are(ids: torch.Tensor) -> None:
    assert known_tokens(ids, random_model("llama")) is ids


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([3, VOCABULARY]), f"token ids from 3 to {VOCABULARY}: LlamaForCausalLM knows 0 to 59"),
        (torch.tensor([-1, 3]), "token ids from -1 to 3"),
        (torch.zeros(2, 3, dtype=torch.int64), r"text has shape \(2, 3\) and dtype torch.int64"),
        (torch.zeros(3), "one sequence of whole numbers"),
        (torch.zeros(3, dtype=torch.bool), "one sequence of whole numbers"),
    ],
)
def test_other_tokens_are_named(ids: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        known_tokens(ids, random_model("llama"))


def test_other_tokens_are_called_by_their_name() -> None:
    with pytest.raises(InvalidValue, match=r"^notes.txt holds token ids from 3 to 60: LlamaForCausalLM knows 0 to 59"):
        known_tokens(torch.tensor([3, 60]), random_model("llama"), "notes.txt")
    with pytest.raises(InvalidValue, match=r"^notes.txt has shape \(1, 2\)"):
        known_tokens(torch.tensor([[3, 60]]), random_model("llama"), "notes.txt")


def test_files_are_read_one_after_another(tmp_path: Path) -> None:
    one, other, empty = (tmp_path / name for name in ("one.txt", "other.txt", "empty.txt"))
    one.write_text("first", encoding="utf-8")
    other.write_bytes(b"\xff")
    empty.write_text(" ", encoding="utf-8")
    assert read([one, one]) == "first\n\nfirst"
    for path, message in (
        (other, "is not text in UTF-8"),
        (empty, "no text in it"),
        (tmp_path / "none", "cannot"),
    ):
        with pytest.raises(InvalidValue, match=message):
            read([path])


# ---------------------------------------------------------------- texts by name


def written(folder: Path, **texts: str) -> Path:
    """A folder with files: a name's last _ is its dot, and any two of them are a folder's border."""
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path = path.with_name(".".join(path.name.rsplit("_", 1)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_without_paths_the_shipped_texts_are_read() -> None:
    texts = read_each([])
    assert texts == shipped_texts()
    assert list(texts) == ["manual", "source", "docstrings"]
    assert texts["manual"] == shipped()
    assert "import" in texts["source"]
    assert "def " in texts["source"]
    assert all(len(text) > 100_000 for text in texts.values())


def test_where_the_library_is_no_source_the_manual_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    assert shipped_texts() == {"manual": shipped()}


def test_docstrings_are_prose() -> None:
    def code(text: str) -> float:
        lines = text.splitlines()
        return sum(line.lstrip().startswith(("def ", "class ", "return ")) for line in lines) / len(lines)

    texts = shipped_texts()
    assert code(texts["docstrings"]) < 0.02 < 0.08 < code(texts["source"])


def test_files_are_texts_by_name(tmp_path: Path) -> None:
    written(tmp_path, b_txt="second", a_dat="first")
    given = [tmp_path / "b.txt", tmp_path / "a.dat"]
    assert list(read_each(given).items()) == [(str(given[0]), "second"), (str(given[1]), "first")]


def test_a_folder_means_its_text_files_also_those_further_down(tmp_path: Path) -> None:
    written(tmp_path, b_txt="b", a_md="a", c__d__e_TXT="e", c__f_rst="f", g_png="picture", h_pyc="bytes", i_py="i")
    written(tmp_path, hidden="no ending")
    assert [*read_each([tmp_path]).values()] == ["a", "b", "e", "f", "i"]
    assert [*read_each([tmp_path / "c"])] == [str(tmp_path / "c/d/e.TXT"), str(tmp_path / "c/f.rst")]


def test_what_is_hidden_or_empty_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, a_txt="a", __init___py="", b_txt=" \n", c_txt="\ufeff")
    for name in (".git/d.txt", ".venv/lib/e.py", ".f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("hidden")
    assert read_each([tmp_path]) == {str(tmp_path / "a.txt"): "a"}
    assert read_each([tmp_path / ".git"]) == {str(tmp_path / ".git/d.txt"): "hidden"}  # where it is asked for


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    written(tmp_path, a_txt="a")
    os.mkfifo(tmp_path / "b.txt")
    assert [*read_each([tmp_path]).values()] == ["a"]


def test_a_pattern_is_expanded(tmp_path: Path) -> None:
    written(tmp_path, a_txt="a", b_txt="b", c_md="c", d__e_txt="e", d__f_md="f", d__g__h_txt="h", i__j_png="j")

    def found(pattern: str) -> list[str]:
        return [*read_each([tmp_path / pattern]).values()]

    assert found("*.txt") == ["a", "b"]
    assert found("[bc].*") == ["b", "c"]
    assert found("?.md") == ["c"]
    assert found("**/*.txt") == ["a", "b", "e", "h"]
    assert found("*") == ["a", "b", "c", "e", "f", "h"]  # as the shell would name them: two files, and folders
    assert found("d*") == ["e", "f", "h"]


def test_a_file_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes [1].txt").write_text("one")
    (tmp_path / "notes 1.txt").write_text("other")
    assert [*read_each([tmp_path / "notes [1].txt"]).values()] == ["one"]


def test_a_file_that_is_meant_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, a_txt="a", c__b_txt="b")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    monkeypatch.chdir(tmp_path)
    for given in (
        ["a.txt", "a.txt", "c"],
        ["a.txt", tmp_path / "a.txt", "c/b.txt", "c"],
        ["a.txt", "link.txt", "./c/../c/b.txt", "c"],
        [".", "*.txt", "c/b.txt", tmp_path],
    ):
        assert sorted(read_each([Path(each) for each in given]).values()) == ["a", "b"]
    assert list(read_each([Path("a.txt"), tmp_path / "a.txt"])) == ["a.txt"]


def test_the_same_words_in_two_files_are_two_texts(tmp_path: Path) -> None:
    written(tmp_path, a_txt="same", b_txt="same")
    assert len(read_each([tmp_path])) == 2


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    written(tmp_path, empty_txt=" \n", pictures__a_png="a", empties__b_txt="", good_txt="good")
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    for name, message in (
        ("none.txt", r"cannot read '.*none\.txt': .*; give a text file that exists"),
        ("empty.txt", r"empty\.txt: no text in it"),
        ("latin.txt", r"cannot read '.*latin\.txt': it is not text in UTF-8"),
        ("pictures", r"'.*pictures' holds no text file \(\.txt, \.md,"),
        ("empties", r"'.*empties' holds no text file"),
        ("*.tex", r"no file matches '.*\*\.tex': give a text file that exists"),
        ("pictures/*/*", "no file matches"),
        ("pict*", "no file matches"),
        ("x" * 5000, "cannot read"),
        ("*" + "x" * 5000, "no file matches"),
        ("a\0b", "cannot read"),
    ):
        with pytest.raises(InvalidValue, match=message):
            read_each([tmp_path / "good.txt", tmp_path / name])


@pytest.mark.parametrize("ending", IN_FOLDERS)
def test_a_byte_order_mark_is_no_text(ending: str, tmp_path: Path) -> None:
    for name, mark in (("with", b"\xef\xbb\xbf"), ("without", b"")):
        (tmp_path / f"{name}{ending}").write_bytes(mark + "Où?\r\nLà.".encode())
    texts = read_each([tmp_path])
    assert [*texts.values()] == ["Où?\nLà."] * 2
    assert read([tmp_path / f"with{ending}"] * 2) == "Où?\nLà.\n\nOù?\nLà."


def test_a_mark_within_a_text_stays(tmp_path: Path) -> None:
    written(tmp_path, a_txt="\ufeffone\ufefftwo")
    assert [*read_each([tmp_path]).values()] == ["one\ufefftwo"]
