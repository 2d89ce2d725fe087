"""Which of a layer's heads does this process have?

With tensor parallelism (``from_pretrained(..., tp_plan="auto")``) each process attends with a run of every layer's
heads: the first with heads 0 to 3, the second with 4 to 7. Rules are given by the model's own numbers, which are the
same everywhere, and each process takes its share. Models whose plan gathers the heads have all of them everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import distributed, nn

from undilute.errors import InvalidValue
from undilute.models.attention_call import AttentionCall

T = TypeVar("T")
DIMENSION = "tp"  # what transformers calls it in a mesh of processes that has several


@dataclass(frozen=True)
class Share:
    """A run of a layer's heads.

    Attributes
    ----------
    first : the number of its first head among those of the layer
    heads : how many there are here
    total : how many the layer has
    mesh : the processes among which the layer is split; None if all of its heads are here
    """

    first: int
    heads: int
    total: int
    mesh: Any = None

    def own(self, heads: Sequence[int]) -> list[int]:
        """Those of some heads that are here.

        Examples
        --------
        >>> Share(4, 4, 8).own([1, 4, 6])
        [4, 6]
        """
        return [head for head in heads if self.first <= head < self.first + self.heads]

    def everywhere(self, own: list[T]) -> list[T]:
        """What all processes have, in the order of their heads; each of them must ask."""
        if self.mesh is None:
            return own
        found: list[Any] = [None] * self.mesh.size()
        distributed.all_gather_object(found, own, group=self.mesh.get_group())
        return [each for part in found for each in part]


def share(call: AttentionCall) -> Share:
    """The heads that the call is made with."""
    here, mesh = call.query.shape[1], _mesh(call.module)
    total = getattr(getattr(call.module, "config", None), "num_attention_heads", None)
    if mesh is None or total == here:
        return Share(0, here, here)
    if isinstance(total, int) and here * mesh.size() == total:
        return Share(mesh.get_local_rank() * here, here, total, mesh)
    if DIMENSION not in (mesh.mesh_dim_names or ()):  # sharded otherwise, such as by FSDP, which attends with all heads
        return Share(0, here, here)
    raise InvalidValue(
        f"{type(call.module).__name__} attends with {here} heads in each of {mesh.size()} processes, and its "
        f"configuration has num_attention_heads = {total!r}, so it is not clear which they are: use one process."
    )


def check_whole(call: AttentionCall) -> None:
    """Raise if other processes have some of the layer's heads."""
    own = share(call)
    if own.mesh is not None:
        raise InvalidValue(
            f"{type(call.module).__name__} has {own.heads} of its {own.total} heads in this process, because the model "
            "runs with tensor parallelism: measure it in one process; undilute.apply takes plans and patterns in all."
        )


def _mesh(module: nn.Module) -> Any:
    """The processes among which parameters of the layer are split, if any are."""
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    for each in module.parameters() if tensors is not None else ():
        if isinstance(each, tensors.DTensor):
            mesh = each.device_mesh
            if mesh.ndim > 1:
                mesh = mesh[DIMENSION] if DIMENSION in (mesh.mesh_dim_names or ()) else None
            return mesh if mesh is not None and mesh.size() > 1 else None
    return None
