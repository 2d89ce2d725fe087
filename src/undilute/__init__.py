"""Undilute: measure, explain and undo attention dilution.

>>> import torch, undilute as ud
>>> q, k, v = torch.randn(3, 1, 8, 16, 64).unbind()
>>> ud.attention(q, k, v, rule="entmax15", is_causal=True).shape
torch.Size([1, 8, 16, 64])
"""

from undilute import losses, measures, nn, rules, structures, theory
from undilute.engine.api import attention, explain
from undilute.engine.budget import set_memory_budget
from undilute.errors import InvalidTensor, InvalidValue, MissingExtra, UndiluteError, UnknownName

__version__ = "0.1.0"

__all__ = [
    "InvalidTensor",
    "InvalidValue",
    "MissingExtra",
    "UndiluteError",
    "UnknownName",
    "attention",
    "explain",
    "losses",
    "measures",
    "nn",
    "rules",
    "set_memory_budget",
    "structures",
    "theory",
]
