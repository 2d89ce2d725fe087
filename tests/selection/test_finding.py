"""Retrieval heads are found once for each model, and kept under its fingerprint."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import undilute as ud
from tests.diagnosis.finder import FINDER, finder, tokenizer
from tests.selection.test_library import llama_like
from undilute.errors import InvalidValue
from undilute.selection import finding
from undilute.selection.finding import RetrievalHeads, group_length, layers_in, retrieval_heads

VOCABULARY = len(tokenizer().get_vocab())
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDILUTE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "retrieval-heads"


@pytest.fixture(scope="module")
def known() -> RetrievalHeads:
    return retrieval_heads(finder(), tokenizer(), keep=False)


def passes(model: Any, run: Callable[[], object]) -> int:
    seen: list[str] = []
    with ud.watch(model, lambda call: seen.append(call.layer)):
        run()
    return seen.count("model.layers.0")


# ---------------------------------------------------------------- what is found


def test_the_head_that_finds_facts_is_found(known: RetrievalHeads) -> None:
    layer = f"model.layers.{FINDER[0]}"
    assert known.heads == ((layer, FINDER[1]),)
    assert known.until == layer
    assert known.group == group_length(known.alpha) == 1024
    assert sorted(known.alpha) == [256, 512, 1024]


def test_the_length_of_a_group_follows_the_law() -> None:
    """α* = s·e^g / (s·e^g + n − s) is half of what it is at 256 where n is about 256 + (s·e^g + 256)."""
    gap = 3.0
    found = retrieval_heads(finder(gap=gap), tokenizer(), keep=False)
    near = math.exp(gap) * 8  # tokens of a fact, about
    for length, alpha in found.alpha.items():
        assert alpha == pytest.approx(near / (near + length - 8), rel=0.2)
    mass = 256 * found.alpha[256] / (1 - found.alpha[256])
    assert found.group == pytest.approx(256 + mass + 256, rel=0.1)


def test_group_lengths() -> None:
    assert group_length({64: 0.3}) == 64
    assert group_length({64: 0.4, 128: 0.2}) == 128  # half is enough
    assert group_length({64: 0.4, 128: 0.1}) == 90  # between, on a straight line of logarithms
    assert group_length({128: 0.1, 64: 0.4}) == 90
    assert 64 <= group_length({64: 0.4, 128: 0.0}) < 128
    assert group_length({64: 0.4, 128: 0.6, 256: 0.15, 512: 0.5}) < 256
    assert layers_in([]) == {}


def test_a_diagnosis_has_them_too() -> None:
    from tests.diagnosis.finder import filler

    texts = {f"text {seed}": filler(seed) for seed in range(3)}
    diagnosis = ud.diagnose(finder(), tokenizer(), texts, 1024, quick=True)
    assert RetrievalHeads.of(diagnosis).heads == ((f"model.layers.{FINDER[0]}", FINDER[1]),)
    plain = ud.diagnose(finder(), tokenizer(), texts, 1024, quick=True, probe=False)
    with pytest.raises(InvalidValue, match="without a probe"):
        RetrievalHeads.of(plain)


# ---------------------------------------------------------------- what is kept


def test_a_second_call_does_not_run_the_model(known: RetrievalHeads, folder: Path) -> None:
    model, told = finder(), list[float]()
    assert (
        passes(model, lambda: retrieval_heads(model, tokenizer(), on_progress=lambda share, _: told.append(share))) > 9
    )
    assert told
    (file,) = folder.iterdir()
    found: list[RetrievalHeads] = []
    assert passes(model, lambda: found.append(retrieval_heads(model, tokenizer()))) == 0
    assert found == [known]
    assert RetrievalHeads.from_json(known.to_json()) == known == RetrievalHeads.from_json(file.read_text())


def test_other_weights_rules_or_tokens_are_found_anew(known: RetrievalHeads, folder: Path) -> None:
    model = finder()
    file = finding._file(model, tokenizer())
    with ud.apply(model, "ssmax"):
        treated = finding._file(model, tokenizer())
    other = copy.deepcopy(tokenizer())
    other.add_tokens(["heronry"])
    files = {file, treated, finding._file(model, other), finding._file(finder(gap=3.0), tokenizer())}
    assert len(files) == 4
    assert finding._file(finder(), tokenizer()) == file
    finding._write(file, known)
    assert passes(model, lambda: retrieval_heads(model, tokenizer())) == 0
    with ud.apply(model, "ssmax"):
        assert passes(model, lambda: retrieval_heads(model, tokenizer())) > 0


def damaged(sound: str) -> list[str]:
    data = json.loads(sound)
    wrong: list[dict[str, Any]] = [{"format": 2}, {"heads": []}, {"heads": None}, {"heads": [["a"]]}, {"group": 0}]
    wrong += [{"group": "many"}, {"until": "elsewhere"}, {"alpha": {}}, {"alpha": [1]}, {"alpha": {"x": 1}}]
    return ["", sound[:-5], "[]", "null", "{}", *(json.dumps(data | each) for each in wrong)]


def test_a_damaged_file_is_found_anew(known: RetrievalHeads, folder: Path) -> None:
    file = finding._file(finder(), tokenizer())
    for text in damaged(known.to_json()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        assert finding._read(file) is None
    file.write_bytes(b"\xff\xfe")
    assert finding._read(file) is None
    assert retrieval_heads(finder(), tokenizer()) == known
    assert finding._read(file) == known


def test_keeping_nothing(known: RetrievalHeads, folder: Path) -> None:
    assert retrieval_heads(finder(), tokenizer(), keep=False) == known
    assert not folder.exists()


@pytest.mark.parametrize("place", ["/proc/undilute", "/dev/null/cache"])
def test_a_cache_that_cannot_be_written_is_no_obstacle(
    known: RetrievalHeads, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("UNDILUTE_CACHE", place)
    assert retrieval_heads(finder(), tokenizer()) == known


# ---------------------------------------------------------------- models that have none


def gpt2(positions: int) -> Any:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=positions, vocab_size=VOCABULARY)
    return transformers.GPT2LMHeadModel(config).eval()


def of_class(name: str, **sizes: Any) -> Any:
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    return kind(kind.config_class(**sizes)).eval()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "random weights": (lambda: llama_like("Llama"), "no head of this model finds what is asked for.*bm25"),
    "a short window": (lambda: gpt2(64), "GPT2LMHeadModel reads at most 64 tokens: too few to hide facts.*bm25"),
    "an encoder": (lambda: of_class("BertModel", **SMALL), "BertModel predicts no next token"),
    "an encoder with a head": (
        lambda: of_class("BertForMaskedLM", **SMALL),
        "BertForMaskedLM looks at later tokens, as an encoder does",
    ),
    "no head": (lambda: llama_like("Llama").model, "LlamaModel predicts no next token"),
    "two texts": (
        lambda: of_class("T5ForConditionalGeneration", d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4),
        "T5ForConditionalGeneration",
    ),
    "code of its own": (
        lambda: of_class("BloomForCausalLM", hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCABULARY),
        "BloomForCausalLM computes its attention in its own code",
    ),
    "no attention": (
        lambda: of_class("MambaForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY),
        "MambaForCausalLM",
    ),
    "images": (
        lambda: of_class(
            "ViTModel", **{name: size for name, size in SMALL.items() if name != "vocab_size"}, image_size=32
        ),
        "ViTModel",
    ),
    "another tokenizer": (lambda: llama_like("Llama", vocab_size=2), "LlamaForCausalLM knows 0 to 1"),
    "no model": (lambda: "smollm2", "model is a str"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_without_retrieval_heads_is_one_sentence(kind: str, folder: Path) -> None:
    make, says = REFUSED[kind]
    with pytest.raises(InvalidValue, match=says) as caught:
        retrieval_heads(make(), tokenizer())
    assert "\n" not in str(caught.value)
    assert not folder.exists()
