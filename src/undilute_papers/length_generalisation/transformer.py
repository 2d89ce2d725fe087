"""A small causal transformer whose attention rule is a parameter: pre-norm, rotary positions, tied embedding.

Positions are a reason of their own for failing at new lengths: a rotary feature whose wavelength exceeds the training
length meets angles that it never saw, and a layer that compares contents across thousands of tokens has them turned
against each other. So there is a choice of how positions enter.

    alternating   every other layer is rotary, with wavelengths from 2 tokens to the training length, so that training
                  shows every angle; the layers between have no positions, so that they compare contents at any distance
                  alike (arXiv:2501.18795)
    plain         every layer is rotary, with the usual wavelengths from 2π to 2π·10,000
    random        the same, at positions drawn in order from [0, longest) for every batch (arXiv:2305.16843)

Two choices make a training of minutes possible, and are the same for every rule. Symbols mean nothing, so their
embeddings stay as they were drawn: what is learned about one then holds for all. And the heads of every other layer
begin by looking 0, 1, 2, … tokens back, as in arXiv:2103.10697, through the biases of queries and keys, which may
change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undilute.nn import Attention
from undilute.nn.heads import split_heads

POSITIONS = ("alternating", "plain", "random")
BASE = 10_000.0
BIAS_DEVIATION = 1.2  # at 32 features a head gives 0.8 to 0.97 to the token it looks back to


class Rotary:
    """Turns pairs of features by angles that grow with the position: q·k then depends on differences of positions.

    Parameters
    ----------
    features : of a head
    kind : "alternating", "plain" or "random", as above
    train_length : the longest wavelength of "alternating"
    longest : positions that can occur
    """

    def __init__(self, features: int, kind: str, train_length: int, longest: int) -> None:
        pairs = features // 2
        if kind == "alternating":
            fastest, slowest = math.log(math.pi), math.log(2 * math.pi / train_length)
            frequencies = torch.linspace(fastest, slowest, pairs, dtype=torch.float64).exp()
        else:
            frequencies = BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = torch.arange(longest, dtype=torch.float64)[:, None] * frequencies  # (longest, features / 2)
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        self.positions: Tensor | None = None  # (length,); None for 0, 1, 2, …

    def __call__(self, q: Tensor, k: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """q and k (batch, heads, length, features), turned."""
        at = slice(offset, offset + q.shape[-2]) if self.positions is None else self.positions
        return self.turned(q, at), self.turned(k, at)

    def turned(self, x: Tensor, at: slice | Tensor) -> Tensor:
        """x (..., length, features), turned by the angles of the positions ``at``."""
        (a, b), cos, sin = x.chunk(2, -1), self.cos[at], self.sin[at]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    """x + attention(norm x), then x + MLP(norm x)."""

    def __init__(self, width: int, heads: int, rule: str, rotary: Rotary | None) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, rule=rule, is_causal=True, rotate=rotary, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))  # (batch, length, width)
        changed: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return changed

    def initialise(self, layers: int) -> None:
        """Weights that keep the variance, of which both branches of all ``layers`` together add about 1."""
        attention = self.attention
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, self.up):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        for linear in (attention.out_proj, self.down):
            nn.init.normal_(linear.weight, std=(2 * layers * linear.in_features) ** -0.5)
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            nn.init.zeros_(linear.bias)


class Transformer(nn.Module):
    """Tokens to logits over symbols.

    Parameters
    ----------
    rule : the attention rule's name; the layers learn what its paper learns
    symbols : tokens besides the separator
    width, heads, layers : its shape
    positions : "alternating", "plain" or "random"
    train_length, longest : what positions need to know

    Examples
    --------
    >>> model = Transformer("ssmax", symbols=2048, width=128, heads=4, layers=4)
    >>> model(torch.zeros(2, 16, dtype=torch.long), last=8).shape
    torch.Size([2, 8, 2049])
    """

    def __init__(
        self,
        rule: str,
        symbols: int,
        width: int,
        heads: int,
        layers: int,
        positions: str = "alternating",
        train_length: int = 64,
        longest: int = 4096,
    ) -> None:
        super().__init__()
        self.kind, self.longest = positions, longest
        self.rotary = Rotary(width // heads, positions, train_length, longest)
        self.embedding = nn.Embedding(symbols + 1, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, rule, None if positions == "alternating" and layer % 2 else self.rotary)
            for layer in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight).requires_grad_(False)
        for index, block in enumerate(self._blocks()):
            block.initialise(len(self.blocks))
            if index % 2 == 0:
                self._look_back(block.attention)

    def _look_back(self, layer: Attention) -> None:
        """Let head h begin by looking h tokens back: q·R(h)q is largest where a key stands h before its query."""
        bias = torch.randn(layer.num_heads, layer.q_proj.out_features // layer.num_heads) * BIAS_DEVIATION
        layer.q_proj.bias.copy_(bias.flatten())
        layer.k_proj.bias.copy_(self.rotary.turned(bias, torch.arange(layer.num_heads)).flatten())
        layer.q_proj.weight.mul_(0.5)  # content, which says nothing yet, should not drown the positions
        layer.k_proj.weight.mul_(0.5)

    def forward(self, tokens: Tensor, last: int) -> Tensor:
        """Logits (batch, last, symbols + 1) at the ``last`` of the tokens (batch, length)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x[:, -last:]) * x.shape[-1] ** -0.5
        return F.linear(x, self.embedding.weight)

    def place(self, length: int, generator: torch.Generator) -> None:
        """Give the next batch its positions, where these are random."""
        if self.kind == "random":
            self.rotary.positions = torch.randperm(self.longest, generator=generator)[:length].sort().values

    def layers(self) -> list[Attention]:
        """The attention layers."""
        return [block.attention for block in self._blocks()]

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


def last_weights(attention: Attention, x: Tensor, rows: int) -> Tensor:
    """What the last ``rows`` tokens attend to.

    Parameters
    ----------
    attention : a causal layer
    x : (batch, length, width), its input

    Returns
    -------
    (batch, heads, rows, length)
    """
    q, k = split_heads(attention.q_proj(x), attention.num_heads), split_heads(attention.k_proj(x), attention.num_heads)
    if attention.rotate is not None:
        q, k = attention.rotate(q, k, 0)
    logits = q[..., -rows:, :] @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    at = torch.arange(x.shape[1])
    weights: Tensor = attention.rule.on(x[:, -rows:])(logits, at <= at[-rows:, None])
    return weights
