"""What was exported?  Where it is, what is exact, what is approximated and by how much, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undilute.exporting.factors import Explanation, Part, Verdict


@dataclass(frozen=True)
class Exported:
    """The result of :func:`undilute.export`.

    Attributes
    ----------
    path : the folder, or the GGUF file
    explanation : what became of each head
    max_logit_difference : between the treated model here and what was exported, on a text; None if not measured
    approximation : the largest difference of logits that comes from approximating, 0 if everything is exact
    loss_change : that approximating makes on the given text, in nats; None if none was given
    notes : what else there is to know
    """

    path: Path
    explanation: Explanation
    max_logit_difference: float | None = None
    approximation: float = 0.0
    loss_change: float | None = None
    notes: Sequence[str] = ()

    @property
    def exact(self) -> list[Part]:
        """What is exactly as in the plan."""
        return self.explanation.having("exact")

    @property
    def approximated(self) -> list[Part]:
        """What is nearly so, with its error."""
        return self.explanation.having("approximate")

    @property
    def refused(self) -> list[Part]:
        """What was left out, with the reason."""
        return self.explanation.having("cannot")

    def summary(self) -> str:
        """Everything in a few lines."""
        return "\n".join([f"{self.path}: {counted(self.explanation)}.", *(f"• {each}" for each in self.sentences)])

    @property
    def sentences(self) -> list[str]:
        """What to know about it."""
        said = []
        if self.max_logit_difference is not None:
            said.append(f"Loaded again, its logits differ by at most {self.max_logit_difference:.2g} from ours.")
        if self.approximated:
            said.append(f"Approximating changes logits by at most {self.approximation:.2g}.")
        if self.loss_change is not None:
            said.append(f"Approximating changes the loss on the text by {self.loss_change:+.4f} nats.")
        reasons = Counter(part.reason for part in self.refused)
        said += [f"Left out for {number:,} of its parts: {reason}." for reason, number in reasons.items()]
        return [*said, *self.notes]

    def show(self) -> None:
        """Print it."""
        print(self.summary())

    def _repr_html_(self) -> str:
        from undilute.report import notebook

        return notebook.fragment(self.summary(), rows(self.explanation))


def counted(explanation: Explanation) -> str:
    """How many parts are exact, approximate, and impossible.

    Examples
    --------
    >>> counted(Explanation((Part(0, 0, "logits", "temperature", "exact", "W_Q"),), (), None, 8192))
    '1 part exact'
    """
    words: dict[Verdict, str] = {"exact": "exact", "approximate": "approximate", "cannot": "left out"}
    found = Counter(part.verdict for part in explanation.parts)
    said = [f"{found[each]:,} part{'s' * (found[each] > 1)} {words[each]}" for each in words if found[each]]
    return ", ".join(said) or "nothing to do"


def rows(explanation: Explanation) -> list[dict[str, Any]]:
    """One row for each rule, verdict and reason: how many heads, where it goes, and the largest error."""
    found: dict[tuple[str, str, str, str], list[Part]] = {}
    for part in explanation.parts:
        form = part.rule.split("(")[0].split(" ")[0]
        found.setdefault((form, part.verdict, part.way, part.reason), []).append(part)
    return [
        {
            "rule": form,
            "heads": len(parts),
            "verdict": verdict,
            "goes into": way or "—",
            "error of the factor": f"{max(part.error for part in parts):.2g}" if verdict != "cannot" else "—",
            "why": reason,
        }
        for (form, verdict, way, reason), parts in found.items()
    ]
