"""How does ``docs/architectures.md`` print the table?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.models.zoo import ZOO
from tests.models.zoo.architecture import (
    AUDIO,
    BOTH,
    CAUSAL,
    ENCODER,
    HYBRID,
    JOBS,
    KINDS,
    NONE,
    OWN,
    SHARED,
    VISION,
    YES,
    Architecture,
)

TITLES = {
    CAUSAL: "Causal models of text",
    HYBRID: "Hybrids, which attend in some layers only",
    ENCODER: "Encoders of text",
    SHARED: "Shared layers",
    BOTH: "Encoder and decoder",
    VISION: "Encoders of images",
    AUDIO: "Encoders of sound",
    OWN: "Attention code of their own",
    NONE: "No attention",
}
CHECKED = {
    "implementation": '`attn_implementation="undilute:softmax"` equals "sdpa" and "eager", `"undilute:ssmax"` differs; '
    "the last token changes nothing before it",
    "apply": "`ud.apply` treats some heads, and afterwards nothing is left of it, bit for bit; a rule for each head is "
    "the rule by name; the last token changes nothing before it",
    "capture": '`ud.capture` measures the weights that "eager" returns, in the right layers and rows, padded or not; '
    "the output stays the same",
    "diagnose": "`ud.diagnose` has a verdict for each head",
    "cache": "a text read in pieces, with a cache and under a rule, gives what one pass gives",
    "padding": "a padded text, under a rule that depends on n, gives what the text alone gives",
}
OPENING = """\
# Which architectures work, and for what?

<!-- made by `make docs` from tests/models/zoo -->

Each line is a class of transformers {version}. The test suite builds it with tiny random weights and compares it with
transformers' own attention (`tests/models/test_zoo.py`). Of {all} architectures {implementation} take a rule by name
and {apply} by `ud.apply`; {capture} can be captured and {diagnose} diagnosed.

{columns}

**yes**: checked. **refused**: one sentence says why, and nothing is changed. **—**: not checked, because
there is no such thing (a cache of an encoder, a rule that is refused) or no test for it (padding of sounds).
"""


def markdown(version: str) -> str:
    """The whole page, for this version of transformers."""
    counts = Counter(job for each in ZOO.values() for job in JOBS if each.outcome(job) == YES)
    columns = _table("column", ["what is checked"], (_row(job, [CHECKED[job]]) for job in JOBS))
    opening = OPENING.format(version=version, all=len(ZOO), columns=columns, **counts)
    return "\n".join([opening, *map(_section, KINDS)])


def _section(kind: str) -> str:
    chosen = sorted((each for each in ZOO.values() if each.kind == kind), key=lambda each: each.model.lower())
    notes = [f"\n`{each.model}`: {each.note}." for each in chosen if each.note]
    return "\n".join([f"## {TITLES[kind]}\n", _table("architecture", JOBS, map(_line, chosen)), *notes, ""])


def _table(first: str, others: Sequence[str], lines: Iterable[str]) -> str:
    return "\n".join([_row(first, others), _row("---", ["---"] * len(others)), *lines])


def _line(architecture: Architecture) -> str:
    return _row(f"`{architecture.model}`", map(architecture.outcome, JOBS))


def _row(first: str, others: Iterable[str]) -> str:
    return f"| {' | '.join([first, *others])} |"
