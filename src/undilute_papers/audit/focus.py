"""What focus promises, at what price, and which rules have all three properties: our own statements U5 to U8."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from undilute.rules import Entmax, Focus, Rule, Temperature, get
from undilute.theory import focus, sparse
from undilute_papers.audit.properties import Properties, candidates, class_rows, properties
from undilute_papers.audit.sources import UNDILUTE
from undilute_papers.audit.statement import Curve, Evidence, Verdict, statement

Function = Callable[..., Tensor]
ALPHAS = (1.25, 1.5, 1.75, 2.0)
KEPT = (1, 2, 4, 16)
S_MIN, S_MAX = 0.5, 8.0


def _real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _uniform(rng: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=rng, dtype=torch.float64)


def _rule(K: int, alpha: float) -> Rule:
    return Rule(map=Focus(K, alpha, S_MIN, S_MAX))


def _rows(rng: torch.Generator, rows: int, n: int, K: int) -> Tensor:
    """Rows (rows, n) of every spread; a quarter each with K equal leaders, K + 1 of them almost tied, two levels."""
    z = torch.randn(rows, n, generator=rng, dtype=torch.float64) * 10 ** _uniform(rng, -2, 1, rows, 1)
    top, quarter = z.amax(-1, keepdim=True), rows // 4
    z[:quarter, :K] = top[:quarter] + _uniform(rng, 0, 0.3, quarter, 1)
    z[quarter : 2 * quarter, : K + 1] = top[quarter : 2 * quarter] + _uniform(rng, 0, 0.1, quarter, K + 1)
    z[2 * quarter : 3 * quarter] = _uniform(rng, 0, 0.2, quarter, 1) * (torch.arange(n) < max(K // 2, 1))
    return z


def _to_lead(z: Tensor, K: int, alpha: float, lead: Tensor) -> Tensor:
    """The rows of z that are not tied, stretched so that their lead is as given."""
    found = focus.lead(z, K, alpha)
    return z[found > 0] * (lead / found[found > 0]).unsqueeze(-1)


def _support(p: Tensor) -> Tensor:
    return (p > 0).sum(-1).double()


def _floor_curve() -> Curve:
    lengths = [int(n) for n in torch.logspace(1.7, 3.7, 12)]
    named = {name: get(name) for name in ("softmax", "ssmax", "entmax15", "focus")}
    lines: dict[str, Sequence[float]] = {
        name: [float(rule(class_rows(n, 0.125))[:, 0].min()) for n in lengths] for name, rule in named.items()
    }
    return Curve(lengths, lines, "keys n", "worst top weight if z₁ − z₁₇ ≥ 1/8", log_x=True, log_y=True)


@statement(
    "U5",
    UNDILUTE,
    place="docs/focus.md, theory/focus.py",
    verdict=Verdict.TRUE,
    title="Focus is sparse and length-adaptive",
    claim="Let z₁ ≥ z₂ ≥ … be the sorted logits, Δⱼ = zⱼ − z_{K+1}, a = 1/(α−1). If ‖Δ‖ₐ ≥ 1/((α−1)s_max), certainly "
    "if z₁ − z_{K+1} is, at most K keys have weight and the top one has 1/K or more, whatever n; K equal keys have "
    "just that. Otherwise more than K have weight. Where the scale is s_K itself the weights are Δⱼ^a/ΣΔ^a: neither "
    "scale nor shift of the logits counts, nor any key beyond rank K + 1.",
    formula=r"s_K = \frac{1}{(\alpha-1) \|\Delta\|_a} \le s_{\max} \;\Rightarrow\; |\mathrm{supp}| \le K, \quad "
    r"p_1 \ge \frac{1}{K}, \qquad s = s_K \;\Rightarrow\; p_j = \frac{\Delta_j^a}{\sum_i \Delta_i^a}",
    proof="By U4 the key of rank K + 1 has weight at scale s exactly if s^a Σ((α−1)Δ)^a < 1. The sum rises with s "
    "and is 1 at s_K, the smallest scale that leaves at most K keys; focus never takes a smaller one unless s_max is.",
    curve=_floor_curve,
)
def bounded_support(
    evidence: Evidence,
    scale: Function = focus.fitting_scale,
    border: Function = focus.tie_lead,
    weights: Function = focus.fitted_weights,
    floor: Function = focus.weight_floor,
) -> None:
    for alpha in ALPHAS:
        least = border(_real(alpha), _real(S_MAX))
        kept, tied, top, error, smallest = [], [], [], [], []
        for K in KEPT:
            for n in (K + 1, 60):
                z = _rows(evidence.rng, 60, n, K)
                z = torch.cat([z, *(_to_lead(z, K, alpha, least * off) for off in (1 - 1e-9, 1 + 1e-9))])
                p, s = _rule(K, alpha)(z), scale(z, K, alpha)
                outside = 1 / ((alpha - 1) * s) >= least
                kept.append(K - _support(p)[outside])
                tied.append(_support(p)[~outside] - K - 1)
                top.append(p.amax(-1)[outside] - floor(K, _real(n)))
                inner = (s > S_MIN) & (s < S_MAX)
                error.append((p[inner].topk(K).values - weights(z[inner], K, alpha)).abs().amax(-1))
                fine = s.isfinite()
                less = sparse.support_size(z[fine] * (s[fine] * (1 - 1e-6)).unsqueeze(-1), alpha)
                smallest.append((less - K - 1).double())
        evidence.holds(f"α = {alpha:g}: at most K keys outside the tie region", torch.cat(kept), tolerance=0.0)
        evidence.holds("more than K inside", torch.cat(tied), tolerance=0.0)
        evidence.holds("top weight ≥ 1/K", torch.cat(top))
        evidence.holds("weights where the scale is s_K", -torch.cat(error), tolerance=1e-8)
        evidence.holds("s_K is the smallest scale that does it", torch.cat(smallest), tolerance=0.0)
    _long_rows(evidence, border, floor)
    _what_does_not_count(evidence)


def _long_rows(evidence: Evidence, border: Function, floor: Function) -> None:
    """The floor at lengths of up to 10⁵, for a constant K and for one that grows."""
    lead = border(_real(1.5), _real(S_MAX))
    slack, growing = [], []
    for n in (1_000, 100_000):
        z = torch.cat([_rows(evidence.rng, 4, n, 16), class_rows(n, float(lead))[:7:3]])
        p = _rule(16, 1.5)(z)
        outside = focus.lead(z, 16, 1.5) >= lead * (1 - 1e-12)
        slack.append(torch.minimum(16 - _support(p), p.amax(-1) - floor(16, _real(n)))[outside])
        grown = Focus(2, 1.5, S_MIN, S_MAX, power=0.25)
        K = int(grown.kept(torch.tensor(n)))
        p = Rule(map=grown)(class_rows(n, float(lead), K)[:7:3])
        growing.append(torch.minimum(K - _support(p), p.amax(-1) - floor(2, _real(n), 0.25)))
    evidence.holds("n = 1,000 and 100,000: at most 16 keys, top weight ≥ 1/16", torch.cat(slack))
    evidence.holds("the same with K = ⌈2·n^0.25⌉", torch.cat(growing))
    equal = torch.cat([_real(*[1.0] * 16), _real(*[0.0] * 84)])
    evidence.quoted("16 equal keys, n = 100", _rule(16, 1.5)(equal).amax(), "0.062500")


def _what_does_not_count(evidence: Evidence) -> None:
    """Scale, shift and further keys; and the threshold, which is the middle one of three."""
    K, alpha = 4, 1.5
    z = _rows(evidence.rng, 200, 40, K)
    s = focus.fitting_scale(z, K, alpha)
    inner = (s > 2 * S_MIN) & (s < S_MAX / 2)
    z, s = z[inner], s[inner]
    p, stretched = _rule(K, alpha)(z), _rule(K, alpha)(z * _uniform(evidence.rng, 0.5, 2, len(z), 1) + 3)
    evidence.holds("scale and shift of the logits", -(stretched - p).abs().amax(-1), tolerance=1e-8)
    behind = z.topk(K + 1).values[:, -1:] - _uniform(evidence.rng, 0, 5, len(z), 500)
    longer = _rule(K, alpha)(torch.cat([z, behind], -1))
    evidence.holds("500 more keys behind z_{K+1}", -(longer[:, :40] - p).abs().amax(-1), tolerance=0.0)
    z = _rows(evidence.rng, 200, 40, K)
    low, high, next_best = _threshold(z, S_MIN), _threshold(z, S_MAX), z.topk(K + 1).values[:, -1]
    s = focus.fitting_scale(z, K, alpha).clamp(S_MIN, S_MAX)
    middle = z.amax(-1) - _rule(K, alpha)(z).amax(-1).sqrt() / ((alpha - 1) * s)
    error = (middle - torch.maximum(low, torch.minimum(next_best, high))).abs()
    evidence.holds("threshold = max(t(s_min), min(z_{K+1}, t(s_max)))", -error, tolerance=1e-8)


def _threshold(z: Tensor, s: float) -> Tensor:
    """The logit below which 1.5-entmax at scale s gives no weight."""
    p = Rule(Temperature(1 / s), Entmax(1.5))(z)
    t: Tensor = z.amax(-1) - p.amax(-1).sqrt() / (0.5 * s)
    return t


def _weights(rng: torch.Generator, rows: int, K: int) -> Tensor:
    """Weights (rows, K) of every spread; a quarter each with zeros, with ties, with one against the rest."""
    z = torch.randn(rows, K, generator=rng, dtype=torch.float64) * 10 ** _uniform(rng, -1, 1, rows, 1)
    quarter = rows // 4
    z[:quarter, K // 2 + 1 :] = -torch.inf
    z[quarter : 2 * quarter] = z[quarter : 2 * quarter].round()
    z[2 * quarter : 3 * quarter] = 0
    z[2 * quarter : 3 * quarter, 0] = _uniform(rng, 0, 12, quarter)
    return z.softmax(-1)


def _climb(rng: torch.Generator, alpha: float, K: int, norm: Function, rows: int = 16, steps: int = 25) -> Tensor:
    """Norms (rows,) after gradient ascent over the logarithms of the weights of K keys, by ever smaller steps."""
    log_p = 2 * torch.randn(rows, K, generator=rng, dtype=torch.float64)
    log_p[::2, 0] += _uniform(rng, 0, 4, len(log_p[::2]))
    for i in range(steps):
        log_p = log_p.detach().requires_grad_()
        (slope,) = torch.autograd.grad(focus.largest_norm(log_p.softmax(-1), _real(alpha)).sum(), log_p)
        slope = slope.nan_to_num(0.0)
        log_p = log_p + 2.0 * 0.87**i * slope / slope.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    climbed: Tensor = norm(log_p.detach().softmax(-1), _real(alpha))
    return climbed


def _logits_for(p: Tensor, alpha: float, s: float, n: int) -> Tensor:
    """Logits (rows, n) whose fitting scale is s and whose K fitted weights are p; others lie ever further behind."""
    delta = p ** (alpha - 1) / ((alpha - 1) * s)
    behind = -torch.arange(n - p.shape[-1], dtype=torch.float64) / 7
    return torch.cat([delta, behind.expand(len(p), -1)], -1)


def dense_norms(rule: Rule, z: Tensor) -> Tensor:
    """‖∂weights/∂logits‖₂ of each row (rows, n), by automatic differentiation of the rule itself."""
    z = z.clone().requires_grad_()
    weights = rule(z)
    J = torch.stack([torch.autograd.grad(w.sum(), z, retain_graph=True)[0] for w in weights.unbind(-1)], 1)
    norms: Tensor = torch.linalg.matrix_norm(J, ord=2)
    return norms


@statement(
    "U6",
    UNDILUTE,
    place="docs/focus.md, theory/focus.py",
    verdict=Verdict.TRUE,
    title="Focus is gradient-stable",
    claim="The spectral norm of focus's Jacobian is at most s_max·max(L(n), C(α, K)), for all logits and every n, "
    "and this is a Lipschitz constant; L(n) ≤ 1 is that of U3, C does not depend on n: K for α = 2, where it is "
    "exact, 1.46 for α = 1.5 and K = 16, where 1.36 is reached. Rows of n ≤ K keys have s_min·L(n).",
    formula=r"J = s_K (I - p 1^{\top}) \, \mathrm{diag}(p^{2-\alpha}) \, [I \mid -1], \qquad "
    r"\|J\|_2 \le s_{\max} \max\{L(n), C(\alpha, K)\}",
    proof="Where the scale is a limit this is entmax. Where it is s_K, ‖yᵀJ‖²/s_K² is a variance, which Hölder "
    "bounds, and (y·b)², b = p^{2−α} − p Σp^{2−α}. At a maximum of ‖b‖² the weights have at most two values, the "
    "higher one once, so it is a maximum over one number. The rule is locally Lipschitz, so the bound holds along "
    "segments. In full in docs/focus.md.",
)
def gradient(
    evidence: Evidence,
    constant: Callable[[float, int], float] = focus.steepness,
    reached: Callable[[float, int], float] = focus.steepest,
    norm: Function = focus.relative_norm,
) -> None:
    for alpha in ALPHAS:
        at, slack, climbed, short, regimes = _real(alpha), [], [], [], []
        for K, rows in zip(KEPT, (400, 12_000, 11_000, 2_000), strict=True):
            p = _weights(evidence.rng, rows, K)
            slack.append(constant(alpha, K) - norm(p, at))
            if K > 1:
                climbed.append(constant(alpha, K) - _climb(evidence.rng, alpha, K, norm))
                short.append(climbed[-1].min() - (constant(alpha, K) - reached(alpha, K)))
                regimes.append(_in_every_regime(evidence.rng, alpha, K, constant(alpha, K)))
        evidence.holds(f"α = {alpha:g}: norm ≤ s_K·C", torch.cat(slack))
        evidence.holds("norm ≤ s_K·C after gradient ascent", torch.cat(climbed))
        evidence.holds("the ascent gets to the conjectured maximum", -torch.stack(short).abs(), tolerance=0.03 * alpha)
        evidence.holds("the rule itself, every regime, n = 2 to 17", torch.cat(regimes), tolerance=1e-7)
        _steepest_rows(evidence, alpha, reached, norm)
    evidence.quoted("α = 1.5, K = 16: the bound", constant(1.5, 16), "1.46")
    evidence.quoted("α = 1.5, K = 16: reached", reached(1.5, 16), "1.36")
    evidence.quoted("α = 2, K = 16: the bound", constant(2.0, 16), "16.000")
    evidence.quoted("α = 2, K = 16: reached in the limit", reached(2.0, 16), "16.000")


def _in_every_regime(rng: torch.Generator, alpha: float, K: int, C: float) -> Tensor:
    """Bound − norm for rows of the real rule, differentiated by autograd."""
    slack = []
    for n in (K, K + 1):
        z, L = _rows(rng, 24, K + 1, K)[:, :n], sparse.lipschitz_constant(alpha, n)
        bound = S_MIN * L if n <= K else S_MAX * max(L, C)
        slack.append(bound - dense_norms(_rule(K, alpha), z))
    return torch.cat(slack)


def _steepest_rows(evidence: Evidence, alpha: float, reached: Callable[[float, int], float], norm: Function) -> None:
    """The structured norm is that of the rule; the steepest rows are as steep, be there 12 keys or up to 10⁵."""
    K, s = 4, S_MAX * (1 - 1e-9)
    p = _weights(evidence.rng, 20, K).clamp(min=1e-3)
    p = (p / p.sum(-1, keepdim=True)).sort(-1, descending=True).values
    error = dense_norms(_rule(K, alpha), _logits_for(p, alpha, s, 12)) / s - norm(p, _real(alpha))
    evidence.holds("structured norm = that of the rule", -error.abs(), tolerance=1e-6)
    steepest = focus.steepest_weights(alpha, K).clamp(min=1e-12).unsqueeze(0)
    for n in (12, 100_000 if alpha in (1.5, 2.0) else 1_000):  # other alphas bisect, which takes long
        z = _logits_for(steepest, alpha, s, n).requires_grad_()
        weights = _rule(K, alpha)(z)[0, :K]
        J = torch.stack([torch.autograd.grad(w, z, retain_graph=True)[0][0] for w in weights])
        evidence.near(f"K = 4, n = {n:,}: reached", torch.linalg.matrix_norm(J, ord=2) / s, reached(alpha, K), 1e-4)


def _near_ties(rng: torch.Generator, rows: int, n: int) -> Tensor:
    """Rows (rows, n) not far from a tie: m equal leaders, or scattered."""
    z = torch.randn(rows, n, generator=rng, dtype=torch.float64)
    leaders = torch.randint(1, n, (rows // 2, 1), generator=rng)
    z[: rows // 2] = (torch.arange(n) < leaders).double()
    return z * 10 ** _uniform(rng, -4, 0.5, rows, 1)


@statement(
    "U7",
    UNDILUTE,
    place="docs/focus.md, theory/focus.py",
    verdict=Verdict.TRUE,
    title="A tie region is unavoidable",
    claim="A rule that treats all keys alike, whose weights sum to 1 and that has the Lipschitz constant L on rows "
    "of n keys cannot give weight to at most K of them within √(1/K − 1/n)/L of a tie, the ℓ₂ distance after removing "
    "the mean. No larger distance holds: sparsemax with a scale reaches it. Top-k, sparse next to a tie, has no "
    "Lipschitz constant.",
    formula=r"|\mathrm{supp}(w(z))| \le K \;\Rightarrow\; "
    r"\|z - \bar z\|_2 \ge \frac{1}{L} \sqrt{\frac{1}{K} - \frac{1}{n}}",
    proof="At equal logits equal treatment makes all weights 1/n. K weights that sum to 1 have Σw² ≥ 1/K, so ‖w − "
    "1/n‖² = Σw² − 1/n ≥ 1/K − 1/n, and this is at most L²‖z − z̄‖². Sparsemax at scale s has L = s; with K keys that "
    "lead by 1/(Ks) it has K equal weights, at the distance √(1/K − 1/n)/s.",
)
def unavoidable_ties(
    evidence: Evidence,
    needed: Function = focus.distance_needed,
    leaves: Function = focus.tie_exit,
) -> None:
    named: dict[str, Rule] = {f"focus, α = {alpha:g}, K = {K}": _rule(K, alpha) for alpha in ALPHAS for K in (2, 16)}
    named |= {"sparsemax at scale 3": Rule(Temperature(1 / 3), Entmax(2.0)), "entmax15": get("entmax15")}
    slack = []
    for rule in named.values():
        for n in (3, 24, 300):
            z = _near_ties(evidence.rng, 60, n)
            p = rule(z)
            sparse_rows = _support(p) < n
            far = focus.distance_from_tie(z)[sparse_rows]
            slack.append(far - needed(_support(p)[sparse_rows], _real(n), rule.lipschitz(n)))
    evidence.holds(f"{len(named)} rules: every sparse row is far enough", torch.cat(slack))
    for K, n in ((1, 2), (3, 10), (16, 1000)):
        z = torch.zeros(2, n, dtype=torch.float64)
        z[0, :K], z[1, :K] = (1 + 1e-9) / (3 * K), (1 - 1e-6) / (3 * K)
        sizes, far = _support(named["sparsemax at scale 3"](z)), focus.distance_from_tie(z)[0]
        evidence.near(f"sparsemax reaches it, K = {K}, n = {n}", far / needed(K, n, 3.0), 1.0, 1e-8)
        evidence.true("and not before", sizes[0] == K and sizes[1] == n, f"support {sizes.tolist()}")
    _leaving(evidence, needed, leaves)
    tie = torch.zeros(1, 100, dtype=torch.float64)
    z = tie - 1e-9 * torch.arange(100)
    p, jump = get("top-k", k=16)(z), torch.linalg.vector_norm(get("top-k", k=16)(z) - get("top-k", k=16)(tie))
    slope = jump / focus.distance_from_tie(z)
    evidence.true(
        "top-k is sparse within 1e-6 of a tie", _support(p) == 16, f"and as steep as {float(slope):.1e} there"
    )


def _leaving(evidence: Evidence, needed: Function, leaves: Function) -> None:
    """Where m equal leaders leave the tie region of focus; and how far that is beyond what any rule needs."""
    error = []
    for alpha in ALPHAS:
        for m, K, n in ((1, 1, 2), (1, 16, 100), (5, 16, 100), (16, 16, 100), (16, 16, 1000)):
            distance = leaves(m, n, alpha, S_MAX)
            z = torch.zeros(2, n, dtype=torch.float64)
            z[:, :m] = distance / math.sqrt(m * (1 - m / n))
            sizes = _support(_rule(K, alpha)(z * _real(1 - 1e-9, 1 + 1e-9).unsqueeze(-1)))
            error.append((sizes - _real(n, m)).abs())
    evidence.holds("m equal leaders leave focus's tie region there", -torch.cat(error), tolerance=0.0)
    L = S_MAX * focus.steepest(2.0, 16)
    ratio = leaves(16, 1000, 2.0, S_MAX) / needed(16, 1000, L)
    evidence.near("α = 2, m = K = 16: that many times as far as needed", ratio, 16.0, 1e-6)


Measure = Callable[[Mapping[str, Rule]], list[Properties]]


def _measured(rules: Mapping[str, Rule]) -> list[Properties]:
    return properties(rules, lengths=(60, 240), tries=1)


@statement(
    "U8",
    UNDILUTE,
    place="docs/focus.md, audit/properties.py",
    verdict=Verdict.TRUE,
    title="Only focus has all three among the presets; entmax at a large scale has them without a gradient",
    claim="On rows whose top logit leads the one of rank 17 by 1/8, focus is the only preset that is "
    "length-adaptive, sparse and gradient-stable as n grows. The three alone are no art: 1.5-entmax with the logits "
    "times 16, focus's s_max, has them on the same rows, with the smaller constant 16. It gives one key all the "
    "weight, and no gradient, in most rows of 1,000 standard normal logits; focus does so in none.",
    formula=r"|\mathrm{supp}(\mathrm{entmax}_\alpha(s_{\max} z))| \le "
    r"|\mathrm{supp}(\mathrm{entmax}_\alpha(s_K z))| \le K",
    proof="Measured, for the presets. The support of entmax shrinks as the scale grows (U4), so at s_max ≥ s_K it is "
    "no larger than that of focus; focus has the smallest scale that does it (U5), so every key above z_{K+1} keeps "
    "its weight.",
)
def all_three(evidence: Evidence, measure: Measure = _measured) -> None:
    chosen = candidates()
    for found in measure(chosen):
        have = found.name in ("focus", "entmax15, T = 1/16")
        seen = f"top {found.top_weight[-1]:.2g}, support {found.support[-1]:,}, steepest {found.steepest[-1]:.3g}"
        evidence.true(f"{found.name}: {'all three' if have else 'not all three'}", found.all_three == have, seen)
        if found.name == "focus":
            evidence.near("focus: rows of normal logits with one key", found.one_hot, 0.0, 0.0)
        if found.name == "entmax15, T = 1/16":
            evidence.near(f"{found.name}: rows of normal logits with one key", found.one_hot, 0.7, 0.15)
        bound = found.declared * (1 + 1e-6) - found.steepest[-1]
        evidence.holds("steepest found ≤ declared", _real(min(bound, 1e9)), tolerance=0.0)
