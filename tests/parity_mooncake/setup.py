"""Sets up the real Mooncake CPU backend beside a CPU build of torch, on a machine without a GPU.

    python -m tests.parity_mooncake.setup .venv-mooncake

A virtual environment with torch, the wheel of Mooncake, and CUDA's runtime library, which the wheel's extension loads.
What else the extension asks of CUDA is never called by the CPU backend, so small libraries stand in, made by gcc here
from the symbols that the wheel's own files leave undefined: a driver without a device, and torch's two CUDA libraries
without content. A set-up that loads is used again as it is.
"""

from __future__ import annotations

import argparse
import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path

MOONCAKE = "0.3.13.post1"
PACKAGES = ("numpy", f"mooncake-transfer-engine=={MOONCAKE}", "nvidia-cuda-runtime-cu12")
SYSTEM = {"ibverbs": "libibverbs1", "rdmacm": "librdmacm1", "numa": "libnuma1", "curl": "libcurl4"}
TOOLS = ("gcc", "nm")
NO_DEVICE = 100
IMPORT_S = 120
PROBE = "import importlib.metadata as m, torch; from mooncake import pg; print(torch.__version__, m.version('{}'))"
DISTRIBUTION = "mooncake-transfer-engine"


class SetupError(Exception):
    """The real backend cannot be set up; the text says what is missing and what helps."""


def ready(folder: Path) -> dict[str, str] | None:
    """Versions of a set-up that loads; None if there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        return None
    done = _run([str(python), "-W", "ignore", "-c", PROBE.format(DISTRIBUTION)], check=False)
    if done.returncode != 0:
        return None
    torch, mooncake = done.stdout.split()[-2:]
    return {"torch": torch, DISTRIBUTION: mooncake}


def set_up(folder: Path, torch: str, pip_args: Iterable[str] = ()) -> dict[str, str]:
    """Make it if there is none; its versions.

    Raises:
        SetupError: a system library or tool is missing, pip fails, or the result does not load.
    """
    found = ready(folder)
    if found is None:
        _require_system()
        venv.create(folder, with_pip=True)
        _install(folder, torch, list(pip_args))
        package = next(folder.glob("lib/python3*/site-packages/mooncake"))
        make_stand_ins(package)
        found = ready(folder)
    if found is None:
        done = _run([str(folder / "bin" / "python"), "-c", PROBE.format(DISTRIBUTION)], check=False)
        raise SetupError(f"{folder} is there, but the backend does not load: {done.stderr.strip()[-500:]}")
    return found


def _require_system() -> None:
    missing = [package for library, package in SYSTEM.items() if ctypes.util.find_library(library) is None]
    tools = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or tools:
        wanted = " ".join([*missing, *(["gcc", "binutils"] if tools else [])])
        raise SetupError(f"the machine lacks {wanted}: `apt-get install {wanted}`, then again")


def _install(folder: Path, torch: str, pip_args: list[str]) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pip_args]
    local = torch if "+" in torch else f"{torch}+cpu"
    if _run([*pip, f"torch=={local}"], check=False).returncode:
        raise SetupError(f"pip finds no torch {local}; name an index of CPU builds with --pip-args '--index-url URL'")
    done = _run([*pip, *PACKAGES], check=False)
    if done.returncode:
        raise SetupError(f"pip cannot install {', '.join(PACKAGES)}: {done.stderr.strip()[-500:]}")


def make_stand_ins(package: Path) -> None:
    """libcuda.so.1, libc10_cuda.so, libtorch_cuda.so and a link to libcudart.so.12 beside the wheel's extensions.

    They are found there because the extensions look beside themselves first.
    """
    extensions = sorted(package.glob("*.so"))
    driver = {name for name in _undefined(extensions) if name[:2] == "cu" and name[2:3].isupper()}
    torch_cuda = {name for name in _undefined(sorted(package.glob("pg_*.so"))) if "3c104cuda" in name}
    _compile(package / "libcuda.so.1", _driver_source(driver))
    _compile(package / "libc10_cuda.so", _source(torch_cuda, "void", "__builtin_trap();"))
    _compile(package / "libtorch_cuda.so", "int stands_in_for_torch_cuda;")
    runtime = package / "libcudart.so.12"
    if not runtime.exists():
        runtime.symlink_to(os.path.relpath(next(package.parent.glob("nvidia/*/lib/libcudart.so.12")), package))


def _undefined(files: Iterable[Path]) -> set[str]:
    lines = _run(["nm", "-D", "--undefined-only", *map(str, files)]).stdout.splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if " U " in line}


def _driver_source(names: set[str]) -> str:
    """Every function answers that there is no device; the two that explain an answer give a text."""
    texts = names & {"cuGetErrorName", "cuGetErrorString"}
    told = "".join(
        f'int {name}(int code, const char **text) {{ if (text) *text = "no device"; return 0; }}\n'
        for name in sorted(texts)
    )
    return told + _source(names - texts, "int", f"return {NO_DEVICE};")


def _source(names: set[str], returns: str, body: str) -> str:
    return "".join(f"{returns} {name}(void) {{ {body} }}\n" for name in sorted(names)) or "int empty;"


def _compile(library: Path, source: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "source.c"
        text.write_text(source)
        _run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), str(text)])


def _run(command: list[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise SetupError(f"{command[0]} fails: {done.stderr.strip()[-500:]}")
    return done


def main() -> int:
    """Set it up, and say what is there."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity_mooncake.setup", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", default="2.13.0", help="version (default: %(default)s)")
    parser.add_argument("--pip-args", default="", help="for pip, e.g. '--index-url URL'")
    options = parser.parse_args()
    try:
        versions = set_up(options.folder, options.torch, options.pip_args.split())
    except SetupError as error:
        print(f"the real Mooncake backend cannot be set up: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder}: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
