"""Puts simulated GPUs in place: opt-in, for the time of a stage. docs/design.md says why it is done so."""

from __future__ import annotations

from torch import overrides
from torch.utils import _device

from simulator.torch_world.context import RankContext
from simulator.torch_world.gpu.answers import install_answers
from simulator.torch_world.gpu.autocast import install_autocast
from simulator.torch_world.gpu.classes import install_classes
from simulator.torch_world.gpu.factories import install_factories
from simulator.torch_world.gpu.operators import GpuOperators
from simulator.torch_world.gpu.rank import RankGpus
from simulator.torch_world.gpu.saving import install_saving
from simulator.torch_world.gpu.streams import RankStreams
from simulator.torch_world.gpu.tensors import install_tensors
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


class GpuStage:
    """Installs simulated GPUs for the first run that asks for them, and takes them away with the stage."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._patches: Patches | None = None

    def install(self) -> None:
        """Let torch speak of GPUs, in the ranks to which `give_gpus` gives some."""
        if self._patches is None:
            patches = self._patches = Patches()
            _install(patches, self._sim)
            patches.follow_imports()

    def close(self) -> None:
        """Put everything back."""
        patches, self._patches = self._patches, None
        if patches is not None:
            patches.undo()


def _install(patches: Patches, sim: Simulation) -> None:
    _fill_tables()
    patches.set(_device, "CURRENT_DEVICE", vars(_device)["CURRENT_DEVICE"])
    install_answers(patches, sim)
    install_factories(patches, sim)
    install_tensors(patches, sim)
    install_classes(patches, sim)
    install_saving(patches, sim)
    install_autocast(patches, sim)


def _fill_tables() -> None:
    """torch makes tables of its own functions when one is first asked for. Let it be now, before any is replaced."""
    from torch.jit import _builtins

    vars(_builtins)["_get_builtin_table"]()
    vars(_device)["_device_constructors"]()
    overrides.get_default_nowrap_functions()
    overrides.get_testing_overrides()
    overrides.get_overridable_functions()


def give_gpus(sim: Simulation, context: RankContext) -> None:
    """A new rank sees the GPUs of its node."""
    gpus = RankGpus(sim, context)
    gpus.streams = RankStreams(sim, context)
    gpus.operators = GpuOperators(gpus)
    context.gpus = gpus
