"""Separability: how many of the tokens that a head selects fit into a ball that leaves the others out?"""

from undilute.experiments.separability.separability import Separability

__all__ = ["Separability"]
