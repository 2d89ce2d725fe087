"""Separability: how many of the tokens that a head selects fit into a ball that leaves the others out?"""

from undilute_papers.limitations.separability.separability import Separability

__all__ = ["Separability"]
