"""q, k, v and a rule → output: one call, checked once, sent to the route that suits it."""

from undilute.engine.api import attention

__all__ = ["attention"]
