"""Treat a real model: give its heads other rules, fit them to the user's text, and put everything back again.

apply         any treatment, in place and undone on exit; what a treatment is
kinds         the kinds of treatments, one file each
patterns      which heads?
plan          which rule for each of them, as data
saved, loaded next to the weights, and back again
calibration   parameters from the model's own rows, without training
"""

from undilute.treatment.apply import InForce, Treatment, apply, get, kind
from undilute.treatment.calibration.calibrate import calibrate
from undilute.treatment.kinds.rules import Treated
from undilute.treatment.loaded import in_force
from undilute.treatment.plan import Assignment, Plan

__all__ = ["Assignment", "InForce", "Plan", "Treated", "Treatment", "apply", "calibrate", "get", "in_force", "kind"]
