"""The entry point of the command: ``undilute`` and ``python -m undilute``."""

from __future__ import annotations

import sys

from undilute.errors import MissingExtra, UndiluteError


def main() -> None:
    """Run the command line; an Undilute error becomes one line on stderr and exit code 2, Ctrl-C exit code 130."""
    try:
        try:
            from undilute.cli import app
        except ModuleNotFoundError as error:
            raise MissingExtra(str(error.name), "cli") from None
        app()
    except UndiluteError as error:
        print(f"undilute: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("undilute: interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
