"""What kind of head is it?  Six kinds, and every threshold that decides between them.

Short rows are the sampled rows in the first octave of n, long rows those in the last. Shares and top weights leave the
sink out, except the sink's own share; γ is the exponent from the measured length to the target. The first line that
holds decides:

| kind      | holds when                                                                                           |
|-----------|------------------------------------------------------------------------------------------------------|
| retrieval | asked for a fact, the head looks for it: its contrastive score is 3 times chance or more, and above  |
|           | chance by two standard errors (``undilute.diagnosis.probe``)                                         |
| sink      | half or more of the attention of long rows is parked on the first token(s)                           |
| local     | three quarters or more of long rows' attention goes to the last keys (64), and n is 4 times as large |
| diffuse   | short rows look at half or more of what they see, and long rows still at a quarter: it averages      |
| diluting  | the top weight falls with exponent γ ≥ 0.25, its interval above 0.1                                  |
| sharp     | none of these: its top weight falls slowly or not at all                                             |

All but the first are about plain text. There, most heads that find facts rest on the sink: nobody asks them anything. A
head that looks at another text, as a decoder's looks at its encoder's, has no last keys, so it is never local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["retrieval", "diluting", "sharp", "local", "sink", "diffuse"]
KINDS: tuple[Kind, ...] = ("retrieval", "diluting", "sharp", "local", "sink", "diffuse")
MEANINGS: dict[Kind, str] = {
    "retrieval": "finds what is asked for",
    "diluting": "its top weight falls as the context grows",
    "sharp": "its top weight falls slowly or not at all",
    "local": "looks at the last few tokens",
    "sink": "idle on plain text: parks its attention on the first token",
    "diffuse": "averages over what it sees, by design",
}
STEADY = 2 / 3  # the share of windows in which a head must be of its kind to count in a headline


@dataclass(frozen=True)
class Thresholds:
    """Where one kind ends and the next begins.

    Attributes
    ----------
    sink_share : of long rows, from which a head idles
    recent_share : of long rows, from which a head is local
    recent_room : how many times the recent keys long rows must see, or "local" says nothing
    diffuse_short, diffuse_long : n_eff / n of short and long rows, from which a head averages
    gamma, gamma_low : dilution exponent and lower end of its interval, from which a head dilutes
    found : contrastive score as a multiple of chance, from which a head finds what is asked for
    found_in_one : the same in a single haystack, for the share of haystacks in which it does
    errors : standard errors by which the score must exceed chance
    """

    sink_share: float = 0.5
    recent_share: float = 0.75
    recent_room: float = 4.0
    diffuse_short: float = 0.5
    diffuse_long: float = 0.25
    gamma: float = 0.25
    gamma_low: float = 0.1
    found: float = 3.0
    found_in_one: float = 2.0
    errors: float = 2.0


@dataclass(frozen=True)
class Evidence:
    """What the decision looks at, of one head on plain text.

    Attributes
    ----------
    sink_share : median of long rows
    recent_share : median of long rows, sink left out; NaN where the keys are another text's
    room : keys that long rows see, as a multiple of the recent ones
    effective_short, effective_long : median n_eff / n, sink left out
    gamma, gamma_low : the dilution exponent and the lower end of its interval
    """

    sink_share: float
    recent_share: float
    room: float
    effective_short: float
    effective_long: float
    gamma: float
    gamma_low: float


def kind(head: Evidence, thresholds: Thresholds | None = None) -> Kind:
    """Which of the five kinds a head is on plain text.

    Examples
    --------
    >>> kind(Evidence(0.0, 0.1, 32.0, 0.1, 0.02, gamma=0.9, gamma_low=0.8))
    'diluting'
    """
    limit = thresholds or Thresholds()
    if head.sink_share >= limit.sink_share:
        return "sink"
    if head.recent_share >= limit.recent_share and head.room >= limit.recent_room:
        return "local"
    if head.effective_short >= limit.diffuse_short and head.effective_long >= limit.diffuse_long:
        return "diffuse"
    if head.gamma >= limit.gamma and head.gamma_low > limit.gamma_low:
        return "diluting"
    return "sharp"


def is_found(score: float, error: float, chance: float, thresholds: Thresholds | None = None) -> bool:
    """Whether a head finds what is asked for, by its contrastive score and that score's standard error.

    Examples
    --------
    >>> is_found(0.4, 0.1, 0.08), is_found(0.4, 0.2, 0.08), is_found(0.2, 0.01, 0.08)
    (True, False, False)
    """
    limit = thresholds or Thresholds()
    return score >= limit.found * chance and score - limit.errors * error > chance
