"""What should a model read?  Only the passages that matter for the question.

passages    documents in pieces that know their place; structure: where a text may be cut
scorers     who says which passages matter, one file for each
finding     the retrieval heads of a model, found once
select      the passages that fit into a budget
result      what was selected, and ways to look at it
keeping     work on passages that is kept for further questions
library     documents that are asked about more than once
forms       how a question is put after a text, or in a chat
answering   the answer from what was selected, and from everything
reading     a treatment of what a model reads: long prompts are selected before generation
judging     questions about hidden facts, answered after what each reader gave the model
comparison  which reader answers best, and at what cost
"""

from undilute.selection.answering import Choice, Full, Reply, ask
from undilute.selection.comparison import Comparison, compare_readers
from undilute.selection.finding import RetrievalHeads, retrieval_heads
from undilute.selection.library import Library
from undilute.selection.passages import Passage, split
from undilute.selection.reading import Reading, reading
from undilute.selection.result import Selected, Selection
from undilute.selection.scorers import Scorer, Scores, Subject, scorer
from undilute.selection.select import select, select_each

__all__ = [
    "Choice",
    "Comparison",
    "Full",
    "Library",
    "Passage",
    "Reading",
    "Reply",
    "RetrievalHeads",
    "Scorer",
    "Scores",
    "Selected",
    "Selection",
    "Subject",
    "ask",
    "compare_readers",
    "reading",
    "retrieval_heads",
    "scorer",
    "select",
    "select_each",
    "split",
]
