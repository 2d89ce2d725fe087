"""Let a cure leave this library: what folds into weights, what a configuration can say, and what cannot.

export     a folder or a GGUF file, compared with the treated model before it is put in its place
explain    exact, approximate or impossible, head by head
factors    what a plan multiplies
curves     which constant, and which curve of the length
layouts    where in a model's weights a head is
"""

from undilute.exporting.explain import explain
from undilute.exporting.export import export
from undilute.exporting.factors import Explanation, Factors, Part
from undilute.exporting.result import Exported

__all__ = ["Explanation", "Exported", "Factors", "Part", "explain", "export"]
