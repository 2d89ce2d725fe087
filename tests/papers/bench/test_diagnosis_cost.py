"""The cost of a diagnosis: what is measured, and what is written of it."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from undilute_papers.bench import diagnosis_cost
from undilute_papers.bench.diagnosis_cost import PLAIN, Cost


def test_everything_is_compared_with_the_forward_pass() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, vocab_size=60)
    model = GPT2LMHeadModel(config).eval()
    costs = diagnosis_cost.measure(model, torch.arange(256) % 60, repeat=2, dense=256)
    names = [cost.what for cost in costs]
    assert names == [PLAIN, "diagnosis", "forward pass with its head", "output_attentions=True"]
    assert costs[0].ratio == 1
    assert all(cost.ratio == cost.seconds / costs[0].seconds for cost in costs)
    assert model.config._attn_implementation == "sdpa"
    without = diagnosis_cost.measure(model, torch.arange(256) % 60, repeat=1, dense=255)
    assert [cost.what for cost in without] == names[:3]


def test_costs_survive_json_and_become_a_table() -> None:
    costs = [
        Cost(PLAIN, 2048, 5.0, 1.0, 74.0),
        Cost("diagnosis", 2048, 6.0, 1.2, 123.4),
        Cost("diagnosis", 8192, 60.0, 1.1, None),
    ]
    assert diagnosis_cost.from_json(diagnosis_cost.to_json(costs, {"cpu": "a"}, "undilute …")) == costs
    assert diagnosis_cost.table(costs).row_count == 3
