"""Undilute inside other people's training loops.

trainer.add_callback(undilute.integrations.DilutionCallback(trainer, every=100))  # Hugging Face Trainer

monitor = undilute.integrations.DilutionMonitor(model, every=100)  # any loop
with monitor:
    loss = model(**batch).loss
monitor.log(print)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undilute.integrations.monitor import DilutionMonitor

if TYPE_CHECKING:
    from undilute.integrations.trainer import DilutionCallback

__all__ = ["DilutionCallback", "DilutionMonitor"]


def __getattr__(name: str) -> Any:
    if name == "DilutionCallback":  # the only one that cannot even be defined without transformers
        from undilute.integrations.trainer import DilutionCallback

        return DilutionCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
