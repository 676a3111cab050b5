"""What can be wrong with a kernel, and what the interpreter does not do."""

from __future__ import annotations


class KernelError(RuntimeError):
    """A kernel failed. Raised where it was launched; the text names kernel, program and line of the kernel."""


class IllegalAccess(Exception):
    """A kernel touched memory that it cannot reach, or in a way that the hardware does not allow."""


class PtxError(Exception):
    """Inline assembly that an assembler would refuse, or that a run would trap on."""


class NotModelled(Exception):
    """A kernel asks for something that the interpreter does not do."""
