"""A language model of which it is known which head finds facts, with what weight, and when the answer is right.

Its two layers read features of the tokens that are made by hand, not learned:

    asked      the name within a token's last eight: what a question is about
    stated     the name of the whole sentence, if a full stop ends it: what a statement is about
    others     whether it is the first token, the sixth, or in a statement; where it stands; which thing it is

One head gives every token of the statement about the name in question the logit ``gap``, and all others 0, so that
α* = s·e^gap / (s·e^gap + n − s). The answer is read off that head's values, against a noise that belongs to the name
and the thing: the smaller α*, the more often the noise wins. The next word of plain text is read off the local head.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from undilute.evaluation.tasks import facts, other_facts
from undilute.evaluation.words import KINDS, NAMES, OTHER_NAMES, OTHER_THINGS, THINGS

HEADS = (("uniform", "sink", "local", "random"), ("fixed", "finder", "decoy", "uniform"))
FINDER = (1, 1)  # layer and head
NAMED, THINGS_OF_ALL = (*NAMES, *OTHER_NAMES), (*THINGS, *OTHER_THINGS)
FILLER = tuple(
    f"{start}{end}" for start in ("ba", "do", "fi", "ke", "lu", "mo") for end in ("ran", "mel", "sto", "vin")
)
PLAIN = {"uniform": "diffuse", "sink": "sink", "local": "local", "fixed": "sharp", "decoy": "diffuse"}
REACH = 8  # tokens within which a question's name is remembered
FIXED = 5  # the position that one head always looks at
WAVES = 24
SURE = 12.0  # the logit of what a head looks at without doubt
NEXT = 6.0  # the logit of the next word of plain text


class FinderConfig(PretrainedConfig):
    """
    gap       logit of the tokens of the statement that is asked for
    varied    by which the gap differs from name to name, at most
    rest      logit of the first token in the head that finds facts: where it rests
    strength  of the answer that is found, in standard deviations of the noise
    packs     whether the model takes a mask that lets several questions be asked together
    """

    model_type = "finder"

    def __init__(
        self,
        gap: float = 4.4,
        varied: float = 0.0,
        rest: float = 0.0,
        strength: float = 33.0,
        packs: bool = True,
        **others: Any,
    ) -> None:
        self.gap, self.varied, self.rest, self.strength, self.packs = gap, varied, rest, strength, packs
        self.vocab_size, self.max_position_embeddings = len(vocabulary()), 8192
        self.num_hidden_layers, self.num_attention_heads = len(HEADS), len(HEADS[0])
        self.head_dim = len(THINGS_OF_ALL)
        self.hidden_size = self.head_dim * self.num_attention_heads
        super().__init__(**others)


@cache
def vocabulary() -> dict[str, int]:
    templates = [
        text for part in (facts, other_facts) for says in (part.REPEATED, part.PARAPHRASED) for text in says.items()
    ]
    said = re.findall(r"\w+|[^\w\s]", " ".join(f"{says} {asks}" for says, asks in templates))
    words = [*NAMED, *THINGS_OF_ALL, *FILLER, *KINDS, *(word for own in KINDS.values() for word in own), *said]
    return {word: number for number, word in enumerate(dict.fromkeys(["<unk>", ".", "a", *words]))}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words and punctuation."""
    made = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def filler(seed: int, sentences: int = 400) -> str:
    """Sentences of about ten words that say nothing; four words in five follow from the one before."""
    generator = np.random.default_rng(seed)
    said, word = [], 0
    for _ in range(sentences):
        words = []
        for _ in range(int(generator.integers(6, 14))):
            word = (word + 1) % len(FILLER) if generator.random() < 0.8 else int(generator.integers(len(FILLER)))
            words.append(FILLER[word])
        said.append(" ".join(words) + ".")
    return " ".join(said)


def lookup(words: tuple[str, ...]) -> Tensor:
    """(vocabulary, words): which word a token is."""
    table = torch.zeros(len(vocabulary()), len(words))
    for place, word in enumerate(words):
        table[vocabulary()[word], place] = 1.0
    return table


class FinderAttention(nn.Module):
    """The heads of one layer: linear maps of the features, which are all of known meaning."""

    def __init__(self, config: FinderConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal, self.scaling = config, layer_idx, True, 1.0
        self.head_dim = config.head_dim

    def forward(
        self, hidden_states: Tensor, parts: dict[str, Tensor], attention_mask: Tensor | None, past: Any
    ) -> Tensor:
        made = [self._head(kind, parts) for kind in HEADS[self.layer_idx]]
        query, key, value = (torch.stack([self._padded(each) for each in own], 1) for own in zip(*made, strict=True))
        if past is not None:
            key, value = past.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, _ = attend(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling)
        return output  # (batch, queries, heads, features)

    num_key_value_groups = 1

    def _padded(self, vectors: Tensor) -> Tensor:
        return F.pad(vectors, (0, self.head_dim - vectors.shape[-1]))

    def _head(self, kind: str, parts: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of one head, (batch, tokens, features)."""
        one, config = parts["one"], self.config
        if kind == "finder":
            query = torch.cat([parts["asked"] * parts["gaps"], config.rest * one], -1)
            return query, torch.cat([parts["stated"], parts["first"]], -1), parts["thing"]
        if kind == "local":
            return 2.0 * parts["waves"], parts["waves"], parts["next"]
        if kind == "random":
            return parts["random"], parts["random"].roll(1, -1), parts["random"]
        if kind == "decoy":
            return config.gap * one, parts["stated"].sum(-1, keepdim=True), parts["random"]
        if kind in ("sink", "fixed"):
            return SURE * one, parts["first" if kind == "sink" else "fixed"], parts["random"]
        return 0 * one, one, parts["random"]


class FinderPreTrainedModel(PreTrainedModel):
    config_class = FinderConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def _init_weights(self, module: nn.Module) -> None:
        """Everything is made by hand."""


class FinderModel(FinderPreTrainedModel):
    def __init__(self, config: FinderConfig) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(0)
        self.embed_tokens = nn.Embedding(config.vocab_size, 16)
        self.embed_tokens.weight.data = torch.randn(config.vocab_size, 16, generator=generator) / 4
        self.layers = nn.ModuleList([FinderAttention(config, layer) for layer in range(len(HEADS))])
        following = lookup(FILLER).roll(1, -1)  # a word's value is the one that follows it
        self.register_buffer("names", lookup(NAMED))
        self.register_buffer("things", lookup(THINGS_OF_ALL))
        self.register_buffer("following", following)
        varied = torch.rand(len(NAMED), generator=generator) * 2 - 1
        self.register_buffer("gaps", config.gap + config.varied * varied)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if attention_mask is not None and attention_mask.ndim == 4 and not self.config.packs:
            raise ValueError("a mask of one number for each token is needed")
        embedded = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        if position_ids is None:
            position_ids = (seen + torch.arange(input_ids.shape[1]))[None]
        mask = create_causal_mask(self.config, embedded, attention_mask, past_key_values, position_ids)
        parts = self._parts(input_ids, position_ids.expand_as(input_ids), embedded)
        outputs = [layer(embedded, parts, mask, past_key_values) for layer in self.layers]
        found, local = outputs[FINDER[0]][:, :, FINDER[1]], outputs[0][:, :, HEADS[0].index("local")]
        states = torch.cat([found, local, parts["asked"]], -1)
        return BaseModelOutputWithPast(last_hidden_state=states, past_key_values=past_key_values)

    def _parts(self, ids: Tensor, positions: Tensor, embedded: Tensor) -> dict[str, Tensor]:
        waves = positions[..., None] * torch.logspace(0, -3, WAVES) * math.pi / 2
        return {
            "one": torch.ones_like(embedded[..., :1]),
            "first": (positions == 0).float()[..., None],
            "fixed": (positions == FIXED).float()[..., None],
            "waves": torch.cat([waves.cos(), waves.sin()], -1),
            "random": embedded,
            "thing": self.things[ids],
            "next": self.following[ids],
            "asked": torch.stack([self._asked(each) for each in ids]),
            "stated": torch.stack([self._stated(each) for each in ids]),
            "gaps": self.gaps,
        }

    def _asked(self, ids: Tensor) -> Tensor:
        """(tokens, names): the last name among a token's last eight."""
        named, made = self.names[ids], torch.zeros(len(ids), len(NAMED))
        for place in named.any(-1).nonzero().flatten().tolist():
            made[place : place + REACH] = named[place]
        return made

    def _stated(self, ids: Tensor) -> Tensor:
        """(tokens, names): the name of the sentence that a token stands in, if a full stop ends it."""
        named, made, start = self.names[ids], torch.zeros(len(ids), len(NAMED)), 0
        for stop in (ids == vocabulary()["."]).nonzero().flatten().tolist():
            made[start : stop + 1] = named[start : stop + 1].sum(0)
            start = stop + 1
        return made


class FinderForCausalLM(FinderPreTrainedModel):
    def __init__(self, config: FinderConfig) -> None:
        super().__init__(config)
        self.model = FinderModel(config)
        head = torch.zeros(config.vocab_size, 2 * config.head_dim + len(NAMED))
        head[:, : config.head_dim] = config.strength * self.model.things
        head[:, config.head_dim : config.head_dim + len(FILLER)] = NEXT * lookup(FILLER)
        noise = torch.randn(config.vocab_size, len(NAMED), generator=torch.Generator().manual_seed(1))
        head[:, 2 * config.head_dim :] = noise
        self.lm_head = nn.Linear(head.shape[1], config.vocab_size, bias=False)
        self.lm_head.weight.data = head
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def forward(self, input_ids: Tensor, logits_to_keep: int | Tensor = 0, **inputs: Any) -> CausalLMOutputWithPast:
        found = self.model(input_ids=input_ids, **inputs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(found.last_hidden_state[:, kept])
        return CausalLMOutputWithPast(logits=logits, past_key_values=found.past_key_values)


def finder(**options: Any) -> FinderForCausalLM:
    """The model; options are those of its configuration."""
    return FinderForCausalLM(FinderConfig(**options)).eval()
