"""Real models: load them, and see what they attend to."""

from undilute.models import texts
from undilute.models.capture import Capture, LayerSample, capture
from undilute.models.limits import maximum_length
from undilute.models.loading import known_names, load
from undilute.models.watch import watch
from undilute.models.watched_call import WatchedCall

__all__ = [
    "Capture",
    "LayerSample",
    "WatchedCall",
    "capture",
    "known_names",
    "load",
    "maximum_length",
    "texts",
    "watch",
]
