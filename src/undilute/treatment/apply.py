"""How does a model get another rule?"""

from undilute.treatment.kinds.rules import Treated, Treatment, apply, planned

__all__ = ["Treated", "Treatment", "apply", "planned"]
