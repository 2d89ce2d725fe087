"""Did it help?  Loss by position, needle recall, entropy, speed and memory: before, after, and the difference.

evaluate    a model before and after treatment, in pairs; one treatment or several
measure     what is read and asked, and one measurement of one model
haystacks   needles in the user's text, and where they stand
tasks       what is asked, one file for each task
cost        time and memory, in turns
changes     better, worse, or not clear
sentences   what the figures say
result      all the results, and ways to read and save them
"""

from undilute.evaluation.changes import Change, change, changes
from undilute.evaluation.evaluate import compare, evaluate
from undilute.evaluation.haystacks import Haystack, Question, Span, haystacks
from undilute.evaluation.measure import Answer, Material, Measurement, measure, prepare
from undilute.evaluation.result import Evaluation
from undilute.evaluation.sentences import figures, findings
from undilute.evaluation.tasks import Asked, in_random_order, task

__all__ = [
    "Answer",
    "Asked",
    "Change",
    "Evaluation",
    "Haystack",
    "Material",
    "Measurement",
    "Question",
    "Span",
    "change",
    "changes",
    "compare",
    "evaluate",
    "figures",
    "findings",
    "haystacks",
    "in_random_order",
    "measure",
    "prepare",
    "task",
]
