"""Max retrieval: can a head that learned to find the largest of 16 items find it among 16,384?"""

from undilute_papers.sharpness.max_retrieval.max_retrieval import MaxRetrieval

__all__ = ["MaxRetrieval"]
