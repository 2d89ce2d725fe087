"""Which trainings tell the causes apart?  The published one, and others that each change one thing about another.

An arm says what it changes and beside which arm it stands, so the difference of the two is what that change is worth.
All arms train on sets of at most 16 items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from undilute import rules
from undilute_papers.sharpness.ceiling.network import LinearPathNetwork
from undilute_papers.sharpness.max_retrieval.network import WIDTH, Network
from undilute_papers.sharpness.max_retrieval.training import Recipe


@dataclass(frozen=True)
class SetUp:
    """A network and how it is trained; as published where nothing else is said.

    Attributes
    ----------
    rule : trained with it; it learns what its paper learns
    parameters : where the rule starts, by name: k, s_min and s_max of focus; constants of any other rule
    schedule, last_rate, hold : of the learning rate, as in ``Recipe``
    skip : a linear path from the raw item into its encoding, which is all of the encoding at the start
    longer : steps, as a multiple of those of the experiment
    batch : sets of a step
    learning_rate, weight_decay : of AdamW
    rule_rate : for what the rule learns, as in ``Recipe``
    scaled : divide the logits by √128
    set_size : items of a training set: "16", or "5-16" for a size drawn anew in every step
    """

    rule: str = "softmax"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    last_rate: float = 1e-6
    hold: float = 0.0
    skip: bool = False
    longer: float = 1.0
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    rule_rate: float | None = None
    scaled: bool = True
    set_size: str = "16"

    @property
    def training(self) -> SetUp:
        """All of it but the rule, where the rule starts and how fast it learns."""
        return replace(self, rule="", parameters={}, rule_rate=None)

    def network(self, seeds: tuple[int, ...]) -> Network:
        """The untrained networks."""
        return (LinearPathNetwork if self.skip else Network)(self._rule, seeds, self.scaled)

    def _rule(self) -> rules.Rule:
        if self.rule == "focus":
            return rules.Rule(map=rules.LearnableFocus(1, **self.parameters))
        return rules.get(self.rule, **self.parameters) if self.parameters else rules.learnable(self.rule, WIDTH, 1)

    def recipe(self, steps: int) -> Recipe:
        """How the network is trained in an experiment of so many steps."""
        return Recipe(
            steps=max(1, round(self.longer * steps)),
            set_size=self.set_size,
            schedule=self.schedule,
            batch=self.batch,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            last_rate=self.last_rate,
            hold=self.hold,
            rule_rate=self.rule_rate,
        )


@dataclass(frozen=True)
class Arm:
    """A set-up with a name.

    Attributes
    ----------
    name : what to type, and what to call it in a legend
    changes : what it changes about the arm beside it, in a few words
    set_up : all of it
    beside : name of the arm that it is held against; "" for the first
    """

    name: str
    changes: str
    set_up: SetUp
    beside: str = ""

    def but(self, name: str, changes: str, **values: Any) -> Arm:
        """Another arm that stands beside this one and differs from it in these values."""
        return Arm(name, changes, replace(self.set_up, **values), self.name)


def _focus(k: int) -> dict[str, Any]:
    """K as wished; limits that do not bind before two items cannot be told apart."""
    return {"rule": "focus", "parameters": {"k": k, "s_min": 1.0, "s_max": 1e6}}


PUBLISHED = Arm("published", "softmax and a constant learning rate, as published", SetUp())
DECAY = PUBLISHED.but("decay", "the learning rate falls by a cosine to 1e-6", schedule="cosine")
SKIP = DECAY.but("skip", "the encoding of an item starts linear, with a path from the raw item", skip=True)
SSMAX = SKIP.but("ssmax", "SSMax in place of softmax", rule="ssmax")
OWN_RATE = SSMAX.but("own-rate", "SSMax's s keeps a constant learning rate of its own, 0.01", rule_rate=1e-2)
WEIGHT_DECAY = OWN_RATE.but("weight-decay", "weight decay 0.3 in place of 0.001", weight_decay=0.3)
EXPONENTIAL = WEIGHT_DECAY.but(
    "exponential",
    "the learning rate is held for 30 % of the steps, then falls exponentially to 1e-7",
    schedule="exponential",
    hold=0.3,
    last_rate=1e-7,
)
FOCUS_16 = EXPONENTIAL.but(
    "focus-16", "focus with K = 16 in place of SSMax, its s_min learned at 0.002", rule_rate=2e-3, **_focus(16)
)
TRIED = (0, 1)  # seeds on which the arms were tried out before they were settled
ADDED = (  # arms that were thought of when ten seeds of all others were known
    FOCUS_16.but("k-4", "K = 4 in place of 16", **_focus(4)),
    FOCUS_16.but("focus-long", "twice the steps", longer=2.0),
)
ARMS = (
    PUBLISHED,
    DECAY,
    SKIP,
    SKIP.but("as-entmax", "ASEntmax in place of softmax", rule="as-entmax"),
    SKIP.but("focus-4", "focus with K = 4 in place of softmax", **_focus(4)),
    SSMAX,
    OWN_RATE,
    WEIGHT_DECAY,
    EXPONENTIAL,
    EXPONENTIAL.but("no-skip", "the published encoding again, without the linear path", skip=False),
    EXPONENTIAL.but("long", "twice the steps", longer=2.0),
    FOCUS_16,
    *ADDED,
)
BY_NAME = {arm.name: arm for arm in ARMS}
