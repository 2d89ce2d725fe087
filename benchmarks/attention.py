"""``make bench``: how much does each rule cost beside torch's own attention, in one run on this machine?

Best of five for each, forward and forward + backward, causal, 8 heads, 64 features, float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import undilute as ud


def best_of(times: int, run: Callable[[], object]) -> float:
    run()
    elapsed = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        elapsed.append(time.perf_counter() - start)
    return min(elapsed)


def measure(attend: Callable[..., torch.Tensor], n: int) -> tuple[float, float]:
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 8, n, 64).unbind())

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return attend(q, k, v, is_causal=True)

    return best_of(5, forward), best_of(5, lambda: attend(q, k, v, is_causal=True).sum().backward())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024])
    lengths = parser.parse_args().lengths
    table = Table(title="time / time of F.scaled_dot_product_attention in the same run")
    table.add_column("rule")
    for n in lengths:
        table.add_column(f"n = {n:,} forward", justify="right")
        table.add_column("+ backward", justify="right")
    torch_times = {n: measure(F.scaled_dot_product_attention, n) for n in lengths}
    for name in ud.rules.names():
        cells = []
        for n in lengths:
            times = measure(lambda *t, name=name, **o: ud.attention(*t, rule=name, **o), n)
            cells += [f"{ours / theirs:.1f}×" for ours, theirs in zip(times, torch_times[n], strict=True)]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
