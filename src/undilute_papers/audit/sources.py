"""The documents that were audited, and which version of each: later versions may differ."""

from __future__ import annotations

from undilute_papers.audit.statement import Source

BLOG = Source(
    title="Softmax Attention and the Dilution Problem: The Math Behind Context Rot",
    authors="ByteBell, a blog article",
    version="text as fetched for this project",
    url="",
)
LIMITS = Source(
    title="Limitations of Normalization in Attention Mechanism",
    authors="Mudarisov, Burtsev, Petrova and State",
    version="arXiv v1",
    url="https://arxiv.org/abs/2508.17821v1",
)
SHARP = Source(
    title="Softmax is not Enough (for Sharp Size Generalisation)",
    authors="Veličković, Perivolaropoulos, Barbero and Pascanu",
    version="a summary of the ICML 2025 version, not the paper itself",
    url="https://arxiv.org/abs/2410.01104",
)
UNDILUTE = Source(title="Undilute", authors="this project", version="this release", url="")
