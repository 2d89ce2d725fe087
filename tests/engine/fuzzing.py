"""Does every route give what the reference gives, whatever it is called with?  Calls drawn at random, by the thousand.

A :class:`Case` is one call, as data: rule, shapes, dtype, how each tensor lies in memory, masks, numbers. ``check``
runs it on every route that accepts it, and on the one that would be chosen if every call were large, against the
reference in float64; it asserts which route ran, and compares outputs, entropies and gradients. Hypothesis draws the
cases and shrinks what fails.

    make fuzz                                          # for ever, or SECONDS=3600 SEED=7
    python -m tests.engine.fuzzing --seconds 60        # the same
    python -c "from tests.engine.fuzzing import *; check(Case(...))"      # what it printed
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

import undilute as ud
from tests.cases import RULES
from tests.engine.ran import only
from undilute.engine import scaling, supports
from undilute.engine.api import attention
from undilute.engine.call import Call, prepare
from undilute.engine.kernels import flash as flash_kernel
from undilute.engine.routes import choose as routing
from undilute.engine.routes import flash, rows
from undilute.errors import InvalidValue
from undilute.rules import Entmax, Focus, Hard, Rule, SelfAdjusted, Sigmoid, Softpick, TopK
from undilute.rules.base import softmax_form
from undilute.rules.masked import working_dtype

SMALL_BLOCKS = {
    (supports, "ROWS"): 5,
    (supports, "TILE"): 7,
    (supports, "ROOM"): 3,
    (flash_kernel, "MASKED_ROWS"): 6,
    (flash, "PART"): 1,
    (rows, "FAST_LOGITS"): 1,
    (rows, "FAST_ROWS"): 5,
    (rows, "TEMPORARIES"): 2**14,
}
EXTREME = ("large", "huge", "some infinite")  # where dtypes and gradients go apart, and rightly
KINKED = (TopK, Hard, Focus, Softpick, Entmax, SelfAdjusted)  # where logits tie, rounding decides which slope they have


# ---------------------------------------------------------------- how a tensor lies in memory

Layout = Callable[[Tensor], Tensor]
LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.clone(memory_format=torch.contiguous_format).mT,
    "heads last": lambda t: t if t.dim() < 3 else t.transpose(-3, -2).clone().transpose(-3, -2),
    "every other feature": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "every other row": lambda t: t.repeat_interleave(2, -2)[..., ::2, :],
    "inside a larger one": lambda t: torch.nn.functional.pad(t, (3, 2, 1, 1))[..., 1:-1, 3:-2],
    "offset by one": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
    "one feature, expanded": lambda t: t[..., :1].expand(t.shape),
    "one row, expanded": lambda t: t[..., :1, :].expand(t.shape),
    "one head, expanded": lambda t: t if t.dim() < 3 else t[..., :1, :, :].expand(t.shape),
    "one number, expanded": lambda t: t[..., :1, :1].expand(t.shape),
    "rows that overlap": lambda t: _overlapping(t),
    "odd strides": lambda t: _odd_strides(t),
}


def _overlapping(t: Tensor) -> Tensor:
    """Each row begins one number after the one before it."""
    flat = t.flatten()
    *lead, length, features = t.shape
    each = length + features - 1
    needed = math.prod(lead) * each
    flat = flat.repeat(-(-max(1, needed) // max(1, flat.numel())) if flat.numel() else 1)
    strides = [math.prod(lead[i + 1 :]) * each for i in range(len(lead))]
    return flat.as_strided(t.shape, (*strides, 1, 1)) if t.numel() else t


def _odd_strides(t: Tensor) -> Tensor:
    """Dimensions of size 1 may have any stride, and nobody may rely on it."""
    strides = [7919 if size == 1 else stride for size, stride in zip(t.shape, t.contiguous().stride(), strict=True)]
    return t.contiguous().as_strided(t.shape, strides)


# ---------------------------------------------------------------- one call, as data


@dataclass(frozen=True)
class Case:
    """One call. The defaults are the simplest: what a failing case is shrunk towards."""

    rule: str = "softmax"
    dtype: str = "float64"
    batch: tuple[int, ...] = ()
    has_heads: bool = True
    kv_heads: int = 1
    groups: int = 1
    length: int = 1
    keys: int = 1
    features: int = 1
    width: int = 1
    numbers: str = "normal"
    layouts: tuple[str, str, str] = ("contiguous", "contiguous", "contiguous")
    mask: str = "none"
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    n: str = "seen"
    key_offset: int = 0
    asks_lse: bool = False
    asks_entropy: bool = True
    upstream: str = "random"
    small_blocks: bool = True
    threads: int = 1
    seed: int = 0

    @property
    def made(self) -> Rule:
        return CASES[self.rule]

    @property
    def is_tied(self) -> bool:
        """Are logits equal, or 0, that rounding would make slightly different?"""
        return self.numbers in ("ties", "zeros", "one key repeated") or "expanded" in self.layouts[1]

    @property
    def is_extreme(self) -> bool:
        """Are its numbers, or what its rule makes of them, at the end of what the dtype holds?"""
        return self.numbers in EXTREME or self.rule == "frozen"


CASES: dict[str, Rule] = {
    **RULES,
    "ssmax falling": ud.rules.get("ssmax", s=-0.5, b=0.2),
    "cold": ud.rules.get("temperature", T=1e-3),
    "hot": ud.rules.get("temperature", T=1e6),
    "frozen": ud.rules.get("temperature", T=1e-30),
    "one-hot entmax": ud.rules.get("entmax", alpha=1.5),
    "adaptive entmax": Rule(ud.rules.EntropyAdaptive(), Entmax(1.5)),
    "adaptive sigmoid": Rule(ud.rules.EntropyAdaptive(), Sigmoid()),
}
NUMBERS = ("normal", "close", "sharp", "large", "ties", "zeros", "one key repeated", "huge", "some infinite")
NUMBERS += ("hidden NaN",)
MASKS = ("none", "causal", "lower right", "boolean", "keys", "per head", "transposed", "no number", "rows see nothing")
MASKS += ("nothing", "added", "added, some hidden", "added and learned", "lowest")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any call at all."""
    few = st.integers(1, 9)
    has_heads = draw(st.booleans())
    batch = draw(st.sampled_from([(), (1,), (2,), (2, 3), (0,)])) if has_heads else ()
    some = st.integers(1, 20)
    if not batch:
        some = st.one_of(some, st.sampled_from([1, 8, 9, 31, 63, 64, 65, 129]))
    name = draw(st.sampled_from(sorted(CASES)))
    jumps = not CASES[name].map.is_continuous  # only exact arithmetic tells what the weights are
    layout = st.sampled_from(sorted(LAYOUTS))
    of_keys = layout.filter(lambda each: "expanded" not in each and "overlap" not in each)  # a NaN stays where it is
    mask = draw(st.sampled_from(MASKS))
    exact = jumps and mask.startswith(("added", "lowest"))  # sums of what is scaled and what is not must not round
    numbers = "ties" if jumps else draw(st.sampled_from(NUMBERS))
    tellable, asks_entropy = CASES[name].deaf_part() is None, draw(st.booleans())
    features = st.sampled_from([1, 4, 16]) if exact else st.one_of(few, st.sampled_from([16, 64]))
    return Case(
        rule=name,
        dtype=draw(st.sampled_from(["float64", "float64", "float32", "bfloat16", "float16"])),
        batch=batch,
        has_heads=has_heads,
        kv_heads=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 3)) if has_heads else 1,
        length=draw(some),
        keys=draw(some),
        features=1 if numbers in ("large", "huge") else draw(features),  # a sum would round, and ties be lost
        width=draw(few),
        numbers=numbers,
        layouts=(draw(layout), draw(of_keys if numbers == "hidden NaN" else layout), draw(layout)),
        mask=mask,
        window=draw(st.one_of(st.none(), st.integers(1, 50))),
        scale=draw(st.sampled_from([None, 0.0, 0.5, -1.0, *([] if exact else [0.3, 1e-20, -7.0])])),
        softcap=None if jumps else draw(st.sampled_from([None, None, 0.5, 20.0])),  # tanh makes equal what was not
        n=draw(st.sampled_from(["seen", "seen", "number", "rows", "heads"])) if tellable else "seen",
        key_offset=draw(st.one_of(st.just(0), st.integers(-20, 20))),
        asks_lse=draw(st.booleans()) if softmax_form(CASES[name].map) is not None else False,
        asks_entropy=asks_entropy,
        upstream=draw(st.sampled_from(["random", "sum", "transposed", *(["entropy alone"] if asks_entropy else [])])),
        small_blocks=draw(st.booleans()),
        threads=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 2**20)),
    )


# ---------------------------------------------------------------- its tensors


@dataclass
class Inputs:
    """Leaves that gradients are taken for, and the call's arguments made of them."""

    leaves: list[Tensor]
    arguments: tuple[Tensor, Tensor, Tensor]
    options: dict[str, Any] = field(default_factory=dict)


def inputs(case: Case, dtype: torch.dtype) -> Inputs:
    """The tensors of a case: the same numbers whatever the dtype, which are those of the case's own."""
    draw, own = torch.Generator().manual_seed(case.seed), getattr(torch, case.dtype)
    heads = case.kv_heads if case.has_heads else 1
    shapes = [(heads * case.groups, case.length, case.features), (heads, case.keys, case.features)]
    shapes.append((heads, case.keys, case.width))
    shapes = [(*case.batch, *shape) if case.has_heads else shape[1:] for shape in shapes]
    mask = _mask(case, draw)
    numbers = [_numbers(case, shape, draw, is_value=i == 2).to(own) for i, shape in enumerate(shapes)]
    if case.numbers == "one key repeated":
        numbers[1] = numbers[1][..., :1, :].expand(numbers[1].shape).clone()
    if case.numbers == "hidden NaN":
        unseen = ~_seen(case, mask)
        numbers[1][..., unseen, :] = torch.nan
    leaves = [t.to(dtype).requires_grad_() for t in numbers]
    laid = tuple(LAYOUTS[name](t) for name, t in zip(case.layouts, leaves, strict=True))
    options: dict[str, Any] = {"enable_gqa": case.has_heads, "scale": case.scale, "sliding_window": case.window}
    options |= {"softcap": case.softcap, "n": _n(case, draw), "key_offset": case.key_offset}
    options |= {"return_lse": case.asks_lse, "return_entropy": case.asks_entropy}
    if case.mask == "causal":
        options["is_causal"] = True
    elif type(mask) is Tensor and mask.is_floating_point():
        bias = mask.to(own).to(dtype)
        if case.mask == "lowest":  # how Hugging Face hides a key: the lowest number of the dtype it is in
            bias = torch.where(bias == -torch.inf, torch.finfo(dtype).min, bias)
        if case.mask == "added and learned":
            leaves.append(bias.requires_grad_())
        options["attn_mask"] = bias
    elif mask is not None:
        options["attn_mask"] = mask
    return Inputs(leaves, laid, options)  # type: ignore[arg-type]


def _numbers(case: Case, shape: tuple[int, ...], draw: torch.Generator, is_value: bool) -> Tensor:
    plain = torch.randn(shape, generator=draw, dtype=torch.float64)
    if is_value:
        return plain
    match case.numbers:
        case "close":
            return plain * 0.01
        case "sharp":
            return plain * 4
        case "ties":
            return torch.randint(-2, 3, shape, generator=draw).double()
        case "zeros":
            return plain * 0
        case "large":  # finite, far apart and without rounding: where digits run out before numbers do
            power = torch.randint(2, 6 if case.dtype == "float16" else 29, (), generator=draw)
            return torch.randint(-2, 3, shape, generator=draw).double() * 2.0**power
        case "huge":
            return plain * {"float64": 1e150, "float16": 1e4}.get(case.dtype, 1e17)  # products do not overflow
        case "some infinite":
            return plain.masked_fill(torch.rand(shape, generator=draw) < 0.02, torch.inf)
    return plain


def _mask(case: Case, draw: torch.Generator) -> Any:
    """The mask of a case, a boolean one or float64."""
    shape = (case.length, case.keys)
    seen = torch.rand(shape, generator=draw) < 0.6
    bias = torch.randn(shape, generator=draw, dtype=torch.float64)
    if not case.made.map.is_continuous:
        bias = bias.round()
    lead = (*case.batch, case.kv_heads * case.groups) if case.has_heads else ()
    match case.mask:
        case "lower right":
            return causal_lower_right(*shape)
        case "boolean":
            return seen
        case "keys":
            return seen[0]
        case "per head":
            return torch.rand((*lead, *shape), generator=draw) < 0.6
        case "transposed":
            return seen.mT.contiguous().mT
        case "no number":
            return seen[0, 0]
        case "rows see nothing":
            return seen[:, :1].expand(shape)
        case "nothing":
            return torch.zeros(1, dtype=torch.bool)
        case "added" | "added and learned":
            return bias
        case "added, some hidden" | "lowest":
            return bias.masked_fill(~seen, -torch.inf).mT.contiguous().mT
    return None


def _n(case: Case, draw: torch.Generator) -> int | Tensor | None:
    """n as it is given, if it is."""
    heads = case.kv_heads * case.groups if case.has_heads else 1
    drawn = torch.randint(0, 100, (heads, case.length), generator=draw)
    match case.n:
        case "number":
            return int(drawn[0, 0]) + 1
        case "rows":
            return drawn[0]
        case "heads":
            return drawn if case.has_heads else drawn[0]
    return None


def _seen(case: Case, mask: Any) -> Tensor:
    """(keys,): which keys any row sees."""
    ahead = torch.arange(case.keys) - torch.arange(case.length)[:, None] + case.key_offset
    seen = torch.ones(ahead.shape, dtype=torch.bool)
    if case.mask == "lower right":
        ahead = ahead - (case.keys - case.length)
    if case.mask in ("causal", "lower right"):
        seen = ahead <= 0
    if case.window is not None:
        seen = seen & (ahead.abs() < case.window)
    if type(mask) is Tensor:
        shown = mask if mask.dtype == torch.bool else mask != -torch.inf
        seen = seen & shown
    return seen.reshape(-1, case.keys).any(0)


# ---------------------------------------------------------------- checking it


@contextmanager
def _surroundings(case: Case) -> Iterator[None]:
    """Blocks so small that the case crosses their borders, if it says so; every call counts as large."""
    threads = torch.get_num_threads()
    changed = [patch.object(routing, "SMALL", 0)]
    if case.small_blocks:
        changed += [patch.object(module, name, value) for (module, name), value in SMALL_BLOCKS.items()]
    for each in changed:
        each.start()
    torch.set_num_threads(case.threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for each in changed:
            each.stop()


def check(case: Case) -> list[str]:
    """Run a case on every route that accepts it; the names of those that ran. AssertionError if one is wrong."""
    with _surroundings(case):
        overflows = case.is_extreme  # in its own dtype
        wanted = _results(case, getattr(torch, case.dtype) if overflows else torch.float64, "reference")
        prepared = _prepared(case)
        ran = []
        for asked in (None, *routing.ROUTES):
            try:
                chosen = routing.choose(prepared, asked).name
            except InvalidValue:
                continue  # refused in a sentence
            if chosen in ran:  # by itself, and it would do the same again
                continue
            with only(chosen, overflows or case.numbers == "hidden NaN"):
                got = _results(case, getattr(torch, case.dtype), asked)
            _compare(case, asked or f"chosen: {chosen}", got, wanted)
            ran.append(chosen)
    return ran


def _prepared(case: Case) -> Call:
    given = inputs(case, getattr(torch, case.dtype))
    return prepare(*given.arguments, **given.options, rule=case.made)


def _results(case: Case, dtype: torch.dtype, route: str | None) -> dict[str, Tensor | None]:
    """Output, what else was asked for, and the gradients of all leaves."""
    given = inputs(case, dtype)
    made = attention(*given.arguments, **given.options, rule=case.made, route=route)
    out, *more = made if isinstance(made, tuple) else (made,)
    draw = torch.Generator().manual_seed(case.seed + 1)
    up = torch.randn(out.shape, generator=draw, dtype=torch.float64).to(getattr(torch, case.dtype)).to(dtype)
    beside = torch.zeros((), dtype=dtype)
    for each in more:
        finite = each.masked_fill(each == -torch.inf, 0.0)
        beside = beside + (finite * torch.randn(each.shape, generator=draw, dtype=torch.float64).to(each.dtype)).sum()
    objective = {
        "random": lambda: (out * up).sum() + beside * 0.1,
        "sum": lambda: out.sum(),
        "transposed": lambda: (out.mT.contiguous() * up.mT.contiguous()).mT.sum(),
        "entropy alone": lambda: more[-1].sum(),
    }[case.upstream]()
    gradients = torch.autograd.grad(objective, given.leaves, allow_unused=True)
    names = ("query", "key", "value", "bias")
    asked = [name for name, wanted in (("lse", case.asks_lse), ("entropy", case.asks_entropy)) if wanted]
    found = {"out": out.detach()} | {name: each.detach() for name, each in zip(asked, more, strict=True)}
    return found | {f"gradient of {name}": None if g is None else g for name, g in zip(names, gradients, strict=False)}


def _compare(case: Case, route: str, got: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> None:
    own = getattr(torch, case.dtype)
    steepness = _steepness(case)
    error = torch.finfo(working_dtype(own)).eps * 500 * steepness
    error += 5 * scaling.ROUNDING if case.is_extreme else 0.0
    tied = case.is_tied
    kinked = isinstance(case.made.map, KINKED)
    faint = own != torch.float64 or tied or case.is_extreme
    vanishes = faint and not case.made.sums_to_one  # every weight of a row, or all but its rounding
    asked_for = ("lse", "entropy")
    for name, expected in wanted.items():
        is_gradient = name.startswith("gradient")
        if vanishes and (name == "entropy" or (is_gradient and case.upstream in ("random", "entropy alone"))):
            continue
        if is_gradient and ((kinked and (tied or own != torch.float64)) or case.is_extreme):
            continue
        found = got[name]
        if expected is None or found is None:
            assert expected is None or not expected.any(), f"{route}: no {name}"
            continue
        rounding = 0.0 if name in asked_for else torch.finfo(own).eps
        scale = expected.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if expected.numel() else 0.0
        tolerance = (error + rounding) * (32 * steepness if is_gradient else 1) * max(1.0, scale)
        assert found.dtype == (working_dtype(own) if name in asked_for else own), f"{route}: {name} is {found.dtype}"
        torch.testing.assert_close(
            found.double(),
            expected.double(),
            rtol=0.0,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{route}: {name} is wrong for {case}\n{text}",
        )


def _steepness(case: Case) -> float:
    """By how much the rule and the size of the logits magnify the rounding of a product."""
    query, key, _ = inputs(case, torch.float64).arguments
    heads = query.shape[-3] // key.shape[-3] if case.has_heads else 1
    products = (query.detach() @ key.detach().repeat_interleave(heads, -3 if case.has_heads else 0).mT).abs()
    size = products.nan_to_num(0.0, 0.0, 0.0).max().item() if products.numel() else 0.0
    size = (
        1.0
        if case.numbers in ("large", "huge")
        else size * (case.features**-0.5 if case.scale is None else abs(case.scale))
    )
    slope = {"cold": 1e3, "frozen": 1e30, "entmax 3": 100.0, "entmax 1.01": 20.0}.get(case.rule, 1.0)
    if case.is_tied and isinstance(case.made.map, Softpick):  # at 0 it is as steep as it says
        slope = case.made.lipschitz(max(2, case.keys))
    return (1.0 + size) * slope * (10.0 if isinstance(case.made.map, Focus) else 1.0)


def hunt(seed: int, examples: int) -> None:
    """Draw so many cases; the first that fails, shrunk, is raised."""

    warnings.filterwarnings("ignore", "Lower right causal bias will produce NaNs")  # zeros here

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(case=cases())
    def every_route_is_the_reference(case: Case) -> None:
        check(case)

    every_route_is_the_reference()


def main() -> None:
    """Hunt until the time is up, or something fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long; for ever by default")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first seed; the next ones follow")
    parser.add_argument("--examples", type=int, default=1000, help="cases of one seed")
    given_ = parser.parse_args()
    start, seed = time.monotonic(), given_.seed
    while time.monotonic() - start < given_.seconds:
        hunt(seed, given_.examples)
        seed += 1
        done, taken = (seed - given_.seed) * given_.examples, time.monotonic() - start
        print(f"{done:,} calls on every route, seeds {given_.seed} to {seed - 1}, {taken:,.0f} s: nothing", flush=True)


if __name__ == "__main__":
    main()
