"""Change the rule of a real model, fit it to the user's text, and measure whether it helped.

patterns      which heads?
plan          which rule for each of them, as data
apply         in place, undone on exit
calibration   parameters from the model's own rows, without training
evaluation    loss by position, needle recall, entropy, speed: before and after
"""

from undilute.treatment.apply import Treated, apply
from undilute.treatment.calibration.calibrate import calibrate
from undilute.treatment.plan import Assignment, Plan

__all__ = ["Assignment", "Plan", "Treated", "apply", "calibrate"]
