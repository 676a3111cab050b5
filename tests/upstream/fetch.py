"""Fetch the wheels of the frameworks and unpack them: `python -m tests.upstream.fetch`, as `make upstream` does.

Nothing is installed into the environment of hangcheck: wheels are unpacked below `.venv-upstream/`, and a run puts
their folders on its own `sys.path`. pip fetches them by name and version.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

from tests.upstream.environments import ENVIRONMENTS, HOME, LIGHT, folder_of

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def fetch() -> None:
    """What is there already is left as it is."""
    for environment in ENVIRONMENTS:
        for requirement in environment.requirements:
            own = requirement.startswith(f"{environment.framework}==")
            unpack(requirement, environment.only if own else "")
    light = HOME / "light"
    if not (light / ".done").exists():
        subprocess.run([*_PIP, "install", "--upgrade", "--target", str(light), *LIGHT], check=True)
        (light / ".done").touch()


def unpack(requirement: str, only: str) -> None:
    """Download a wheel and unpack the files that match `only`; the wheel itself is not kept."""
    folder = folder_of(requirement)
    if (folder / ".done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as download:
        options = ("--no-deps", "--only-binary", ":all:", "--dest", download)
        subprocess.run([*_PIP, "download", *options, requirement], check=True)
        with ZipFile(next(Path(download).glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if not only or fnmatch(name, only) or "dist-info" in name]
            wheel.extractall(folder, names)
    (folder / ".done").touch()


if __name__ == "__main__":
    fetch()
