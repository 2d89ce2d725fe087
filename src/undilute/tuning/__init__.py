"""Learn a cure: one factor for each head's logits and one for its output, in minutes on a CPU.

tune       learn, choose, judge; a plan comes back with its record
knobs      what is learned: θ of each head, and what it means for each rule
samples    what is learned from: hidden facts, the user's own pairs, plain text
rows       a few rows after a text that was read once, with gradients
learning   the loop; survives a kill
frontier   loss on plain text against answers, and the choice
judging    on names, words, wordings and texts that nothing was learned from
"""

from undilute.tuning.frontier import Point
from undilute.tuning.judging import Judged, Judging, judge
from undilute.tuning.learning import Settings
from undilute.tuning.tune import at, tune

__all__ = ["Judged", "Judging", "Point", "Settings", "at", "judge", "tune"]
