"""Where the wheels of the frameworks lie, and what else each version needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.upstream.stubs import Stubs

HOME = Path(__file__).parents[2] / ".venv-upstream"

LIGHT = (
    "aiohttp", "blake3", "cachetools", "cbor2", "cloudpickle", "dill", "distro", "easydict", "einops", "fastapi",
    "httpx", "huggingface_hub", "interegular", "IPython", "llguidance", "loguru", "msgspec", "nvidia-ml-py",
    "openai", "openai-harmony", "orjson", "partial_json_parser", "pillow", "prometheus_client", "psutil",
    "py-cpuinfo", "pybase64", "pydantic", "python-multipart", "pyzmq", "regex", "requests", "safetensors",
    "sentencepiece", "setproctitle", "tiktoken", "tqdm", "typer", "uvicorn", "uvloop", "xxhash", "zstandard",
)  # fmt: skip
"""Real packages, newest versions, with what they depend on: small, and without torch."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One version of a framework.

    Attributes:
        wheels: requirements that are unpacked, and come first on `sys.path`.
        only: what of the framework's own wheel is unpacked; empty: all.
        stubs: packages that are stubs, with the version that they say.
    """

    framework: str
    version: str
    wheels: tuple[str, ...] = ()
    only: str = ""
    stubs: dict[str, str] = field(default_factory=dict)

    @property
    def requirements(self) -> tuple[str, ...]:
        return (f"{self.framework}=={self.version}", *self.wheels)

    def enter(self) -> None:
        """Let this process import it."""
        sys.path[:0] = [str(folder_of(requirement)) for requirement in self.requirements]
        sys.path.append(str(HOME / "light"))
        Stubs(self.stubs).install()


def folder_of(requirement: str) -> Path:
    """Where a wheel is unpacked."""
    return HOME / requirement.replace("==", "-")


_BOTH = ("apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0", "xgrammar==0.2.7", "gguf==0.19.0")
_OLD = ("transformers==5.12.1", "tokenizers==0.22.2", "huggingface-hub==1.33.0", *_BOTH)
_NEW = ("transformers==5.19.0", "tokenizers==0.23.2", *_BOTH)
_SERVING = dict.fromkeys(("torchvision", "flashinfer", "sgl_kernel"), "0.0.0")

ENVIRONMENTS = (
    Environment("megatron-core", "0.16.1"),
    Environment("sglang", "0.5.15", _OLD, stubs=_SERVING),
    Environment("sglang", "0.5.19", _OLD, stubs=_SERVING),
    Environment("sglang", "0.5.20", _OLD, stubs=_SERVING),
    Environment("sglang", "0.5.23", _NEW, stubs=_SERVING),
    Environment("vllm", "0.33.0", _NEW, only="*.py"),
)


def environment(framework: str, version: str) -> Environment:
    """The one of that version."""
    return next(known for known in ENVIRONMENTS if (known.framework, known.version) == (framework, version))
