"""A GPT-2 whose five heads are made by hand: sharp, uniform, local, sink and diluting as 1/n.

Everything lies in the position embedding: a mark on the first token, a mark on a needle, and a wave for each of some
frequencies. Each feature stands there twice with opposite signs, and marks come as (1, 0) or (0, 1), so that every
token has mean 0 and the same length: layer norm multiplies all of them by the same number.
"""

from __future__ import annotations

import math

import torch
from transformers import GPT2Config, GPT2LMHeadModel

HEADS = ("sharp", "uniform", "local", "sink", "diluting")
HEAD_DIM, WAVES = 64, 24
NEEDLE = 3  # its position
GAPS = {"sharp": 25.0, "sink": 12.0, "diluting": math.log(100.0)}


def constructed(positions: int = 1024) -> GPT2LMHeadModel:
    """The model; head h of its one layer is ``HEADS[h]``."""
    width = len(HEADS) * HEAD_DIM
    config = GPT2Config(
        n_embd=width, n_layer=1, n_head=len(HEADS), n_positions=positions, vocab_size=100, n_inner=width
    )
    model = GPT2LMHeadModel(config).eval()
    features = torch.zeros(positions, width // 2)
    features[:, 0], features[0, 0], features[0, 1] = 0.0, 1.0, 0.0
    features[1:, 1] = 1.0
    features[:, 3] = 1.0
    features[NEEDLE, 2], features[NEEDLE, 3] = 1.0, 0.0
    t = torch.arange(positions)[:, None]
    frequencies = torch.logspace(0, -3, WAVES) * math.pi / 2
    features[:, 4 : 4 + WAVES], features[:, 4 + WAVES : 4 + 2 * WAVES] = (
        (t * frequencies).cos(),
        (t * frequencies).sin(),
    )
    layer = model.transformer.h[0]
    with torch.no_grad():
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.copy_(torch.cat([features, -features], -1))
        gain = features[0].square().mean().rsqrt()  # what layer norm multiplies by
        weight, bias = torch.zeros(width, 3 * width), torch.zeros(3 * width)
        for h, kind in enumerate(HEADS):
            q, k = h * HEAD_DIM, width + h * HEAD_DIM
            if kind in GAPS:
                mark = 0 if kind == "sink" else 2
                bias[q] = GAPS[kind] * math.sqrt(HEAD_DIM)
                weight[mark, k] = 1 / gain
            if kind == "local":
                for wave in range(2 * WAVES):
                    weight[4 + wave, q + wave] = 2.0 * math.sqrt(HEAD_DIM) / gain
                    weight[4 + wave, k + wave] = 1 / gain
        weight[:, 2 * width :] = torch.randn(width, width, generator=torch.Generator().manual_seed(0)) / width**0.5
        layer.attn.c_attn.weight.copy_(weight)
        layer.attn.c_attn.bias.copy_(bias)
    return model
