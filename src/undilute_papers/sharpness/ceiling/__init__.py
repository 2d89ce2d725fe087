"""Ceiling: what keeps one head that learned on sets of 16 from finding the largest of 16,384 items?"""

from undilute_papers.sharpness.ceiling.ceiling import Ceiling

__all__ = ["Ceiling"]
