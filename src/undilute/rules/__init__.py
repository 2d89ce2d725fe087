"""How logits become weights: every rule is a scale and a map.

>>> import torch, undilute as ud
>>> ud.rules.get("ssmax")(torch.tensor([4.0, 0.0, 0.0, 0.0])).round(decimals=3)
tensor([0.7830, 0.0720, 0.0720, 0.0720])

To add a rule, put one file with a ``Map`` or a ``Scale`` and ``@register("name")`` into ``maps/`` or ``scales/``: every
file there is loaded with this package. In your own code, ``@undilute.rules.register("name")`` is all it takes.
"""

from importlib import import_module
from pkgutil import iter_modules

from undilute.rules import maps, scales
from undilute.rules.base import Map, Rule, Scale
from undilute.rules.maps.softmax import Softmax
from undilute.rules.scales.temperature import LearnableTemperature, Temperature
from undilute.rules.scales.entropy_adaptive import EntropyAdaptive
from undilute.rules.scales.entropy_curve import EntropyCurve
from undilute.rules.scales.log_length import LearnableLogLength, LogLength
from undilute.rules.scales.log_n import LogN
from undilute.rules.scales.yarn import YaRN
from undilute.rules.scales.llama4 import Llama4
from undilute.rules.maps.sink import LearnableSink, Sink, Softmax1
from undilute.rules.maps.entmax import Entmax, LearnableEntmax
from undilute.rules.maps.focus import Focus, LearnableFocus
from undilute.rules.scales.pow_log_length import LearnablePowLogLength, PowLogLength
from undilute.rules.maps.sigmoid import Sigmoid
from undilute.rules.maps.self_adjusted import SelfAdjusted
from undilute.rules.maps.softpick import Softpick
from undilute.rules.maps.top_k import TopK
from undilute.rules.maps.hard import Hard
from undilute.rules.maps.normmax import Normmax
from undilute.rules.maps.budget import Budget
from undilute.rules.data import from_data, to_data
from undilute.rules.canonical import text
from undilute.rules.expression import split_names
from undilute.rules.registry import Preset, get, learnable, names, on_register, preset, register, unregister

for _package in (scales, maps):
    for _module in iter_modules(_package.__path__):
        import_module(f"{_package.__name__}.{_module.name}")

__all__ = [
    "Budget",
    "Entmax",
    "EntropyAdaptive",
    "EntropyCurve",
    "Focus",
    "Hard",
    "LearnableEntmax",
    "LearnableFocus",
    "LearnableLogLength",
    "LearnablePowLogLength",
    "LearnableSink",
    "LearnableTemperature",
    "Llama4",
    "LogLength",
    "LogN",
    "Map",
    "Normmax",
    "PowLogLength",
    "Preset",
    "Rule",
    "Scale",
    "SelfAdjusted",
    "Sigmoid",
    "Sink",
    "Softmax",
    "Softmax1",
    "Softpick",
    "Temperature",
    "TopK",
    "YaRN",
    "from_data",
    "get",
    "learnable",
    "names",
    "on_register",
    "preset",
    "register",
    "split_names",
    "text",
    "to_data",
    "unregister",
]
