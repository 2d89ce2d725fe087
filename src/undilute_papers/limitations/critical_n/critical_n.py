"""From which N on is the top-N distance like that of a random selection?  Fig. 2c of arXiv:2508.17821v1: "≈ 0.06 L".

The procedure as published: at each L, the mean of d̃ over tokens for every head, and the mean of its expectation E; a
two-sample Kolmogorov–Smirnov test between the heads' d̃ and the heads' E; the critical N is the smallest N that the test
does not reject. The text says α = .01, Algorithm 3 says .05. It is run with the expectation as printed (a misprint),
with the main term as corrected, and with the expectation itself, found by drawing random sets without bias.

Two things are wrong with that procedure whatever the formula. The two samples are the same heads, so they are paired,
and the test's level does not hold. And not to reject is not to find equal: with fewer heads the same curves give a
smaller critical N. So we add a paired test (Wilcoxon signed-rank over heads) and an equivalence test: the
ratio d̃/E, its geometric mean over heads, and the N from which its 90 % interval lies within 10 % of 1 (two one-sided
tests at 5 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.progress import Progress, quiet
from undilute.report.result import Result
from undilute.rules.parameters import count
from undilute_papers.limitations.critical_n import critical_n_findings as findings
from undilute_papers.limitations.critical_n.found import Found
from undilute_papers.limitations.critical_n.search import EXPECTATIONS, Curves, grid
from undilute_papers.limitations.samples import Sample, check_options, of_the_whole_text, samples
from undilute_papers.reproduction.attended import loaded, selected_from
from undilute_papers.reproduction.experiment import Experiment, option


@dataclass(frozen=True)
class CriticalN(Experiment):
    """Fig. 2c."""

    id: ClassVar[str] = "critical-n"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 2c"
    shows: ClassVar[str] = "from which N on the top-N distance cannot be told from a random selection's"
    quick_minutes: ClassVar[float] = 0.8
    full_minutes: ClassVar[float] = 1.2
    quick: ClassVar[Mapping[str, Any]] = {"lengths": (64, 128, 256, 512), "rows": 32}

    model: str = option("smollm2", "Model: a name, a path or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default the text that CPython ships.")
    lengths: tuple[int, ...] = option((64, 128, 256, 512, 1024), "Lengths L.")
    points: int = option(36, "Values of N evenly spaced on a log scale up to the longest L.")
    rows: int = option(64, "Evenly spaced tokens at each length that the mean is taken over; 0 for every token.")
    x: str = option("values", "What the weights select from: values, input or embedding; the paper does not say.")
    short_rows: str = option("left out", "A token that sees no more than N keys: left out, or zero.")
    heads: tuple[int, ...] = option((36, 144), "Repeat the test with this many heads, drawn at random.")
    subsets: int = option(20, "How often heads are drawn.")
    draws: int = option(1, "Random sets drawn for each token and head.")
    seed: int = option(0, "Seed of the random sets and the drawn heads.")

    def run(self, progress: Progress = quiet) -> Result:
        """Compute d̃ and its expectations for every head, and search the critical N in every way."""
        lengths = self._checked()
        progress(0.0, f"loading {self.model}")
        model, ids = loaded(self.model, self.text, lengths[-1], "--lengths")
        grids = {length: grid(length, lengths[-1], self.points) for length in lengths}
        measured = samples(
            model,
            ids,
            {length: dict.fromkeys(grid, ("distance", *EXPECTATIONS)) for length, grid in grids.items()},
            rows=self.rows,
            x=selected_from(self.x),
            seed=self.seed,
            draws=self.draws,
            progress=lambda share: progress(0.05 + 0.85 * share, "measuring every head"),
        )
        progress(0.9, "testing")
        measured, left_out = of_the_whole_text(measured, "--lengths")
        curves = {length: self._curves(measured[length], grids[length]) for length in lengths}
        found = Found(curves, self.heads, self.subsets, self.seed)
        return self.result(
            [*findings.sentences(found, self), *left_out],
            findings.comparisons(found),
            found.tables(),
            findings.charts(found),
        )

    def _checked(self) -> list[int]:
        check_options(self.x, self.rows, self.short_rows, self.draws, self.seed)
        count("--subsets", self.subsets)
        for size in self.heads:
            count("--heads", size)
        if count("--points", self.points) < 8:
            raise InvalidValue(f"--points = {self.points}: must be at least 8, or no critical N can be told.")
        lengths = sorted({count("--lengths", each) for each in self.lengths})
        if len(lengths) < 2 or lengths[0] < 8:
            raise InvalidValue(f"--lengths = {self.lengths}: must be at least two, of at least 8 tokens each.")
        return lengths

    def _curves(self, sample: Sample, tops: Sequence[int]) -> Curves:
        def per_head(name: str) -> NDArray[np.float64]:
            means = [sample.per_head(name, top, short_rows=self.short_rows) for top in tops]
            return torch.stack(means).double().numpy()

        return Curves(tuple(tops), per_head("distance"), {name: per_head(name) for name in EXPECTATIONS})
