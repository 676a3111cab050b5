"""compute-sanitizer finds nothing in the all-gather kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SANITIZER = shutil.which("compute-sanitizer") or ""


@pytest.mark.gpu(count=1)
@pytest.mark.skipif(not SANITIZER, reason="needs compute-sanitizer on the PATH")
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "racecheck"])
def test_compute_sanitizer_is_clean(tool: str) -> None:
    """Ranks on streams; memcheck for addresses, synccheck for barriers, racecheck for shared memory."""
    command = [SANITIZER, "--tool", tool, "--error-exitcode", "9", sys.executable, str(ROOT / "tests/gpu/sanitized.py")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "gathered" in done.stdout
