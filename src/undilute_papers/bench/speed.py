"""What does each rule cost compared with torch's own attention?  Ratios of time and memory, measured in one run.

Every figure is the best of several, and interleaved: one round of everything, then the next, so that a slow moment of
the machine does not hit one rule alone. Ratio 1 is ``F.scaled_dot_product_attention`` on the same tensors.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from undilute.engine.api import attention, explain
from undilute.errors import InvalidValue
from undilute.evaluation.cost import extra_memory
from undilute.rules.base import Rule
from undilute.rules.parameters import whole

Attend = Callable[..., Tensor]
SPREADS = {"normal": 1.0, "diffuse": 0.3, "sharp": 3.0}


@dataclass(frozen=True)
class Setting:
    """One situation to measure."""

    n: int
    queries: int
    causal: bool
    backward: bool
    spread: str


@dataclass(frozen=True)
class Figure:
    """One measured ratio."""

    what: str
    route: str
    n: int
    queries: int
    causal: bool
    backward: bool
    spread: str
    seconds: float
    ratio: float
    extra_megabytes: float | None
    sdpa_extra_megabytes: float | None


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def settings(lengths: Sequence[int], spreads: Sequence[str], backward: bool, decode: int) -> list[Setting]:
    """Every situation: lengths × full and causal × forward and with backward × spreads, and one decoding step."""
    if unknown := set(spreads) - set(SPREADS):
        raise InvalidValue(f"spread {sorted(unknown)}: must be among {', '.join(SPREADS)}.")
    whole("--decode", decode, 0)
    passes = (False, True) if backward else (False,)
    made = [
        Setting(n, n, causal, back, spread)
        for spread in spreads
        for n in lengths
        for back in passes
        for causal in (False, True)
    ]
    return made + ([Setting(decode, 1, False, False, "normal")] if decode else [])


def measure(
    setting: Setting,
    rules: dict[str, Rule],
    *,
    heads: int = 8,
    features: int = 64,
    repeat: int = 5,
    dense: int = 4096,
    seed: int = 0,
) -> Iterator[Figure]:
    """Ratios of every rule in one situation; up to ``dense`` keys also of dense code and of the entmax package."""
    torch.manual_seed(seed)
    q = torch.randn(1, heads, setting.queries, features) * SPREADS[setting.spread]
    k, v = torch.randn(2, 1, heads, setting.n, features).unbind()
    inputs = [t.requires_grad_(setting.backward) for t in (q, k, v)]
    upstream = torch.randn(1, heads, setting.queries, features)
    contenders: dict[str, Attend] = {"sdpa": F.scaled_dot_product_attention, **_contenders(setting, rules, dense)}

    def once(attend: Attend) -> float:
        start = time.perf_counter()
        with torch.set_grad_enabled(setting.backward):
            out = attend(*inputs, is_causal=setting.causal)
            if setting.backward:
                out.backward(upstream)
        elapsed = time.perf_counter() - start
        for t in inputs:
            t.grad = None
        return elapsed

    best = dict.fromkeys(contenders, float("inf"))
    for attend in contenders.values():  # compile, allocate, warm the caches
        once(attend)
    for _ in range(repeat if setting.queries > 1 else 5 * repeat):  # a step of decoding is short: more of them
        for name, attend in contenders.items():
            best[name] = min(best[name], once(attend))
    memory = {name: extra_memory(partial(once, attend)) for name, attend in contenders.items()}
    for name in contenders:
        if name == "sdpa":
            continue
        route = explain(q, k, v, is_causal=setting.causal, rule=rules[name]).name if name in rules else "dense"
        yield Figure(
            what=name,
            route=route,
            n=setting.n,
            queries=setting.queries,
            causal=setting.causal,
            backward=setting.backward,
            spread=setting.spread,
            seconds=best[name],
            ratio=best[name] / best["sdpa"],
            extra_megabytes=memory[name],
            sdpa_extra_megabytes=memory["sdpa"],
        )


def _contenders(setting: Setting, rules: dict[str, Rule], dense: int) -> dict[str, Attend]:
    made: dict[str, Attend] = {name: partial(attention, rule=rule) for name, rule in rules.items()}
    if setting.n <= dense and setting.spread == "normal":
        made["dense softmax"] = _dense(lambda z: z.softmax(-1))
        try:
            from entmax import entmax15
        except ImportError:
            return made
        made["entmax package"] = _dense(lambda z: entmax15(z, dim=-1))
    return made


def _dense(weigh: Callable[[Tensor], Tensor]) -> Attend:
    """Attention as users write it by hand: all logits at once."""

    def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if is_causal:
            hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(hidden, -1e9)
        return weigh(logits) @ v

    return attend
