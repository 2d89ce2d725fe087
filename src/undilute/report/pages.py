"""How does a page become one file?  With style and script inside, so that it works from a disk, without a network.

A content security policy in the template forbids every request, and every script but the one whose hash it names. All
text is escaped, wherever it comes from.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files as resources
from typing import Any

from undilute.errors import MissingExtra

HERE = "undilute.report"


def rendered(
    template: str, *, styles: Sequence[str], scripts: Sequence[str], package: str = HERE, **values: Any
) -> str:
    """The page of a template.

    Parameters
    ----------
    template, styles, scripts : files in the folder ``templates`` of the package, or else of this one, in this order;
        a page without scripts has no script at all
    package : where to look first
    values : what the template uses
    """
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("jinja2", "plot") from None

    def text(name: str) -> str:
        path = resources(package).joinpath("templates", name)
        return (path if path.is_file() else resources(HERE).joinpath("templates", name)).read_text(encoding="utf-8")

    script = "\n".join(map(text, scripts))
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["thousands"] = "{:,}".format
    made = environment.get_template(template).render(
        style="\n".join(map(text, styles)),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )
    return made.encode(errors="replace").decode()  # halves of characters, which no file can hold
