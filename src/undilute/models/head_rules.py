"""Which rule makes the weights of each head of an attention layer, and what multiplies its output?

A treated layer carries its rules as a submodule, so that they move with ``.to()``, train with the model and are gone
when the treatment is undone. Every path of a model's attention ends here: generation with a cache, padding, grouped
heads, sliding windows, soft caps, learned sinks; and measuring asks the same rules for the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from undilute.engine.call import prepare
from undilute.engine.routes.choose import run
from undilute.errors import InvalidValue
from undilute.models.attention_call import IMPLEMENTATION, AttentionCall, arguments
from undilute.models.question_rows import QUESTION_ROWS, check_rows, question_rows, reading_text, told
from undilute.rules import registry
from undilute.rules.base import Rule, forward_of
from undilute.rules.maps.sink import Sink
from undilute.rules.maps.softmax import Softmax

__all__ = ["QUESTION_ROWS", "HeadRules", "reading_text"]
ATTRIBUTE = "undilute_rules"
TREATMENT = "undilute_treatment"  # stands in the name of a treated model's implementation
PACKED = ("cu_seq_lens_q", "cu_seqlens_q")


class HeadRules(nn.Module):
    """The rules of one layer, each for some of its heads, and the gains of its heads.

    Parameters
    ----------
    groups : (indices of heads, rule) for all heads of the layer, each head once; a rule's parameters given per head
        are those of its own heads, in the order of the indices
    gains : (heads,), what multiplies the output of each head, in the order of the heads; None if nothing does
    learned : indices of heads whose gain is learned, from where it is
    rows : "all", or "question": the layer keeps its softmax in rows that read no question
        (``undilute.models.question_rows``)

    Attributes
    ----------
    neighbours : names and heads of all attention layers of the model, in the order in which they run, if it is known

    Examples
    --------
    >>> import undilute as ud
    >>> rules = HeadRules([((0, 2), ud.rules.get("ssmax")), ((1, 3), ud.rules.get("softmax"))])
    >>> rules.of_head(2)
    Rule(
      (scale): LogLength(s=0.43, b=0)
      (map): Softmax()
    )
    """

    fixed_gains: Tensor | None
    learned_gains: nn.Parameter | None
    learned_heads: tuple[int, ...] = ()
    rows: str = "all"

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[int], Rule]],
        gains: Tensor | None = None,
        learned: Sequence[int] = (),
        rows: str = "all",
    ) -> None:
        super().__init__()
        check_rows(rows)
        self.indices = [tuple(indices) for indices, _ in groups]
        self.rules = nn.ModuleList([each for _, each in groups])
        self.neighbours: list[tuple[str, int]] = []
        self.rows, self.learned_heads = rows, tuple(sorted(learned))
        if gains is None and learned:
            gains = torch.ones(self.heads)
        plain = gains is None or (not learned and bool((gains == 1.0).all()))
        self.register_buffer("fixed_gains", None if plain or len(learned) == self.heads else gains)
        start = gains[list(self.learned_heads)] if gains is not None and learned else None
        self.register_parameter("learned_gains", None if start is None else nn.Parameter(start.clone()))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Come from a file, in a process that may not know treated models yet."""
        from undilute.models.watch import know_treatments

        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._buffers.setdefault("fixed_gains", None)  # of before there were gains
        self._parameters.setdefault("learned_gains", None)
        know_treatments()

    @property
    def groups(self) -> list[tuple[tuple[int, ...], Rule]]:
        """(indices of heads, rule)."""
        return list(zip(self.indices, self.rules, strict=True))  # type: ignore[arg-type]

    @property
    def heads(self) -> int:
        return sum(map(len, self.indices))

    @property
    def gains(self) -> Tensor | None:
        """(heads,), what multiplies the output of each head, learned or not; None if nothing does."""
        fixed, learned = self.fixed_gains, self.learned_gains
        if learned is None or fixed is None:  # one of them is for all heads
            return fixed if learned is None else learned
        at = torch.tensor(self.learned_heads, device=learned.device)
        dtype = torch.promote_types(fixed.dtype, learned.dtype)
        return fixed.to(dtype).index_copy(0, at, learned.to(dtype))

    def gains_of(self, heads: Sequence[int]) -> tuple[float, ...]:
        """What multiplies the outputs of some heads, in the shortest numbers that mean it; 1 where nothing does."""
        if (gains := self.gains) is None:
            return (1.0,) * len(heads)
        full = gains.detach().cpu().to(torch.promote_types(gains.dtype, torch.float32)).numpy()
        return tuple(float(str(full[head])) for head in heads)  # 0.7, not the 0.699999988079071 of single precision

    def of_head(self, head: int) -> Rule:
        """The rule of one head, with its own share of parameters given per head."""
        for indices, rule in self.groups:
            if head in indices:
                return rule.for_heads([indices.index(head)], len(indices))
        raise InvalidValue(f"head {head}: must be one of the layer's {self.heads}, 0 to {self.heads - 1}.")

    def attend(self, call: AttentionCall) -> Tensor:
        """The layer's output, (batch, heads, queries, features)."""
        rows = None if self.rows == "all" else question_rows(call, told())
        if rows is None:
            return self._treated(call)
        output = _attend(call, Rule())
        if not any(map(len, rows)):
            return output
        if all(torch.equal(each, rows[0]) for each in rows[1:]):
            return output.index_copy(2, rows[0], self._treated(call.of_rows(rows[0])))
        several = enumerate(zip(output, rows, strict=True))
        return torch.stack(
            [
                each.index_copy(1, own, self._treated(call.of_rows(own, batch))[0]) if len(own) else each
                for batch, (each, own) in several
            ]
        )

    def _treated(self, call: AttentionCall) -> Tensor:
        """The output of rules and gains in all rows, (batch, heads, queries, features)."""
        if len(self.indices) == 1:
            output = _attend(call, self.groups[0][1])
        else:
            outputs = [_attend(call.of_heads(indices), rule) for indices, rule in self.groups]
            order = [head for indices in self.indices for head in indices]
            places = torch.tensor(order, device=call.query.device).argsort()
            output = torch.cat(outputs, 1).index_select(1, places)
        gains = self.gains
        return output if gains is None else (output * gains[:, None, None]).to(output.dtype)

    def weigh(
        self, logits: Tensor, visible: Tensor | None, treated: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What the rules make of some rows: scaled logits, and the weights unless those are the logits' softmax.

        Weights of either sign (SA-Softmax has them) count by their magnitude. Gains are no part of them.

        Parameters
        ----------
        logits : (heads, rows, keys), anything finite where hidden
        visible : (rows, keys) or (heads, rows, keys) bool; None if every row sees every key
        treated : (rows,) bool; the others keep the model's softmax; None if there are no others
        """
        seen = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand(logits.shape)
        scaled, weights = torch.empty_like(logits), torch.empty_like(logits)
        for indices, rule in self.groups:
            heads = list(indices)
            z = logits[heads].masked_fill(~seen[heads], 0.0)
            if forward_of(rule) is Rule:
                z = z * rule.scale(z, seen[heads])
                scaled[heads], weights[heads] = z, rule.map(z, seen[heads]).abs()
            else:  # a rule with a forward of its own, which does not say what its scale is
                scaled[heads], weights[heads] = z, rule(z, seen[heads]).abs()
        if treated is not None and not bool(treated.all()):
            z = logits.masked_fill(~seen, 0.0)
            rest = ~treated[:, None]
            scaled, weights = torch.where(rest, z, scaled), torch.where(rest, Rule()(z, seen), weights)
        return scaled, None if all(_is_softmax(rule) for _, rule in self.groups) else weights


def _is_softmax(rule: Rule) -> bool:
    """Are the weights the softmax of the scaled logits?"""
    return forward_of(rule) is Rule and forward_of(rule.map) is Softmax


def rules_of(module: nn.Module, implementation: str, heads: int) -> HeadRules | None:
    """The rules of an attention layer; None if it has its model's own softmax.

    Parameters
    ----------
    module : the attention layer
    implementation : the model's, such as "sdpa" or "undilute:ssmax"
    heads : query heads of the layer
    """
    if (own := own_rules(module)) is not None:
        return own
    if implementation.startswith(IMPLEMENTATION):
        return _preset(registry.preset(implementation.removeprefix(IMPLEMENTATION)).factory, heads)
    return None


def own_rules(module: nn.Module) -> HeadRules | None:
    """The rules that a treatment has put into the layer; None once the model was given another implementation."""
    own, config = module._modules.get(ATTRIBUTE), getattr(module, "config", None)
    in_force = config is None or TREATMENT in (config._attn_implementation or "")
    return own if isinstance(own, HeadRules) and in_force else None


@lru_cache(maxsize=64)
def _preset(factory: registry.Factory, heads: int) -> HeadRules:
    return HeadRules([(range(heads), registry.as_rule(factory()))])


def attention(implementation: str) -> Any:
    """An attention function, as transformers calls it, whose weights are made by the layer's rules."""

    def attend(module: nn.Module, *given: Any, **named: Any) -> tuple[Tensor, None]:
        (query, key, value, mask), options = arguments(module, implementation, given, named)
        call = AttentionCall(module, implementation, query, key, value, mask, options)
        rules = rules_of(module, implementation, query.shape[1])
        assert rules is not None
        if options.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False):
            raise InvalidValue(
                "output_attentions = True: a treated model returns no weights; undilute.capture(model) measures them."
            )
        if rules.heads != query.shape[1]:
            raise InvalidValue(
                f"{type(module).__name__} attends with {query.shape[1]} heads: its rules are for {rules.heads}; apply "
                "them to the model as it is now."
            )
        return rules.attend(call).transpose(1, 2).contiguous(), None

    return attend


def obstacle(call: AttentionCall, rule: Rule) -> str | None:
    """Why a rule cannot take the place of softmax in this layer, in words that follow a colon; None if it can."""
    if call.options.get("s_aux") is not None and not _is_softmax(rule):
        return (
            f"{type(call.module).__name__} has learned sinks, which only softmax can take in: give a rule whose map is "
            f"Softmax, with any scale, not {type(rule.map).__name__}"
        )
    return None


def _attend(call: AttentionCall, rule: Rule) -> Tensor:
    """Output of one rule for all heads of the call, (batch, heads, queries, features)."""
    if any(call.options.get(name) is not None for name in PACKED):
        raise InvalidValue(
            "several sequences packed into one row: their borders reach the attention only as lengths, which rules do "
            "not read; give each sequence a row of the batch, with padding."
        )
    if (why := obstacle(call, rule)) is not None:
        raise InvalidValue(f"{why}.")
    sinks = call.options.get("s_aux")
    if sinks is not None:
        rule = Rule(rule.scale, Sink(sinks.to(torch.promote_types(sinks.dtype, torch.float32))))
    prepared = prepare(
        call.query,
        call.key[:, :, : call.keys],
        call.value[:, :, : call.keys],
        call.engine_mask,
        dropout_p=call.dropout,
        scale=call.scale,
        enable_gqa=True,
        rule=rule,
        sliding_window=call.flag_window,
        softcap=call.options.get("softcap"),
        past=call.offset if call.causal else None,
    )
    return run(prepared).output
