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


def rendered(name: str, scripts: Sequence[str], **values: Any) -> str:
    """The page of the template ``name``.html, with the styles page.css and ``name``.css.

    Parameters
    ----------
    name : of its files in the folder ``templates``
    scripts : files that make up its script, in this order; none for a page without a script
    values : what the template uses
    """
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("jinja2", "plot") from None
    script = "\n".join(_template(each) for each in scripts)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["thousands"] = "{:,}".format
    made = environment.from_string(_template(f"{name}.html")).render(
        style=_template("page.css") + _template(f"{name}.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )
    return made.encode(errors="replace").decode()  # halves of characters, which no file can hold


def _template(name: str) -> str:
    return resources("undilute.report").joinpath("templates", name).read_text(encoding="utf-8")
