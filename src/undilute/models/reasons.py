"""What went wrong inside a library, in one line?"""

from __future__ import annotations

import textwrap


def one_line(error: BaseException) -> str:
    """The message of ``error`` without line breaks and final full stop, shortened; its type if it has none.

    >>> one_line(ValueError("Too bad.\\nSorry."))
    'Too bad. Sorry'
    >>> one_line(KeyError())
    'KeyError'
    """
    return textwrap.shorten(str(error), 240, placeholder=" …").rstrip(".") or type(error).__name__
