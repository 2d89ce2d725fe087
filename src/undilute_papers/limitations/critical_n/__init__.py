"""Critical N: from which N on is the top-N distance like that of a random selection?"""

from undilute_papers.limitations.critical_n.critical_n import CriticalN

__all__ = ["CriticalN"]
