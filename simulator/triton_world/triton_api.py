"""All that is used of Triton's inside, in one place: its interpreter is private, and changes between releases.

Works with Triton 3.6 to 3.9. `check` says what a version lacks. Importing this module imports Triton's interpreter,
which a program that launches no kernel in a rank never does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter, jit

from simulator.engine.errors import UsageError

OLDEST = "3.6"
_NEEDED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        interpreter,
        ("InterpreterBuilder", "TensorHandle", "FunctionRewriter", "_patch_lang", "_implicit_cvt", "_get_np_dtype"),
    ),
    (jit, ("JITFunction", "KernelParam")),
    (ir, ("MEM_SEMANTIC", "MEM_SYNC_SCOPE", "ATOMIC_OP")),
    (tl.core, ("is_builtin", "builtin")),
)
_BUILDER_NEEDED = (
    "create_masked_load",
    "create_masked_store",
    "create_atomic_cas",
    "create_atomic_rmw",
    "create_inline_asm",
    "create_barrier",
    "create_splat",
    "create_extern_elementwise",
)

VERSION = tuple(int(part) for part in triton.__version__.split("+")[0].split(".")[:2])
BARRIERS_AROUND_ATOMICS = VERSION >= (3, 9)
"""Since 3.9 an atomic operation that releases has a CTA barrier before it, and one that acquires has one behind."""

TensorHandle: Any = getattr(interpreter, "TensorHandle", None)
InterpreterBuilder: Any = getattr(interpreter, "InterpreterBuilder", object)
block_type: Any = tl.block_type
tensor: Any = tl.tensor
int1: Any = tl.int1
constexpr: Any = tl.constexpr


def check() -> None:
    """
    Raises:
        UsageError: the installed version has not what is needed.
    """
    missing = [f"{owner.__name__}.{name}" for owner, names in _NEEDED for name in names if not hasattr(owner, name)]
    missing += [f"InterpreterBuilder.{name}" for name in _BUILDER_NEEDED if not hasattr(InterpreterBuilder, name)]
    if missing:
        raise UsageError(
            f"Triton {triton.__version__} has no {', '.join(missing)}: kernels of simulated ranks need Triton "
            f"{OLDEST} to 3.9, or a newer one with the same interpreter"
        )


# -- the language ----------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """What Triton's interpreter puts in place of a name of the language while a kernel runs.

    Attributes:
        is_builtin: a function that wants the keyword `_semantic`, and needs no replacement but that.
    """

    owner: Any
    name: str
    original: Any
    interpreted: Any
    is_builtin: bool


def changes_of_language() -> list[Change]:
    """All of them, found by letting Triton make and undo them."""
    names = {"tl": tl, "core": tl.core}
    scope = interpreter._patch_lang(FunctionType((lambda: None).__code__, names))
    made: dict[tuple[int, str], tuple[Any, str, Any]] = {}
    for owner, name, original in scope._changes:
        made.setdefault((id(owner), name), (owner, name, original))
    interpreted = {key: inspect.getattr_static(owner, name) for key, (owner, name, _) in made.items()}
    changed_twice = {
        (id(owner), name) for owner, name, original in scope._changes if original is not made[id(owner), name][2]
    }
    scope.restore()
    return [
        Change(owner, name, original, interpreted[key], tl.core.is_builtin(original) and key not in changed_twice)
        for key, (owner, name, original) in made.items()
    ]


def is_missing(original: Any) -> bool:
    """The language has no such name without the interpreter."""
    return original is getattr(interpreter, "_MISSING", None)


def is_builtin(value: Any) -> bool:
    """Whether it is an operation of the language."""
    return bool(tl.core.is_builtin(value))


def mark_builtin(function: Any) -> None:
    """Let Triton's compiler take a replacement for what it replaces."""
    setattr(function, tl.core.TRITON_BUILTIN, True)


def make_semantic(builder: Any) -> Any:
    """The object that turns operations of the language into calls of a builder."""
    return TritonSemantic(builder)


# -- functions -------------------------------------------------------------------------------------------------------


def transformer() -> Any:
    """Rewrites the syntax tree of a kernel for the interpreter; one for each use, so nothing is shared."""
    return type(interpreter.FunctionRewriter.ast_transformer)()


def names_for_rewritten(semantic: Any) -> dict[str, Any]:
    """What the rewritten code looks up by name."""
    comparison = getattr(interpreter, "_InterpreterComparison", None)
    return {"interpreter_semantic": semantic, "_InterpreterComparison": comparison}


def parameters(function: Callable[..., Any]) -> list[Any]:
    """The parameters of a kernel, with `name`, `is_constexpr` and `annotation_type`."""
    signature = inspect.signature(function)
    return [jit.KernelParam(at, each, False, False) for at, each in enumerate(signature.parameters.values())]


def source_of(kernel: Any) -> tuple[list[str], int]:
    """Source lines, decorators first, and the number of the first.

    Raises:
        OSError: there is no source.
    """
    if hasattr(kernel, "raw_src") and hasattr(kernel, "starting_line_number"):
        return list(kernel.raw_src), int(kernel.starting_line_number)
    lines, first = inspect.getsourcelines(kernel.fn)
    return lines, max(first, 1)


def is_kernel(value: Any) -> bool:
    """Whether it is a `@triton.jit` function of either kind."""
    return isinstance(value, jit.JITFunction | interpreter.InterpretedFunction)


def debug_wanted(kernel: Any) -> bool:
    """Whether device asserts are on."""
    return bool(getattr(kernel, "debug", False) or triton.knobs.runtime.debug)


# -- values ----------------------------------------------------------------------------------------------------------


def argument(value: Any, annotation: str) -> Any:
    """An argument of a launch as the interpreter has it; an integer has the type of its annotation, if there is one.

    Raises:
        OverflowError: the value does not fit the type.
    """
    of = _INTEGERS.get(annotation)
    if of is None or isinstance(value, bool) or not isinstance(value, int):
        return interpreter._implicit_cvt(value)
    data = np.array([value], interpreter._get_np_dtype(of))
    return tl.tensor(TensorHandle(data, of), of)


_INTEGERS: dict[str, Any] = {
    f"{kind}{bits}": getattr(tl, f"{'u' if kind == 'u' else ''}int{bits}") for kind in "iu" for bits in (8, 16, 32, 64)
}


@cache
def numpy_dtype(of: Any) -> np.dtype[Any]:
    """NumPy's type for the values of a type of Triton."""
    dtype: np.dtype[Any] = np.dtype(interpreter._get_np_dtype(of))
    return dtype


def ptx_type(of: Any) -> str:
    """PTX's name of a scalar type of Triton."""
    name = str(of.scalar)
    if name == "bf16":
        return "bf16"
    kind = {"int": "s", "uint": "u", "fp": "f"}[name.rstrip("0123456789")]
    return f"{kind}{name.lstrip('abcdefghijklmnopqrstuvwxyz')}"


ORDERS: dict[Any, str] = {
    ir.MEM_SEMANTIC.RELAXED: "relaxed",
    ir.MEM_SEMANTIC.ACQUIRE: "acquire",
    ir.MEM_SEMANTIC.RELEASE: "release",
    ir.MEM_SEMANTIC.ACQUIRE_RELEASE: "acq_rel",
}
SCOPES: dict[Any, str] = {
    ir.MEM_SYNC_SCOPE.CTA: "cta",
    ir.MEM_SYNC_SCOPE.GPU: "gpu",
    ir.MEM_SYNC_SCOPE.SYSTEM: "sys",
}
OPERATIONS: dict[Any, str] = {
    ir.ATOMIC_OP.ADD: "add",
    ir.ATOMIC_OP.FADD: "add",
    ir.ATOMIC_OP.MIN: "min",
    ir.ATOMIC_OP.UMIN: "min",
    ir.ATOMIC_OP.MAX: "max",
    ir.ATOMIC_OP.UMAX: "max",
    ir.ATOMIC_OP.AND: "and",
    ir.ATOMIC_OP.OR: "or",
    ir.ATOMIC_OP.XOR: "xor",
    ir.ATOMIC_OP.XCHG: "exch",
}


def launch_options() -> frozenset[str]:
    """Keywords of a launch that are no parameters of the kernel."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return frozenset((*vars(CUDAOptions)["__dataclass_fields__"], "num_warps", "num_stages", "num_ctas"))


def modules() -> dict[str, ModuleType]:
    """The modules whose classes are patched, by name."""
    from triton.runtime import autotuner

    return {each.__name__: each for each in (jit, interpreter, autotuner)}
