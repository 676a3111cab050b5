"""Lets ranks launch Triton kernels: puts our launcher in place of Triton's, once the program imports Triton.

Triton is not imported here. Until a rank launches a kernel, three classes are patched: `JITFunction`,
`InterpretedFunction` (of TRITON_INTERPRET=1) and `Autotuner`. The first launch brings the interpreter.

Not modelled: tuning. A tuned kernel runs with the first configuration that its pruning leaves.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation
from simulator.triton_world.import_watch import ImportWatch

_CLASSES = {
    "triton.runtime.jit": "JITFunction",
    "triton.runtime.interpreter": "InterpretedFunction",
    "triton.runtime.autotuner": "Autotuner",
}


class TritonHooks:
    """What is patched in Triton while a simulation is installed. Use: `start`, and `stop` in the end."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._patches = Patches()
        self._watch = ImportWatch(_CLASSES, self._imported)
        self._world: Any = None

    def start(self) -> None:
        """Patch Triton now, if it is there, or when it gets imported."""
        self._watch.start()

    def stop(self) -> None:
        """Put everything back."""
        self._watch.stop()
        self._patches.undo()
        self._world = None

    def _imported(self, module: ModuleType) -> None:
        kind = getattr(module, _CLASSES[module.__name__])
        if module.__name__ == "triton.runtime.autotuner":
            self._patch_tuner(kind)
        else:
            self._patch_run(kind)
            self._patch_call(kind)

    def world(self) -> Any:
        """The interpreter, brought in at the first launch."""
        if self._world is None:
            from simulator.triton_world.world import TritonWorld

            self._world = TritonWorld(self._sim, self._patches)
        return self._world

    def _patch_run(self, kind: Any) -> None:
        sim, real = self._sim, kind.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            context = sim.here()
            if context is None:
                return real(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if not warmup:
                self.world().launch(context, kernel, grid, args, kwargs)
            return None

        self._patches.set(kind, "run", run)

    def _patch_call(self, kind: Any) -> None:
        """A device function is called by a kernel."""
        real = kind.__call__

        def call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if self._world is None or self._world.program() is None:
                return real(kernel, *args, **kwargs)
            return self._world.call(kernel, args, kwargs)

        self._patches.set(kind, "__call__", call)

    def _patch_tuner(self, kind: Any) -> None:
        sim, real = self._sim, kind.run

        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            if sim.here() is None:
                return real(tuner, *args, **kwargs)
            return _run_first(tuner, args, kwargs)

        self._patches.set(kind, "run", run)


def _run_first(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a tuned kernel with its first configuration."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    try:
        config = tuner.prune_configs(kwargs)[0] if len(tuner.configs) > 1 else tuner.configs[0]
        whole = {**tuner.nargs, **kwargs, **config.all_kwargs()}
    finally:
        tuner.nargs = None
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook(whole)
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())
