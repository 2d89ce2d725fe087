"""Length generalisation: does a small transformer that learned to copy and recall at 64 tokens still do so at 4,096?"""

from undilute_papers.length_generalisation.length_generalisation import LengthGeneralisation

__all__ = ["LengthGeneralisation"]
