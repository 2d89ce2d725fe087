"""Small tokenizers of every kind, trained in a moment, and a text for them."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from undilute.evaluation.tasks import facts, other_facts
from undilute.evaluation.words import KINDS, NAMES, OTHER_NAMES, OTHER_THINGS, THINGS

PROSE = " ".join(
    f"Sentence number {number} says that the sum of {number} and {number + 1} is {2 * number + 1}, and no more. "
    f'Is it "true?" It is!\n\nA paragraph about {number} begins here.'
    for number in range(400)
)
WORDINGS = [
    f"{says} {asks}"
    for wordings in (facts.REPEATED, facts.PARAPHRASED, other_facts.REPEATED, other_facts.PARAPHRASED)
    for says, asks in wordings.items()
]
VOCABULARY = 500
KINDS_OF_TOKENIZERS = ("byte-level", "sentence-piece", "words", "bytes", "marked")


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """
    byte-level      GPT-2's: a space belongs to the word after it
    sentence-piece  Llama's: "▁" stands for a space, and one is put before every text
    words           whole words and punctuation; nothing stands for a space
    bytes           one token for each byte, and nothing else
    marked          byte-level, with marks before and after every text
    every word      as words, and those of every other list and of a text
    """
    if kind == "sentence-piece":
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # no token goes beyond a word
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>"], show_progress=False)
        made.train_from_iterator(_corpus(PROSE[:4000]), trainer)
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    if kind in ("words", "every word"):
        made = Tokenizer(models.WordLevel(unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
        others = [" ".join([*OTHER_NAMES, *OTHER_THINGS]), PROSE, *WORDINGS] if kind == "every word" else []
        made.train_from_iterator([*_corpus(PROSE[:4000]), *others], trainer)
        return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    made = byte_level(PROSE[:4000], 256 if kind == "bytes" else VOCABULARY)
    if kind == "marked":
        made.add_special_tokens(["<s>", "</s>"])
        marks = [(mark, made.token_to_id(mark)) for mark in ("<s>", "</s>")]
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    return PreTrainedTokenizerFast(tokenizer_object=made)


def byte_level(text: str, size: int) -> Tokenizer:
    """Of ``size`` tokens, trained on a text and on what needles are made of."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_corpus(text), trainer)
    return made


def _corpus(text: str) -> list[str]:
    words = [*NAMES, *THINGS, *(word for kind in KINDS.values() for word in kind), *KINDS]
    sentences = [
        f"The special word of {word} is {word}. One of the special words of {word} is. The favourite {word}"
        for word in words
    ]
    return [text, *sentences]
