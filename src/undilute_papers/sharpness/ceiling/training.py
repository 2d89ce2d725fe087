"""A few seeds of one arm: trained as its set-up says, and tested with every rule that tells causes apart.

The same logits are weighed by the rule of training, by their argmax, which spreads nothing, and by focus with a few K,
which spreads over K items at most. So K is told apart without new trainings.
"""

from __future__ import annotations

from dataclasses import dataclass

from undilute import rules
from undilute_papers.reproduction.evaluated import evaluated_with
from undilute_papers.sharpness.ceiling.anatomy import resolution
from undilute_papers.sharpness.ceiling.set_ups import SetUp
from undilute_papers.sharpness.max_retrieval.network import Network
from undilute_papers.sharpness.max_retrieval.training import Exam, Recipe, RetrievalRun, at_inference

OWN = "own rule"
FOCUS = {f"focus (K = {k})": rules.get("focus", k=k, s_min=1.0, s_max=1e6) for k in (2, 4, 16)}


@dataclass(frozen=True)
class Run(RetrievalRun):
    """The trainings of a few seeds of one arm, side by side.

    Attributes
    ----------
    set_up : of network and training
    steps : of the experiment, which the set-up may multiply
    seeds : of the weights; the sets of each training step are drawn from the first
    sizes, sets, test_items : as in ``Exam``
    """

    set_up: SetUp
    steps: int
    seeds: tuple[int, ...]
    sizes: tuple[int, ...]
    sets: int
    test_items: int

    @property
    def name(self) -> str:
        """A name for its files."""
        set_up = self.set_up
        rule = "-".join([set_up.rule, *(f"{name}-{value:g}" for name, value in set_up.parameters.items())])
        path = "skip" if set_up.skip else "plain"
        seeds = "-".join(map(str, self.seeds))
        return f"{rule}_{path}_{set_up.set_size}_{set_up.schedule}_{self.recipe.steps}_seeds-{seeds}"

    def network(self) -> Network:
        return self.set_up.network(self.seeds)

    @property
    def recipe(self) -> Recipe:
        return self.set_up.recipe(self.steps)

    @property
    def exam(self) -> Exam:
        _, *others = evaluated_with(self.set_up.rule)
        tested = {OWN: None, **{name: at_inference(name) for name in others}, **FOCUS}
        return Exam(self.sizes, self.sets, self.test_items, tested)

    def described(self, network: Network) -> list[dict[str, float | None]]:
        return [{"resolution": each} for each in resolution(network)]
