"""Gradient: how far do attention weights move when the logits move a little?"""

from undilute.experiments.gradient.gradient import Gradient

__all__ = ["Gradient"]
