"""Which architectures of transformers does Undilute know, and for what?  The table, one line each."""

from __future__ import annotations

from tests.models.zoo import causal, encoders, hybrids, images_and_sounds, own_code, sequences
from tests.models.zoo.architecture import Architecture

TABLES = (causal, hybrids, encoders, sequences, images_and_sounds, own_code)
ZOO: dict[str, Architecture] = {each.model: each for table in TABLES for each in table.ARCHITECTURES}
