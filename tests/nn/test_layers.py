"""Layers: shapes, learned parameters, KV cache, padding, positions, errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import undilute as ud
from undilute import rules

NAMES = rules.names()


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_trains(name: str) -> None:
    torch.manual_seed(0)
    layer = ud.nn.Attention(16, 4, num_kv_heads=2, rule=name, is_causal=True)
    layer(torch.randn(2, 7, 16)).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        acts = parameter_name != "rule.map.log_s_max"  # of focus: on rows of more than 16 keys that are almost tied
        assert (parameter.grad != 0).any() == acts, parameter_name


def test_the_limits_of_focus_are_learned() -> None:
    torch.manual_seed(0)
    rule = rules.Rule(map=rules.LearnableFocus(4, k=2, s_max=2.0))
    layer = ud.nn.Attention(16, 4, num_kv_heads=2, rule=rule, is_causal=True)
    layer(torch.randn(2, 7, 16)).square().sum().backward()
    assert all((limit.grad != 0).any() for limit in rule.parameters())


LEARNED = {
    "ssmax": {"rule.scale.s": (4,)},
    "temperature": {"rule.scale.log_T": (4,)},
    "sink": {"rule.map.s": (4,)},
    "entmax": {"rule.map.alpha_logit": (4,)},
    "focus": {"rule.map.log_s_min": (4,), "rule.map.log_s_max": (4,)},
    "as-entmax": {"rule.scale.beta_projection.weight": (4, 16), "rule.scale.gamma_projection.weight": (4, 16)},
}


@pytest.mark.parametrize("name", NAMES)
def test_names_bring_their_learned_parameters(name: str) -> None:
    layer = ud.nn.Attention(16, 4, rule=name)
    learned = {n: tuple(p.shape) for n, p in layer.named_parameters() if n.startswith("rule.")}
    assert learned == LEARNED.get(name, {})


def test_a_rule_object_is_used_as_it_is() -> None:
    rule = rules.get("ssmax", s=0.9)
    assert ud.nn.Attention(16, 4, rule=rule).rule is rule


def test_softmax_layer_is_torchs_multi_head_attention() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    ours = ud.nn.Attention(16, 4)
    q, k, v = theirs.in_proj_weight.chunk(3)
    ours.load_state_dict(
        {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "out_proj.weight": theirs.out_proj.weight}
    )
    x, context = torch.randn(2, 5, 16), torch.randn(2, 8, 16)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])
    torch.testing.assert_close(ours(x, context), theirs(x, context, context, need_weights=False)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [None, 3])
def test_steps_with_a_cache_equal_one_pass(name: str, window: int | None) -> None:
    torch.manual_seed(0)
    layer = ud.nn.Attention(
        16, 4, num_kv_heads=2, rule=name, is_causal=True, sliding_window=window, rotate=rotary
    ).double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    cache = ud.nn.KVCache()
    chunks = [layer(chunk, cache=cache) for chunk in x.split([4, 1, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(chunks, 1), layer(x), rtol=1e-9, atol=1e-11)
    assert len(cache) == 9


def rotary(q: Tensor, k: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """A user's own positions."""

    def turn(x: Tensor) -> Tensor:
        angle = (torch.arange(x.shape[-2], dtype=x.dtype) + offset)[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    return turn(q), turn(k)


def test_rotation_changes_the_result_and_is_relative() -> None:
    torch.manual_seed(0)
    layer = ud.nn.Attention(16, 4, is_causal=True, rotate=rotary).double()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    with_positions = layer(x)
    layer.rotate = lambda q, k, offset: rotary(q, k, offset + 7)
    torch.testing.assert_close(layer(x), with_positions)
    layer.rotate = None
    assert (layer(x) - with_positions).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_padding_in_a_causal_layer(name: str) -> None:
    torch.manual_seed(0)
    layer = ud.nn.Attention(16, 4, rule=name, is_causal=True).double()
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    left = torch.cat([torch.randn(1, 3, 16, dtype=torch.float64), x], 1)
    visible = (torch.arange(9) >= 3)[None, None, None]
    torch.testing.assert_close(layer(left, attn_mask=visible)[:, 3:], layer(x), rtol=1e-9, atol=1e-11)
    additive = torch.zeros(1, 1, 1, 9, dtype=torch.float64).masked_fill(~visible, -math.inf)
    torch.testing.assert_close(layer(left, attn_mask=additive)[:, 3:], layer(x), rtol=1e-9, atol=1e-11)


def test_dropout_only_in_training() -> None:
    layer = ud.nn.Attention(16, 4, dropout=0.5)
    x = torch.randn(1, 6, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["softmax", "ssmax", "entmax15", "as-entmax"])
def test_differential_layer_trains(version: int, name: str) -> None:
    torch.manual_seed(0)
    layer = ud.nn.DifferentialAttention(16, 4, depth=2, version=version, num_kv_heads=2, rule=name, is_causal=True)
    x = torch.randn(2, 5, 16)
    out = layer(x)
    assert out.shape == x.shape
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    late = layer(torch.cat([x, torch.randn(2, 3, 16)], 1))[:, :5]
    torch.testing.assert_close(late, out, rtol=1e-4, atol=1e-5)


def test_differential_version_1_is_the_papers() -> None:
    torch.manual_seed(0)
    layer = ud.nn.DifferentialAttention(8, 2, depth=3).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    (q1, k1), (q2, k2) = layer.lambda_vectors
    start = 0.8 - 0.6 * math.exp(-0.9)
    lam = (q1 @ k1).exp() - (q2 @ k2).exp() + start
    assert layer.lam(x).item() == pytest.approx(lam.item())
    heads = []
    q, k, v = (p(x)[0] for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    for h in range(2):
        maps = []
        for part in range(2):
            columns = slice((2 * h + part) * 2, (2 * h + part) * 2 + 2)
            maps.append((q[:, columns] @ k[:, columns].T / math.sqrt(2)).softmax(-1))
        o = (maps[0] - lam * maps[1]) @ v[:, 4 * h : 4 * h + 4]
        heads.append(o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 - start))
    torch.testing.assert_close(layer(x)[0], layer.out_proj(torch.cat(heads, -1)))


def test_differential_version_2_is_the_authors() -> None:
    torch.manual_seed(0)
    layer = ud.nn.DifferentialAttention(8, 2, depth=3, version=2).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    q = layer.q_proj(x).view(1, 5, 4, 4).transpose(1, 2)
    k, v = (p(x).view(1, 5, 2, 4).transpose(1, 2) for p in (layer.k_proj, layer.v_proj))
    o = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    gate = torch.sigmoid(layer.lambda_proj(x)).transpose(1, 2)[..., None]
    expected = o[:, 0::2] - gate * o[:, 1::2]
    torch.testing.assert_close(layer(x), layer.out_proj(expected.transpose(1, 2).flatten(-2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ud.nn.Attention(10, 4), "embed_dim = 10 and num_heads = 4"),
        (lambda: ud.nn.Attention(16, 4, num_kv_heads=3), "num_kv_heads = 3"),
        (lambda: ud.nn.Attention(16, 0), "num_heads = 0"),
        (lambda: ud.nn.Attention(16, 4)(torch.zeros(1, 2, 16), cache=ud.nn.KVCache()), "causal self-attention only"),
        (lambda: ud.nn.Attention(16, 4, is_causal=True)(*torch.zeros(2, 1, 2, 16)), "context goes with"),
        (lambda: ud.nn.Attention(16, 4, dropout=7.0), "dropout = 7.0"),
        (lambda: ud.nn.Attention(16, 4, sliding_window=0), "sliding_window = 0"),
        (lambda: ud.nn.DifferentialAttention(16, 4, 0, version=3), "version = 3"),
        (lambda: ud.nn.DifferentialAttention(12, 4, 0), "must be even"),
    ],
)
def test_bad_values(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ud.InvalidValue, match=message):
        make()


@pytest.mark.parametrize("shape", [(0, 3, 16), (2, 0, 16)])
@pytest.mark.parametrize("layer", [ud.nn.Attention(16, 4), ud.nn.DifferentialAttention(16, 4, 0)])
def test_empty_input(layer: torch.nn.Module, shape: tuple[int, ...]) -> None:
    assert layer(torch.zeros(shape)).shape == shape


def test_nan_in_the_input_shows() -> None:
    x = torch.randn(1, 4, 16)
    x[0, 2, 0] = math.nan
    for name in NAMES:
        assert ud.nn.Attention(16, 4, rule=name)(x).isnan().any(), name


def test_other_bad_shapes() -> None:
    layer = ud.nn.Attention(16, 4, is_causal=True)
    with pytest.raises(ud.InvalidTensor, match=r"must be \(batch, length, 16\)"):
        layer(torch.zeros(1, 2, 8))
    with pytest.raises(ud.InvalidTensor, match="context has shape"):
        ud.nn.Attention(16, 4)(torch.zeros(1, 2, 16), torch.zeros(2, 16))
    cache = ud.nn.KVCache()
    layer(torch.zeros(2, 3, 16), cache=cache)
    with pytest.raises(ud.InvalidTensor, match="use a new KVCache"):
        layer(torch.zeros(1, 1, 16), cache=cache)


@pytest.mark.parametrize("layer", [ud.nn.Attention(16, 4), ud.nn.DifferentialAttention(16, 4, 0)])
def test_bad_input_shape(layer: torch.nn.Module) -> None:
    with pytest.raises(ud.InvalidTensor, match=r"x has shape \(2, 16\)"):
        layer(torch.zeros(2, 16))


def test_unknown_rule() -> None:
    with pytest.raises(ud.UnknownName, match="did you mean 'ssmax'"):
        ud.nn.Attention(16, 4, rule="ssmx")


def test_a_causal_that_only_looks_like_a_switch_is_refused() -> None:
    q = torch.randn(1, 2, 5, 4)
    for refused in (
        lambda: ud.nn.Attention(16, 4, is_causal="no"),  # type: ignore[arg-type]
        lambda: ud.nn.DifferentialAttention(16, 4, depth=0, is_causal="no"),  # type: ignore[arg-type]
        lambda: ud.structures.linear(q, q, q, is_causal="no"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ud.InvalidValue, match="is_causal = 'no': must be True or False"):
            refused()
