"""Small random models of every kind of attention, and what they attend to, dense and in float64.

The oracle is an attention function of the tests' own, registered under a name that a model holds while it runs: it
builds the whole n × n from the formula and keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from tests.measures.oracles import Row
from undilute.measures.attention_rows import Settings

WINDOW, VOCABULARY = 6, 60
OURS = "attention_of_the_tests"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
}
GLOBAL_AND_LOCAL: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"experts_implementation": "eager"}  # the others know no float64
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=64,
        vocab_size=VOCABULARY,
        initializer_range=0.4,
        scale_attn_by_inverse_layer_idx=True,
        bos_token_id=1,
        eos_token_id=1,
    ),
    "bert": lambda: transformers.BertConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, **GLOBAL_AND_LOCAL, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, **GLOBAL_AND_LOCAL, head_dim=8, query_pre_attn_scalar=8),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **SIZES,
        **EXPERTS,
        **GLOBAL_AND_LOCAL,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
}
CLASSES: dict[str, Any] = {
    "llama": transformers.LlamaForCausalLM,
    "gpt2": transformers.GPT2LMHeadModel,
    "bert": transformers.BertModel,
    "mistral": transformers.MistralForCausalLM,
    "qwen2": transformers.Qwen2ForCausalLM,
    "gemma2": transformers.Gemma2ForCausalLM,
    "gemma3": transformers.Gemma3ForCausalLM,
    "gpt-oss": transformers.GptOssForCausalLM,
}
WITHOUT_SDPA = ("gemma2", "gpt-oss")  # soft caps and learned sinks
KINDS = [
    (kind, implementation)
    for kind in CLASSES
    for implementation in ("sdpa", "eager")
    if implementation == "eager" or kind not in WITHOUT_SDPA
]


def random_model(kind: str, implementation: str = "sdpa", dtype: torch.dtype = torch.float64) -> Any:
    """The same weights for the same kind, every time."""
    torch.manual_seed(0)
    model = CLASSES[kind](CONFIGURATIONS[kind]())
    model.set_attn_implementation(implementation)
    return model.to(dtype).eval()


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Attended:
    """One call of one layer, as dense as can be.

    Attributes
    ----------
    weights : (batch, heads, queries, keys), what each value is multiplied by; 0 where hidden
    outside : (batch, heads, queries), the share of a learned sink
    reach : (batch, heads, queries), ‖q‖·max‖k‖·scale over the visible keys; NaN where a bias is added
    x : (batch, key heads, keys, features), the values
    """

    weights: Tensor
    outside: Tensor
    reach: Tensor
    x: Tensor

    def row(self, batch: int, head: int, query: int, settings: Settings, *, first: int = 0, hair: float = 1e-6) -> Row:
        """The oracle's view of one row; log weights are the logits up to a shift, which no measure can see."""
        weights = self.weights[batch, head, query]
        seen = weights > 0
        index = torch.arange(len(weights))[seen]
        outside = float(self.outside[batch, head, query])
        group = self.weights.shape[1] // self.x.shape[1]
        return Row(
            z=weights[seen].log().numpy(),
            key=index.numpy(),
            own=query + len(weights) - self.weights.shape[2],
            is_sink=((index >= first) & (index < first + settings.sinks)).numpy(),
            x=self.x[batch, head // group, seen].double().numpy(),
            outside=math.log(outside) if outside > 0 else -math.inf,
            reach=float(self.reach[batch, head, query]),
            top=settings.top,
            recent=settings.recent,
            hair=hair,
        )


def attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float, **options: Any
) -> Attended:
    """Softmax of everything that is shown, from the formula."""
    query, key = query.detach().double(), key.detach().double()
    groups = query.shape[1] // key.shape[1]
    k = key.repeat_interleave(groups, 1)
    z = torch.einsum("bhqd,bhkd->bhqk", query, k) * scaling
    if (softcap := options.get("softcap")) is not None:
        z = softcap * torch.tanh(z / softcap)
    added = torch.zeros_like(z) if mask is None else mask.double().expand(z.shape)
    shown = added > torch.finfo(torch.float32).min / 2
    z = z + added
    sink = torch.full_like(z[..., :1], -torch.inf)
    if (learned := options.get("s_aux")) is not None:
        sink = learned.detach().double().reshape(1, -1, 1, 1).expand_as(sink)
    p = torch.cat([z.masked_fill(~shown, -torch.inf), sink], -1).softmax(-1).nan_to_num()
    longest = torch.where(shown, k.norm(dim=-1)[:, :, None], 0.0).amax(-1)
    reach = query.norm(dim=-1) * longest * (math.nan if added[shown].any() else scaling)
    return Attended(p[..., :-1], p[..., -1], reach, value.detach())


@contextmanager
def attending_with(model: PreTrainedModel, function: Callable[..., Any], mask: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``model`` uses ``function`` as its attention."""
    original = model.config._attn_implementation
    AttentionInterface.register(OURS, function)
    AttentionMaskInterface.register(OURS, mask)
    try:
        model.set_attn_implementation(OURS)
        yield
    finally:
        model.set_attn_implementation(original)
        AttentionInterface._global_mapping.pop(OURS)
        AttentionMaskInterface._global_mapping.pop(OURS)


def dense_layers(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> list[Attended]:
    """Every layer of one pass without a cache that attends densely in float64."""
    calls: list[Attended] = []

    def dense(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        calls.append(attended(query, key, value, mask, **options))
        v = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
        return (calls[-1].weights.to(v.dtype) @ v).transpose(1, 2).contiguous(), None

    with attending_with(model, dense, eager_mask), torch.no_grad():
        model(ids, **inputs, **({} if model.config.model_type == "bert" else {"use_cache": False}))
    return calls


def observed(model: PreTrainedModel, ids: Tensor, *, layers: Iterable[int]) -> dict[int, Attended]:
    """Some layers of one causal pass with torch's own attention: the dense float64 of its queries and keys."""
    calls: dict[int, Attended] = {}
    hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.float64).triu(1) * torch.finfo(torch.float64).min

    def watch(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        assert mask is None
        if module.layer_idx in layers:
            calls[module.layer_idx] = attended(query, key, value, hidden, **options)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    with attending_with(model, watch, sdpa_mask), torch.no_grad():
        model(ids, use_cache=False)
    return calls
