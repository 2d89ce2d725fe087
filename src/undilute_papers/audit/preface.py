"""What a reader must know before reading a verdict."""

from __future__ import annotations

PREFACE = (
    "Three documents were audited: a blog article on attention dilution, version 1 of “Limitations of Normalization in "
    "Attention Mechanism” (arXiv:2508.17821v1), and a summary of “Softmax is not Enough (for Sharp Size "
    "Generalisation)” (arXiv:2410.01104), not that paper itself. Later versions exist or may appear and may differ; a "
    "verdict is about the text named beside it and about nothing else.",
    "The main message of all three stands. If the logits stay within a range that does not grow with the context, "
    "then every softmax weight lies between 1/(1 + (n−1)e^(δ/T)) and 1/(1 + (n−1)e^(−δ/T)), so it is of order 1/n, "
    "and the entropy is within min(δ/T, (δ/T)²/8) of its maximum (C1, B1, B2, A6). What does not stand is mostly what "
    "was built on top of it: that weights become uniform (they need not, C2), that no relevance helps (a gap of order "
    "log n does, A2), several constants (B4, B9, B13), and a table (A4). And the hypotheses matter: rules that may "
    "give a weight of exactly 0 escape the lemma (U1 to U4), and one of them is sparse, "
    "length-adaptive and gradient-stable at once (U5 to U8).",
    "“Conditional” means true under a condition that the text leaves out or states otherwise. “Unverified” means a "
    "claim about the world, such as a measured accuracy, that cannot be checked here; what follows from it is. A "
    "misprint counts as false: the formula as printed fails, whatever its authors meant. Finding such things is what "
    "reading closely does to any text, ours included, and takes nothing from the authors, on whose work this library "
    "is built.",
    "Every verdict is recomputed each time from a seed: counterexamples must violate the printed form, corrected forms "
    "must survive random and adversarial cases and exact oracles, quoted numbers must come out to the digits given.",
)
