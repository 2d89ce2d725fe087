"""Undilute: measure, explain and undo attention dilution.

>>> import torch, undilute as ud
>>> q, k, v = torch.randn(3, 1, 8, 16, 64).unbind()
>>> ud.attention(q, k, v, rule="entmax15", is_causal=True).shape
torch.Size([1, 8, 16, 64])
"""

import undilute.interrupts  # noqa: F401  # first, since torch takes a second to import  # isort: split
from undilute import (
    evaluation,
    exporting,
    integrations,
    losses,
    measures,
    models,
    nn,
    rules,
    selection,
    structures,
    theory,
    treatment,
    tuning,
)
from undilute.diagnosis import Diagnosis, diagnose
from undilute.engine.api import attention, explain
from undilute.engine.budget import set_memory_budget
from undilute.errors import InvalidTensor, InvalidValue, MissingExtra, UndiluteError, UnknownName
from undilute.evaluation import Evaluation, compare, evaluate
from undilute.exporting import export
from undilute.models import capture, watch
from undilute.models.implementations import register_with_transformers
from undilute.selection import Library, Reply, Selection, ask, reading, select
from undilute.treatment import Plan, apply, calibrate
from undilute.treatment.saved import keep_rules
from undilute.tuning import tune

register_with_transformers(keep_rules)
__version__ = "0.1.0"

__all__ = [
    "Diagnosis",
    "Evaluation",
    "InvalidTensor",
    "InvalidValue",
    "Library",
    "MissingExtra",
    "Plan",
    "Reply",
    "Selection",
    "UndiluteError",
    "UnknownName",
    "apply",
    "ask",
    "attention",
    "calibrate",
    "capture",
    "compare",
    "diagnose",
    "evaluate",
    "evaluation",
    "explain",
    "export",
    "exporting",
    "integrations",
    "losses",
    "measures",
    "models",
    "nn",
    "reading",
    "rules",
    "select",
    "selection",
    "set_memory_budget",
    "structures",
    "theory",
    "treatment",
    "tune",
    "tuning",
    "watch",
]
