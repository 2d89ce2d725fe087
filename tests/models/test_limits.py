from __future__ import annotations

import pytest
import torch
import transformers

from tests.models.small import BERT, GPT2, LLAMA
from undilute.errors import InvalidValue
from undilute.models.limits import maximum_length, readable_length

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
CONFIGS = {
    "llama": (LLAMA, 128),
    "gpt2": (GPT2, 64),
    "bert": (BERT, 40),
    "roberta": (transformers.RobertaConfig(**SMALL, max_position_embeddings=34, pad_token_id=1), 32),
    "mpnet": (transformers.MPNetConfig(**SMALL, max_position_embeddings=34, pad_token_id=1), 32),
    "bloom": (transformers.BloomConfig(**SMALL), None),
    "mamba": (transformers.MambaConfig(**SMALL), None),
    "falcon, rotary": (transformers.FalconConfig(**SMALL, max_position_embeddings=50), 50),
    "falcon, alibi": (transformers.FalconConfig(**SMALL, max_position_embeddings=50, alibi=True), None),
    "distilbert": (transformers.DistilBertConfig(dim=16, n_heads=2, n_layers=1, hidden_dim=16, vocab_size=9), 512),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_maximum_length(name: str) -> None:
    config, expected = CONFIGS[name]
    assert maximum_length(transformers.AutoModel.from_config(config)) == expected


def test_a_length_is_what_was_asked_for_or_as_long_as_the_model_reads() -> None:
    short, endless = (transformers.AutoModel.from_config(CONFIGS[name][0]) for name in ("gpt2", "bloom"))
    assert (readable_length(short), readable_length(short, 64), readable_length(short, 5)) == (64, 64, 5)
    assert (readable_length(endless), readable_length(endless, 10**6)) == (2048, 10**6)
    with pytest.raises(InvalidValue, match=r"^--lengths = 1,065: GPT2Model reads at most 64 tokens"):
        readable_length(short, 1065, name="--lengths")
    with pytest.raises(InvalidValue, match="length = 0: must be a whole number"):
        readable_length(endless, 0)


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", "mpnet"])
def test_a_model_with_a_table_of_positions_runs_at_its_maximum_and_not_beyond(name: str) -> None:
    model = transformers.AutoModel.from_config(CONFIGS[name][0]).eval()
    length = maximum_length(model)
    assert length is not None
    ids = torch.full((1, length + 1), 3)
    with torch.inference_mode():
        model(ids[:, :-1])
        with pytest.raises((IndexError, RuntimeError)):
            model(ids)


def test_the_text_part_of_a_larger_model_counts() -> None:
    text = {**SMALL, "max_position_embeddings": 77, "num_key_value_heads": 2, "head_dim": 8}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    with torch.device("meta"):
        assert maximum_length(transformers.AutoModel.from_config(config)) == 77
