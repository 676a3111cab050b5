"""Triton for simulated ranks: which program runs on the calling task, and what is kept for all launches."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulator.engine.carrier import GreenletCarrier
from simulator.engine.site import Stack
from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation
from simulator.triton_world import triton_api
from simulator.triton_world.address_space import AddressSpace
from simulator.triton_world.arguments import WARP, Given, converted, given, grid_of, tensors_in
from simulator.triton_world.builder import KernelBuilder
from simulator.triton_world.errors import IllegalAccess, KernelError, NotModelled, PtxError
from simulator.triton_world.lanes import Branch
from simulator.triton_world.language import install_language
from simulator.triton_world.launch import Launch, resident
from simulator.triton_world.program import Program
from simulator.triton_world.ptx_compile import Compiled, compile_asm
from simulator.triton_world.rewriting import BRANCH, Rewritten, rewrite
from simulator.triton_world.waiting import Watch

STACK_MAX = 8


class TritonWorld:
    """All kernels of a simulation.

    Attributes:
        own_errors: errors whose text says everything.
    """

    own_errors = (IllegalAccess, PtxError, NotModelled)

    def __init__(self, sim: Simulation, patches: Patches) -> None:
        triton_api.check()
        self.sim = sim
        self.watch = Watch(sim)
        self._programs: dict[int, Program] = {}
        self._rewritten: dict[Any, Rewritten] = {}
        self._unused: set[tuple[str, int]] = set()
        self._compiled: dict[tuple[str, str], Compiled] = {}
        self._stacks: dict[tuple[Stack, Stack], Stack] = {}
        semantic = triton_api.make_semantic(KernelBuilder(self))
        self._replaced = install_language(patches, self.program, semantic)
        self._helpers = {**triton_api.names_for_rewritten(semantic), BRANCH: self._branch}
        sim.at_begin.append(self._begin)

    def _begin(self) -> None:
        """A new run."""
        self.watch.begin()
        self._programs.clear()

    # -- programs ----------------------------------------------------------------------------------------------------

    def program(self) -> Program | None:
        """The program that the calling task runs."""
        if not self._programs:
            return None
        task = self.sim.scheduler.here()
        return None if task is None else self._programs.get(task.number)

    def program_here(self) -> Program:
        """
        Raises:
            RuntimeError: the caller runs none.
        """
        program = self.program()
        if program is None:
            raise RuntimeError("an operation of a kernel was used outside of one")
        return program

    @contextmanager
    def running(self, program: Program) -> Iterator[None]:
        """The calling task runs `program`."""
        task = self.sim.scheduler.here()
        assert task is not None
        self._programs[task.number] = program
        try:
            yield
        finally:
            del self._programs[task.number]

    @property
    def threads_carry(self) -> bool:
        """Whether tasks are threads."""
        task = self.sim.scheduler.current
        return task is None or not isinstance(task.carrier, GreenletCarrier)

    def _branch(self, condition: Any, has_else: bool) -> Any:
        return Branch(self.program_here(), condition, has_else)

    # -- launches ----------------------------------------------------------------------------------------------------

    def launch(
        self, context: RankContext, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """`kernel[grid](*args, **kwargs)` by a rank.

        Raises:
            KernelError: a program failed, or the launch asks for what is not modelled.
        """
        name = kernel.fn.__name__
        if self.program() is not None:
            raise KernelError(f"kernel {name} is launched from within a kernel")
        for hook in kernel.pre_run_hooks:
            hook(*args, **kwargs)
        try:
            bound = given(kernel, args, kwargs)
            arguments = converted(kernel, bound.values)
            size = self._size(bound, grid)
        except NotModelled as error:
            raise KernelError(f"kernel {name}: {error} is not modelled") from None
        if 0 in size:
            return
        caller = sys._getframe(1)
        tensors = tensors_in(bound.values.values())
        space = AddressSpace(context.rank, self.sim.memory, tensors, caller)
        stack = self.sim.sites.capture(1)
        launch = Launch(self, context, name, size, lambda: self.call(kernel, (), arguments), space, stack, bound)
        launch.run()

    def _size(self, bound: Given, grid: Any) -> tuple[int, int, int]:
        size = grid_of(grid, bound.values)
        most = resident(bound.warps * WARP)
        if bound.cooperative and size[0] * size[1] * size[2] > most:
            raise ValueError(f"a cooperative grid of {size}, of which {most} programs at most run at once")
        return size

    def call(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a kernel's function, or a device function, for the program of the calling task."""
        function = kernel.fn
        found = self._rewritten.get(function)
        if found is None:
            found = self._rewritten[function] = rewrite(kernel, self._helpers, self._replaced)
            self._unused |= {(function.__code__.co_filename, line) for line in found.unused}
        found.refresh()
        return found.run(*args, **kwargs)

    def compiled(self, asm: str, constraints: str) -> Compiled:
        """Inline assembly, read once."""
        found = self._compiled.get((asm, constraints))
        if found is None:
            found = self._compiled[asm, constraints] = compile_asm(asm, constraints)
        return found

    # -- places ------------------------------------------------------------------------------------------------------

    def is_unused(self, stack: Stack) -> bool:
        """Whether the innermost line has an atomic operation whose result nobody uses."""
        return bool(stack) and (stack[0].file, stack[0].line) in self._unused

    def joined(self, kernel: Stack, launch: Stack) -> Stack:
        """Lines of a kernel that runs on a thread of its own, and of its launch; the same object each time."""
        whole = self._stacks.get((kernel, launch))
        if whole is None:
            whole = self._stacks[kernel, launch] = (*kernel, *launch)[:STACK_MAX]
        return whole

    def place_of(self, error: BaseException) -> str:
        """The innermost line of user code that an exception came through, as `file:line`."""
        place = ""
        for frame, line in traceback.walk_tb(error.__traceback__):
            if self.sim.sites.is_user(frame.f_code):
                place = self.sim.sites.of_frame(frame)[0]._replace(line=line).place
        return place
