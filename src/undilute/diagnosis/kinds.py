"""What kind of head is it?  Five kinds, and every threshold that decides between them.

Short rows are the sampled rows in the first octave of n, long rows those in the last. Shares and top weights leave the
sink out, except the sink's own share; γ is the exponent from the measured length to the target. The first line that
holds decides:

| kind     | holds when                                                                                            |
|----------|-------------------------------------------------------------------------------------------------------|
| sink     | half or more of the attention of long rows is parked on the first token(s): the head idles            |
| local    | three quarters or more of long rows' attention goes to the last keys (64), and n is 4 times as large  |
| diffuse  | short rows look at half or more of what they see, and long rows still at a quarter: it averages        |
| diluting | the top weight falls with exponent γ ≥ 0.25, its interval above 0.1                                   |
| sharp    | none of these: its top weight falls slowly or not at all                                              |

A head that looks at another text, as a decoder's looks at its encoder's, has no last keys, so it is never local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["sink", "local", "diffuse", "diluting", "sharp"]
KINDS: tuple[Kind, ...] = ("diluting", "sharp", "local", "sink", "diffuse")
MEANINGS: dict[Kind, str] = {
    "diluting": "its top weight falls as the context grows",
    "sharp": "its top weight falls slowly or not at all",
    "local": "looks at the last few tokens",
    "sink": "idle: parks its attention on the first token",
    "diffuse": "averages over what it sees, by design",
}


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
    """

    sink_share: float = 0.5
    recent_share: float = 0.75
    recent_room: float = 4.0
    diffuse_short: float = 0.5
    diffuse_long: float = 0.25
    gamma: float = 0.25
    gamma_low: float = 0.1


@dataclass(frozen=True)
class Evidence:
    """What the decision looks at, of one head.

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
    """Which of the five kinds a head is.

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
