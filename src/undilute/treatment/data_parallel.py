"""Would what is learned stay the same in all processes?

Data-parallel training (DistributedDataParallel, FSDP) shares the parameters that a model has when it is wrapped. Each
process trains later additions for itself, and the processes silently drift apart. FSDP can be seen on the modules that
it shards; DistributedDataParallel leaves no trace on the model inside it, so we look for it among all objects of the
process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch import distributed, nn

from undilute.errors import InvalidValue


def check_not_wrapped(model: nn.Module) -> None:
    """Raise if the model, which is to get parameters, or a part of it is in data-parallel training already."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if any(_around(model)):
        gc.collect()  # what nobody uses any more may still be there
    for name in _around(model):
        raise InvalidValue(
            f"the model is already in a {name}, which shares only the parameters that it found when it was made, so "
            "what the rules learn would drift apart between the processes: apply the rules first, then wrap the model."
        )


def _around(model: nn.Module) -> Iterator[str]:
    """Names of the classes whose instances are wrapped around the model or parts of it."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    kinds = (nn.parallel.DistributedDataParallel, FullyShardedDataParallel, FSDPModule)
    own = {id(part) for part in model.modules()}
    for each in gc.get_objects():
        if issubclass(type(each), kinds) and any(id(part) in own for part in each.modules()):
            yield type(each).__name__
