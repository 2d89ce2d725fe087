"""What was printed about max retrieval: accuracy in %, softmax and adaptive temperature on the same weights.

arXiv:2410.01104, as quoted in the summary that Undilute starts from; the sizes in ``SECONDARY`` come from another
secondary copy. The paper trained for 100,000 steps.
"""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """One printed column: accuracies in % and the p-value of the paired t-test, where one was quoted."""

    softmax: float
    adaptive: float
    p_value: float | None = None


TABLE = {
    16: Printed(98.6, 98.6, 0.4),
    64: Printed(94.3, 94.5, 0.002),
    256: Printed(81.3, 82.1, 2e-4),
    1024: Printed(53.8, 57.7, 1e-4),
    4096: Printed(22.6, 24.9, 0.02),
    16384: Printed(12.4, 14.0, 4e-3),
}
SECONDARY = {128: Printed(89.7, 89.9), 512: Printed(70.1, 72.5), 2048: Printed(35.7, 39.4)}
PRINTED = dict(sorted({**TABLE, **SECONDARY}.items()))
