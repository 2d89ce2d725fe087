"""The tables of what speed and memory cost say what was measured."""

from __future__ import annotations

from docs.tables import costs as tables

from undilute_papers.bench import speed
from undilute_papers.bench.diagnosis_cost import PLAIN, Cost


def test_the_costs_of_a_diagnosis_by_length() -> None:
    costs = [
        Cost(PLAIN, 2048, 5.0, 1.0, 74.0),
        Cost("diagnosis", 2048, 6.0, 1.2, 123.4),
        Cost("diagnosis", 8192, 60.0, 1.1, None),
    ]
    assert tables.diagnosis(costs).splitlines() == [
        "|  | 2,048 tokens | 8,192 tokens |",
        "| --- | --- | --- |",
        "| forward pass | 1.00 ×, 74 MB | – |",
        "| diagnosis | 1.20 ×, 123 MB | 1.10 × |",
    ]


def test_one_rule_compared_with_another() -> None:
    def figure(what: str, causal: bool, seconds: float, spread: str = "normal", queries: int = 64) -> speed.Figure:
        return speed.Figure(what, "sparse", 64, queries, causal, True, spread, seconds, 1.0, None, None)

    measured = [
        *(figure("entmax15", causal, 2.0) for causal in (False, True)),
        *(figure("focus", causal, 1.5 + causal) for causal in (False, True)),
        figure("focus", False, 9.0, queries=1),  # a decoding step is not in the table
        figure("focus", False, 9.0, spread="sharp"),  # there is nothing to compare it with
    ]
    assert tables.compared(measured, "focus", "entmax15").splitlines() == [
        "| logits | + backward, 64 |",
        "| --- | --- |",
        "| normal | 0.75 / 1.25 |",
        "| sharp | – |",
    ]
