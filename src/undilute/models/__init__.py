"""Real models: load them, and see what they attend to."""

from undilute.models import texts
from undilute.models.capture import Capture, LayerSample, capture
from undilute.models.limits import maximum_length
from undilute.models.loading import known_names, load

__all__ = ["Capture", "LayerSample", "capture", "known_names", "load", "maximum_length", "texts"]
