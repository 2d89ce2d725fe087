"""An installed package as tests need one: modules, and a dist-info folder that names their entry points."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, entry_points: str, **modules: str) -> Path:
    """Make the package in ``folder``, which must be on the path for it to count as installed."""
    information = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(entry_points)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    return folder
