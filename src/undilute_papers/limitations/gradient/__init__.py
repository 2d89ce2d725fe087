"""Gradient: how far do attention weights move when the logits move a little?"""

from undilute_papers.limitations.gradient.gradient import Gradient

__all__ = ["Gradient"]
