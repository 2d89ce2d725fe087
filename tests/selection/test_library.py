"""Documents that are asked about more than once are read once, and no wrong or broken file is ever used."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load

import undilute as ud
from tests.diagnosis.finder import FINDER, filler, finder, tokenizer
from tests.disk import full_disk
from tests.models.attending import SIZES
from undilute.errors import InvalidValue
from undilute.selection import keeping
from undilute.selection.finding import RetrievalHeads
from undilute.selection.keeping import Folder, Memory, Nothing
from undilute.selection.library import MANIFEST, Library
from undilute.selection.scorers import Subject
from undilute.selection.scorers.heads import Heads

FOUND = RetrievalHeads((("model.layers.1", 1),), "model.layers.1", 300, {128: 0.5, 256: 0.4})
FACTS = ("The password of Daniel is bottle.", "The nickname of Clara is anchor.")
QUESTIONS = ("The password of Daniel is", "The nickname of Clara is")


def text(seed: int = 1, facts: tuple[str, ...] = FACTS) -> str:
    said = filler(seed, 100).split(". ")
    for place, fact in enumerate(facts, start=1):
        said.insert(len(said) * place // 3, fact.removesuffix("."))
    return ". ".join(said)


DOCUMENTS = {"first": text(), "second": text(2, ())}


def asked(model: Any, documents: Any, question: str = QUESTIONS[0], found: RetrievalHeads = FOUND) -> ud.Selection:
    scorer = Heads(Subject(model, tokenizer()), found)
    size = None if isinstance(documents, Library) else 48
    return ud.select(model, tokenizer(), question, documents, scorer=scorer, budget=64, size=size)


def library(folder: Path | None = None, documents: Any = DOCUMENTS, **options: Any) -> Library:
    return Library(documents, tokenizer(), folder, 48, **options)


def read_by(model: Any, run: Callable[[], object]) -> list[int]:
    """Tokens of each pass that reads from the beginning."""
    seen: list[tuple[str, int, int]] = []
    with ud.watch(model, lambda call: seen.append((call.layer, call.queries, call.keys))):
        run()
    return [queries for layer, queries, keys in seen if layer == seen[0][0] and queries == keys]


def same(one: ud.Selection, other: ud.Selection) -> bool:
    return [(each.passage, each.score) for each in one.passages] == [
        (each.passage, each.score) for each in other.passages
    ]


@pytest.fixture
def model() -> Any:
    return finder()


@pytest.fixture(params=["memory", "disk"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Library:
    return library(tmp_path / "library" if request.param == "disk" else None)


# ---------------------------------------------------------------- what it is for


def test_a_second_question_reads_no_document_again(model: Any, kept: Library) -> None:
    for question, fact in zip(QUESTIONS, FACTS, strict=True):
        first = asked(model, kept, question)
        assert same(first, asked(model, DOCUMENTS, question))
        assert fact in first.passages[0].text
    rest = read_by(model, lambda: asked(model, kept))
    without = read_by(model, lambda: asked(model, DOCUMENTS))
    groups = -(-kept.tokens // FOUND.group)
    assert len(without) - len(rest) >= groups
    assert sum(rest) < sum(without) / 2


def test_it_knows_itself(tmp_path: Path) -> None:
    there = library(tmp_path / "kept")
    assert len(there) == len(there.passages) == len(ud.selection.split(DOCUMENTS, tokenizer(), 48))
    assert there.tokens == sum(each.tokens for each in there.passages)
    assert repr(there) == (
        f"Library(2 documents, {len(there)} passages, {there.tokens:,} tokens, in {str(tmp_path / 'kept')!r})"
    )
    assert repr(library(None, "one. two.")) == "Library(1 document, 1 passage, 4 tokens, in memory)"
    assert there.size_on_disk == (tmp_path / "kept" / MANIFEST).stat().st_size
    before = there.size_on_disk
    asked(finder(), there)
    assert there.size_on_disk == sum(each.stat().st_size for each in (tmp_path / "kept").iterdir()) > before
    assert library().size_on_disk == 0


def test_a_size_with_a_library_is_refused(model: Any) -> None:
    with pytest.raises(InvalidValue, match="passages are cut already"):
        ud.select(model, tokenizer(), QUESTIONS[0], library(), size=30)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": 0}, "size = 0"),
        ({"memory": -1}, "memory = -1"),
        ({"memory": 1.5}, "memory = 1.5"),
        ({"folder": 3}, "3"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        Library(DOCUMENTS, tokenizer(), **wrong)
    with pytest.raises(InvalidValue, match="no text"):
        Library({"a": " "}, tokenizer())


# ---------------------------------------------------------------- whose keys and values


def test_another_or_a_treated_model_has_its_own(model: Any, kept: Library) -> None:
    asked(model, kept)
    other = finder(gap=3.0)
    assert same(asked(other, kept), asked(other, DOCUMENTS))
    with ud.apply(model, "ssmax"):
        assert same(asked(model, kept), asked(model, DOCUMENTS))
    assert not same(asked(model, kept), asked(other, kept))
    again = read_by(model, lambda: asked(model, kept))
    assert len(again) < len(read_by(model, lambda: asked(model, DOCUMENTS)))


def llama_like(kind: str, **own: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **SIZES | {"vocab_size": len(tokenizer().get_vocab()), "max_position_embeddings": 512, **own}
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def test_a_scorer_that_outlives_a_treatment_does_not_use_what_the_model_read_before(model: Any) -> None:
    """The same scorer and library, before and under a rule: as without a library."""
    scorer, kept = Heads(Subject(model, tokenizer()), FOUND), library()

    def ask(documents: Any, size: int | None = None) -> ud.Selection:
        return ud.select(model, tokenizer(), QUESTIONS[0], documents, scorer=scorer, budget=64, size=size)

    before = ask(kept)
    assert 0 < ask(kept).read < before.read  # the first round was kept
    with ud.apply(model, "temperature(T=3)"):
        treated = ask(kept)
        assert same(treated, ask(DOCUMENTS, 48))
    assert treated.read == before.read
    assert not same(treated, before)


def test_keys_and_values_of_other_weights_or_rules_are_never_used(kept: Library) -> None:
    """In these models the keys of the second layer depend on everything."""
    layer = "model.layers.1.self_attn"
    found = RetrievalHeads(((layer, 1),), layer, 200, {128: 1.0})
    given, other = llama_like("Llama"), llama_like("Llama", initializer_range=0.3)
    every = []
    for model, rule in ((given, "softmax"), (other, "softmax"), (given, "ssmax"), (given, "ssmax(s=0.5)")):
        with ud.apply(model, rule):
            every.append(asked(model, kept, found=found))
            assert same(every[-1], asked(model, DOCUMENTS, found=found))
    assert not any(same(every[0], each) for each in every[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_kept_as_it_is(tmp_path: Path, dtype: torch.dtype) -> None:
    given = llama_like("Llama").to(dtype)
    found = RetrievalHeads((("model.layers.0.self_attn", 1),), "model.layers.0.self_attn", 200, {128: 1.0})
    kept = library(tmp_path / "kept", memory=0)
    asked(given, kept, found=found)
    assert same(asked(given, kept, found=found), asked(given, DOCUMENTS, found=found))
    files = Folder(tmp_path / "kept").files
    assert files
    for file in files:
        every = load(file.read_bytes())
        assert {each.dtype for each in every.values()} == {dtype}
        assert set(every) == {"0.keys", "0.values"}  # of the layers that were read


CANNOT = {
    "sliding windows": lambda: llama_like("Mistral", sliding_window=6),
    "recurrent layers": lambda: llama_like("Lfm2", layer_types=["conv", "full_attention"]),
}


@pytest.mark.parametrize("kind", CANNOT)
def test_what_cannot_be_kept_is_read_again(kind: str, kept: Library) -> None:
    given = CANNOT[kind]()
    layer = "model.layers.1.self_attn"
    found = RetrievalHeads(((layer, 1),), layer, 200, {128: 1.0})
    plain = asked(given, DOCUMENTS, found=found)
    passes = read_by(given, lambda: asked(given, DOCUMENTS, found=found))
    for _ in range(2):
        assert same(asked(given, kept, found=found), plain)
        assert read_by(given, lambda: asked(given, kept, found=found)) == passes


# ---------------------------------------------------------------- memory


def ones(size: int) -> keeping.Tensors:
    return {"x": torch.ones(size // 4)}


def test_memory_is_limited_and_what_does_not_fit_is_made_again() -> None:
    made: list[str] = []

    def make(key: str) -> Callable[[], keeping.Tensors]:
        return lambda: made.append(key) or ones(400)  # type: ignore[func-returns-value]

    memory = Memory(1000)
    for _ in range(3):  # rounds of four, of which two fit
        for key in "abcd":
            assert memory.tensors(key, make(key))["x"].shape == (100,)
            assert memory.used <= 1000
    assert "".join(made) == "abcd" + "cd" + "cd"
    made.clear()
    for _ in range(4):  # others, until those that nobody asks for any more have gone
        for key in "xy":
            memory.tensors(key, make(key))
            assert memory.used <= 1000
    assert made.count("x") < 4
    made.clear()
    memory.tensors("x", make("x"))
    assert made == []
    memory.tensors("huge", lambda: ones(4000))
    assert memory.used <= 1000


def test_memory_counts_what_it_holds() -> None:
    """A slice is held without the rest of the tensor that it is a part of."""
    memory = Memory(1000)
    found = memory.tensors("a", lambda: {"x": torch.ones(1000)[:10]})
    assert memory.used == 40 == found["x"].untyped_storage().nbytes()
    assert memory.tensors("a", lambda: ones(4)) is found
    assert memory.tensors("nothing", dict) == {}
    assert Nothing().tensors("a", lambda: ones(4))["x"].shape == (1,)


def test_a_library_with_little_memory_answers_the_same(model: Any) -> None:
    all_groups = library()
    asked(model, all_groups)
    assert isinstance(all_groups.kept, Memory)
    little = library(memory=all_groups.kept.used // 2)
    plain = asked(model, DOCUMENTS)
    passes = [read_by(model, lambda: same(asked(model, little), plain)) for _ in range(2)]
    assert same(asked(model, little), plain)
    assert len(passes[1]) < len(passes[0])
    none = library(memory=0)
    assert same(asked(model, none), plain)
    assert same(asked(model, none), plain)


# ---------------------------------------------------------------- a folder


def test_a_folder_is_opened_again_with_its_documents(model: Any, tmp_path: Path) -> None:
    first = asked(model, library(tmp_path / "kept"))
    for again in (Library.open(tmp_path / "kept", tokenizer()), library(str(tmp_path / "kept"))):  # type: ignore[arg-type]
        assert again.documents == DOCUMENTS
        assert (again.size, again.passages) == (48, library().passages)
        passes = read_by(model, lambda again=again: asked(model, again))  # type: ignore[misc]
        assert len(passes) < len(read_by(model, lambda: asked(model, DOCUMENTS)))
        assert same(asked(model, again), first)


@pytest.mark.parametrize("documents", ["\ufeff\ufeffa\r\nb\x00.", ["x.", "y."], {"ε": "é.", "b": "\u2028 a", "": "c"}])
def test_documents_come_back_to_the_character(tmp_path: Path, documents: Any) -> None:
    made = library(tmp_path / "kept", documents)
    again = Library.open(tmp_path / "kept", tokenizer())
    assert again.documents == made.documents
    assert library(tmp_path / "kept", documents).passages == again.passages


def test_other_documents_or_another_size_are_refused_by_name(tmp_path: Path) -> None:
    library(tmp_path / "kept")
    before = (tmp_path / "kept" / MANIFEST).read_bytes()
    with pytest.raises(
        InvalidValue, match=r"has 2 documents from 'first' .* given are 1 document from 'mine'"
    ) as caught:
        library(tmp_path / "kept", {"mine": "text."})
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidValue, match=r"passages of 48 tokens .* passages of 96 tokens"):
        Library(DOCUMENTS, tokenizer(), tmp_path / "kept")
    with pytest.raises(InvalidValue, match=r"has 2 documents"):
        library(tmp_path / "kept", dict(reversed(DOCUMENTS.items())))
    assert (tmp_path / "kept" / MANIFEST).read_bytes() == before
    with pytest.raises(InvalidValue, match="holds no library"):
        Library.open(tmp_path / "missing", tokenizer())
    assert not (tmp_path / "missing").exists()


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for attempt in (lambda: library(tmp_path), lambda: Library.open(tmp_path, tokenizer())):
        with pytest.raises(InvalidValue, match=r"holds something else, such as 'thesis\.tex'"):
            attempt()
    with pytest.raises(InvalidValue, match=r"cannot keep a library in .*thesis"):
        library(tmp_path / "thesis.tex")
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_unknown_files_in_a_library_stay(model: Any, tmp_path: Path) -> None:
    asked(model, library(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "mine.safetensors").write_bytes(b"mine")
    asked(model, library(tmp_path), QUESTIONS[1])
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "mine.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("{", "damaged"),
        ('{"format": 1}', "damaged"),
        ('{"format": 1, "size": 48, "documents": {}, "fingerprint": "x"}', "damaged"),
        ('{"format": 1, "size": 48, "documents": [["a", "b."]], "fingerprint": "x"}', "damaged"),
        ('{"format": 2}', "has format 2: this version reads format 1"),
    ],
)
def test_a_damaged_or_newer_manifest_is_one_sentence(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InvalidValue, match=says):
        library(tmp_path)
    with pytest.raises(InvalidValue, match=says):
        Library.open(tmp_path, tokenizer())
    assert (tmp_path / MANIFEST).read_text() == content


def altered(data: bytes) -> Iterator[bytes]:
    yield b""
    yield data[:4]
    yield data[: len(data) // 2]
    yield data[:-1]
    yield data + b"\0"
    yield data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
    yield data.replace(b'"0.keys"', b'"2.keys"')
    yield data.replace(b'"__metadata__"', b'"__metadat0__"')
    yield (2**62).to_bytes(8, "little") + data[8:]
    yield b"\xff" * len(data)


def test_a_damaged_file_is_made_again_and_never_used(model: Any, tmp_path: Path) -> None:
    plain = asked(model, library(tmp_path))
    file, other = Folder(tmp_path).files[:2]
    sound = file.read_bytes()
    held = load(sound)
    for data in (*altered(sound), other.read_bytes()):  # the last one is sound, but of another group
        assert data != sound
        file.write_bytes(data)
        assert same(asked(model, library(tmp_path)), plain)
        again = load(file.read_bytes())
        assert again.keys() == held.keys()
        assert all(torch.equal(each, held[name]) for name, each in again.items())


def test_a_full_disk_is_one_sentence_and_leaves_nothing(model: Any, tmp_path: Path) -> None:
    plain = asked(model, library(tmp_path))
    files = Folder(tmp_path).files
    files[0].unlink()
    there = {each.name for each in tmp_path.iterdir()}
    with full_disk(2000), pytest.raises(InvalidValue, match=r"cannot write .*: File too large") as caught:
        asked(model, library(tmp_path))
    assert "\n" not in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == there
    assert same(asked(model, library(tmp_path)), plain)
    with full_disk(100), pytest.raises(InvalidValue, match="cannot write"):
        library(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("folder", ["/proc/undilute-library", "/dev/null/library", "a\0b"])
def test_a_folder_that_cannot_be_made_is_one_sentence(folder: str) -> None:
    with pytest.raises(InvalidValue, match=r"cannot (write|keep a library in)") as caught:
        library(Path(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_only_be_read_serves_what_it_has(model: Any, tmp_path: Path) -> None:
    plain = asked(model, library(tmp_path))
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert same(asked(model, library(tmp_path)), plain)
        with pytest.raises(InvalidValue, match="cannot write"):
            asked(finder(gap=3.0), library(tmp_path))
    finally:
        tmp_path.chmod(stat.S_IRWXU)


# ---------------------------------------------------------------- processes that are killed, and several at once


def forked(run: Callable[[], object]) -> int:
    """The exit code of a process that does this, below 0 if a signal ended it."""
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("moment", ["before the rename", "while writing", "after the rename"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_killed_at_any_moment_the_next_goes_on(model: Any, tmp_path: Path, moment: str, number: int) -> None:
    """The process is killed for real, at its first file, which is the manifest, or a later one."""
    plain, folder = asked(model, DOCUMENTS), tmp_path / "kept"

    def run() -> None:
        replace, done = os.replace, 0

        def killing(source: Any, target: Any) -> None:
            nonlocal done
            if done == number:
                if moment == "while writing":
                    with open(source, "r+b") as file:
                        file.truncate(100)
                if moment == "after the rename":
                    replace(source, target)
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            replace(source, target)

        os.replace = killing  # type: ignore[assignment]
        asked(model, library(folder))

    assert forked(run) == -signal.SIGKILL
    there = len(Folder(folder).files)
    assert there == max(0, number - 1 + (moment == "after the rename"))  # the first file is the manifest
    fresh = read_by(model, lambda: asked(model, DOCUMENTS))
    rest: list[ud.Selection] = []
    passes = read_by(model, lambda: rest.append(asked(model, library(folder))))
    assert len(passes) == len(fresh) - there
    assert same(rest[0], plain)


def test_what_a_killed_process_left_is_cleared_later(tmp_path: Path) -> None:
    library(tmp_path)
    old, new = tmp_path / ".undilute-0123456789abcdef", tmp_path / ".undilute-fedcba9876543210"
    for each in (old, new):
        each.write_bytes(b"half")
    hours_ago = time.time() - 7200
    os.utime(old, (hours_ago, hours_ago))
    library(tmp_path)
    assert not old.exists()
    assert new.exists()


def test_two_processes_at_once(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    plain = [asked(model, DOCUMENTS, question) for question in QUESTIONS]
    begin = multiprocessing.get_context("fork").Barrier(2)

    def run(place: int) -> None:
        begin.wait(60)
        for _ in range(2):
            assert same(asked(model, library(folder), QUESTIONS[place]), plain[place])

    context = multiprocessing.get_context("fork")
    both = [context.Process(target=run, args=(place,)) for place in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(120)
    assert [each.exitcode for each in both] == [0, 0]
    assert json.loads((folder / MANIFEST).read_text())["format"] == 1
    assert not list(folder.glob(".undilute-*"))
    assert same(asked(model, library(folder)), plain[0])


def test_the_finder_has_the_head_that_these_tests_name() -> None:
    assert FOUND.heads == ((f"model.layers.{FINDER[0]}", FINDER[1]),)
