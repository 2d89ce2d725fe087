"""How many of the tokens that a head selects fit into a ball that leaves the others out?  N_s/N over N.

Figure 3 of Mudarisov et al., arXiv:2508.17821 (v1). For a row with weights α and vectors x of unit length, I the N
heaviest tokens and s = Σ_{i∈I} αᵢxᵢ,
    r = min_{j∉I} ‖s − αⱼxⱼ‖,    N_s = #{i ∈ I : ‖s − αᵢxᵢ‖ < r},
over the tokens that the row sees; rows that see N or fewer leave nothing out and are not counted. The publication takes
the closed ball, which holds the token that sets r; ties between selected tokens and that one are counted there only.

What the theorem says, at each row's own weights and radius (``undilute_papers.theory.separability``): the certain share
#{ξᵢ ≤ r}/N, which holds whatever the vectors, with δ the smallest distance between any two tokens, as published; the
corrected bounds on E[N_s]/N, proved for independent uniform vectors and an r that is fixed beforehand, while the r of
the figure comes from the same vectors; and the upper bound as printed, (1/N) Σ exp(−(r − ξᵢ)²/16).

Beside the model, rows of ``length`` tokens with logits from N(0, 1) and vectors that are known exactly: independent and
uniform on a sphere, orthonormal, or with a common direction (cosine 0.5); and a head with weight 0.97 on one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Result
from undilute.rules.parameters import count
from undilute_papers.limitations.separability import separability_findings as findings
from undilute_papers.limitations.separability.balls import Measured
from undilute_papers.limitations.separability.controls import control_shares
from undilute_papers.reproduction.attended import Layer, each_layer, evenly, layer_count, loaded, scope, selected_from
from undilute_papers.reproduction.experiment import Experiment, option


@dataclass(frozen=True)
class Separability(Experiment):
    """Figure 3: the separable share of the N heaviest tokens, over N, for every head of a model and for controls."""

    id: ClassVar[str] = "separability"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 3"
    shows: ClassVar[str] = "how many of the selected tokens fit into a ball that leaves the others out"
    quick_minutes: ClassVar[float] = 0.2
    full_minutes: ClassVar[float] = 0.5
    quick: ClassVar[dict[str, Any]] = {"rows": 32}

    model: str = option("smollm2", "A name, a folder, a .gguf file or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default what CPython ships.")
    length: int = option(1024, "Tokens to read.")
    tops: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "How many tokens are selected: the N's.")
    x: str = option("embedding", "What is selected from: the token's embedding (as published), or values or input.")
    rows: int = option(64, "Rows of each head, evenly spaced; 0 for all.")
    seed: int = option(0, "Seed of the controls.")

    def run(self, progress: Progress = quiet) -> Result:
        """Measure every head in one forward pass, and the controls."""
        tops, rows = self._checked(), evenly(self.length, self.rows)
        model, ids = loaded(self.model, self.text, self.length)
        measured = Measured(tops, rows)
        layers = layer_count(model)

        def use(layer: Layer) -> None:
            measured.add(layer)
            progress(0.9 * min(1.0, (layer.index + 1) / layers), f"layer {layer.index + 1}")

        each_layer(model, ids, use, x=selected_from(self.x), rows=rows)
        lines = measured.lines()
        if all(line["median"] is None for line in lines):
            raise InvalidValue(
                f"--tops = {self.tops}: no token sees more than the {measured.most_seen:,} keys of a sliding window "
                f"in {measured.widest}; at least one must be below {measured.most_seen:,}, or nothing is left out."
            )
        progress(0.9, "controls")
        controls = control_shares(len(ids), tops, self.seed)
        where = scope(self.model, self.text, self.length)
        return self.result(
            findings.sentences(lines, controls, len(measured.names), self.x, where),
            findings.comparisons(lines, controls),
            {"by_top": lines, "controls": controls, "heads": measured.head_lines()},
            findings.charts(lines, controls),
        )

    def _checked(self) -> list[int]:
        """The N's in order, after every option has been looked at."""
        selected_from(self.x)
        tops = sorted({count("--tops", top) for top in self.tops})
        if not tops or tops[-1] >= count("--length", self.length):
            raise InvalidValue(
                f"--tops = {self.tops}: must be numbers of selected tokens below --length = {self.length:,}, or "
                "nothing is left out."
            )
        return tops
