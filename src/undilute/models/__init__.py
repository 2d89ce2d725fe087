"""Real models: load them, and see what they attend to."""

from undilute.models import texts
from undilute.models.capture import Capture, LayerSample, capture
from undilute.models.limits import maximum_length, readable_length
from undilute.models.loading import known_names, load
from undilute.models.text_loss import losses, windows
from undilute.models.texts import beginning, halves, tokenised
from undilute.models.watch import watch
from undilute.models.watched_call import WatchedCall

__all__ = [
    "Capture",
    "LayerSample",
    "WatchedCall",
    "beginning",
    "capture",
    "halves",
    "known_names",
    "load",
    "losses",
    "maximum_length",
    "readable_length",
    "texts",
    "tokenised",
    "watch",
    "windows",
]
