"""How far do attention weights move when the logits move a little?  g(T, ε) over the temperature.

Figure 4 of Mudarisov et al., arXiv:2508.17821 (v1):
    g(T, ε) = ‖softmax((l + εv)/T) − softmax(l/T)‖₂ / ε,   ‖v‖₂ = 1.
As published (Algorithm 5): v is a random direction for each row, over the keys that it sees; mean over rows, largest
over heads. That cannot test a bound on the norm of the Jacobian: for small ε a random direction gives ‖J‖_F/√n on
average, while the norm is what the worst direction gives. So we add, for the same rows:
    ‖J‖₂, exact (``undilute.theory.jacobian``): the limit of the worst direction for small ε;
    g along the worse of two directions: against the top eigenvector of J, and with the two largest logits moved against
    each other. Another direction may be worse still, but none passes the proven supremum (√2/ε)·tanh(ε/(2√2·T)).
Bounds: as printed, min{1/(4T), √2} (Corollary 3: the quarter is that of the largest entry, the √2 that of a difference
of weights, before it is divided by ε); true, min{1/(2T), √2/ε}.

The same random directions serve every T and ε, so that curves differ by T and ε only. T divides the logits as the model
uses them, q·k/√d; the publication does not say, and ``scaled = False`` makes it divide q·k: the logits, with all else
that is in them, over the scale of the layer's own call, which need not be 1/√d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Result
from undilute.rules.parameters import count
from undilute.theory.inputs import numbers
from undilute_papers.limitations.gradient import gradient_findings as findings
from undilute_papers.limitations.gradient.steps import Steps
from undilute_papers.reproduction.attended import Layer, each_layer, evenly, layer_count, loaded, scope
from undilute_papers.reproduction.experiment import Experiment, option

LARGEST = 1e9  # of temperatures and steps, and the smallest is its inverse


@dataclass(frozen=True)
class Gradient(Experiment):
    """Figure 4: how much the weights of every head move for a step of ε in the logits, over the temperature."""

    id: ClassVar[str] = "gradient"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 4"
    shows: ClassVar[str] = "how far weights move when logits move: random and worst direction, false and true bound"
    quick_minutes: ClassVar[float] = 0.2
    full_minutes: ClassVar[float] = 0.5
    quick: ClassVar[dict[str, Any]] = {"rows": 32}

    model: str = option("smollm2", "A name, a folder, a .gguf file or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default what CPython ships.")
    length: int = option(1024, "Tokens to read.")
    epsilons: tuple[float, ...] = option((1e-3, 0.1, 10.0), "Lengths of the step in the logits.")
    temperatures: tuple[float, ...] = option(
        (1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0), "What the logits are divided by."
    )
    scaled: bool = option(True, "The temperature divides q·k/√d; without it, q·k.")
    rows: int = option(64, "Rows of each head, evenly spaced; 0 for all.")
    directions: int = option(1, "Random directions for each row.")
    seed: int = option(0, "Seed of the random directions.")

    def run(self, progress: Progress = quiet) -> Result:
        """Move the logits of every head, in one forward pass of the model."""
        temperatures = _positive("--temperatures", self.temperatures)
        epsilons = _positive("--epsilons", self.epsilons)
        rows = evenly(count("--length", self.length), self.rows)
        steps = Steps(temperatures, epsilons, count("--directions", self.directions), self.seed)
        model, ids = loaded(self.model, self.text, self.length)
        layers = layer_count(model)

        def use(layer: Layer) -> None:
            steps.add(layer if self.scaled else replace(layer, logits=layer.logits / layer.scale))
            progress(min(1.0, (layer.index + 1) / layers), f"layer {layer.index + 1}")

        each_layer(model, ids, use, rows=rows)
        lines, norms = steps.lines(), steps.norm_lines()
        return self.result(
            findings.sentences(lines, norms, steps, scope(self.model, self.text, self.length)),
            findings.comparisons(lines, norms),
            {"steps": lines, "jacobian": norms, "heads": steps.head_lines()},
            findings.charts(lines, norms),
        )


def _positive(name: str, values: Sequence[float]) -> list[float]:
    if not len(values):
        raise InvalidValue(f"{name} is empty: must be at least one number above 0.")
    listed: list[float] = numbers(name, list(values), above=0.0).tolist()
    if max(listed) > LARGEST or min(listed) < 1 / LARGEST:
        raise InvalidValue(f"{name} = {values}: must be from {1 / LARGEST:g} to {LARGEST:g}.")
    return sorted(listed)
