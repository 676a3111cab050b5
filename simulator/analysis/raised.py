"""What an exception that a rank raised asks for: a mend, simulated GPUs, or what the simulator does not model.

Goes by the words of the exception and by the file that raised it. Not modelled: exceptions that the code under test
raises in place of one of these.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.analysis.findings import Certainty
from simulator.records import RankRecord

_NOT_MODELLED = ("not modelled", "not simulated")
_WITHOUT_GPUS = (
    "module 'torch._C' has no attribute '_cuda",
    "Torch not compiled with CUDA enabled",
    "PyTorch is not linked with support for cuda devices",
    "with arguments from the 'CUDA' backend",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "torch.cuda.is_available() is False",
    "no GPUs found",
    "Cannot access accelerator device when none is available",
    "Tried to instantiate dummy base class",
)


class Advice(NamedTuple):
    """What a report says about an exception."""

    cause: str
    remedy: str
    certainty: Certainty = Certainty.CAUSE


def advice_on(record: RankRecord) -> Advice:
    """The cause and the remedy of the end of a rank that raised or left with an exit code."""
    if not record.error_type:
        return Advice("the exit code", "let the rank end with 0, or mend what makes it leave")
    if is_refusal(record):
        return Advice(
            "the simulator does not model what this line asks for; a real run may do it without an error",
            "let the code under test leave it out in a simulation; docs/limits.md names what is modelled instead",
            Certainty.UNDECIDED,
        )
    if "EADDRINUSE" in record.error and record.cohort != "launch":
        return Advice(
            "it started the store's server, as rank 0 of a launch does, where the launched rank 0 has one already: its "
            "number is not shifted",
            "shift the joiners' ranks by rank_offset, so that none of them is rank 0",
        )
    if not record.has_gpus and _wants_gpus(record):
        return Advice(
            "the code asks for a GPU, and the ranks have none",
            'give them simulated GPUs: --accelerator cuda (in Python: accelerator="cuda")',
        )
    return Advice("the exception", "mend what raises it, or let all ranks take the path that handles it")


def is_refusal(record: RankRecord) -> bool:
    """The simulator refused, and says so: the code under test may be right."""
    return any(words in record.error for words in _NOT_MODELLED)


def _wants_gpus(record: RankRecord) -> bool:
    files = [line for line in record.traceback.splitlines() if line.lstrip().startswith('File "')]
    raised_in = files[-1].replace("\\", "/") if files else ""
    return any(words in record.error for words in _WITHOUT_GPUS) or "/torch/cuda/" in raised_in
