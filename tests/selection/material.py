"""What selection is tested with: a scorer that counts words, a tokenizer for chats, models that say what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tests.evaluation.tokenizers import PROSE, byte_level
from undilute.evaluation.words import standing_in
from undilute.progress import Progress
from undilute.selection import Passage, Scores, Subject, scorer
from undilute.selection.keeping import Kept

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDED = (
    "{% for message in messages %}### {{ message['role'] }}:\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
FACT = "Zoe keeps a heron in the garden."
FILLER = "\n\n".join(f"Paragraph {number} says that the sum is {2 * number + 1}, and no more." for number in range(120))
DOCUMENTS = {"notes.md": f"{FILLER[:3000]}\n\n{FACT}\n\n{FILLER[3000:]}", "other.md": FILLER[:600]}
QUESTION = "Who keeps a heron?"


class ByWords:
    """Scores a passage by how many words of the question it holds."""

    label = "words"

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        held = [standing_in(each.text) for each in passages]
        return [Scores(np.array([float(len(standing_in(asked) & each)) for each in held])) for asked in questions]


@scorer("words")
def words(subject: Subject) -> ByWords:
    return ByWords()


@cache
def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Byte-level, with the marks of a chat."""
    made = byte_level(PROSE[:4000], 400)
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<pad>")
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    found.chat_template = template
    return found


def gpt2(tokenizer: PreTrainedTokenizerFast, positions: int = 1024) -> GPT2LMHeadModel:
    """Small and random."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=positions,
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()


@cache
def letters() -> PreTrainedTokenizerFast:
    """One token for each of 128 characters."""
    made = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")


def chain(follows: Mapping[str, str], strength: float = 4.0, positions: int = 512) -> GPT2LMHeadModel:
    """A model of letters that says what follows the last one, whatever stands before it."""
    config = GPT2Config(
        n_embd=128,
        n_layer=1,
        n_head=1,
        n_positions=positions,
        vocab_size=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "c_proj" in name or "wpe" in name:
                weight.zero_()
        model.transformer.wte.weight.copy_(torch.eye(128))
        model.lm_head.weight.zero_()
        for one, other in follows.items():
            model.lm_head.weight[ord(other), ord(one)] = strength
    return model
