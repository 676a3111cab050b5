"""One launch of a kernel by a rank: its programs, which of them run at once, what becomes of an error.

Programs are tasks of their rank, since on a device they run at the same time and may wait for each other. They start
in the order of their numbers, the next one when those before have ended or wait. As many are under way at once as an
H100 or H200 can have threads for (`resident`): a program beyond that waits for another to end.

Not modelled: registers and shared memory, which may let a real device run fewer of them at once; streams: the launch
returns once all programs have ended, as if the host synchronised after each kernel.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Hashable, Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from simulator.engine.errors import RankEnded
from simulator.engine.scheduler import Task, Wait
from simulator.engine.site import Stack
from simulator.torch_world.context import RankContext
from simulator.torch_world.host_order import await_stream
from simulator.triton_world.address_space import AddressSpace
from simulator.triton_world.arguments import WARP, Given
from simulator.triton_world.errors import KernelError
from simulator.triton_world.program import Program

if TYPE_CHECKING:
    from simulator.triton_world.world import TritonWorld

MULTIPROCESSORS = 132
"""Of an H100 or H200 (SXM)."""
THREADS_EACH = 2048
"""Threads that a multiprocessor holds at most."""
PROGRAMS_EACH = 32
"""Programs that a multiprocessor holds at most."""


def resident(threads: int) -> int:
    """How many programs of so many threads an H100 or H200 can have under way at once."""
    return MULTIPROCESSORS * max(1, min(PROGRAMS_EACH, THREADS_EACH // threads))


class _GivenUp(BaseException):
    """Unwinds a program whose launch has failed."""


class Launch:
    """One launch.

    Args:
        name: of the kernel.
        grid: number of programs along x, y, z.
        body: runs the kernel for the program that the calling task runs.
        space: the memory that it can reach.
        stack: where it was launched.
        given: its options.
    """

    def __init__(
        self,
        world: TritonWorld,
        context: RankContext,
        name: str,
        grid: tuple[int, int, int],
        body: Callable[[], None],
        space: AddressSpace,
        stack: Stack,
        given: Given,
    ) -> None:
        self.world = world
        self.rank = context.rank
        self.name = name
        self.grid = grid
        self.threads = given.warps * WARP
        self.debug = given.debug
        self._resident = resident(self.threads)
        self.space = space
        self.stack = stack
        self.number = world.sim.memory.next_launch(context.rank)
        self._context = context
        self._launcher = world.sim.scheduler.current
        self._body = body
        self._programs: Iterator[tuple[int, tuple[int, int, int]]] = enumerate(product(*map(range, grid)))  # type: ignore[arg-type]
        self._next = next(self._programs, None)
        self._workers: list[Task] = []
        self._under_way = 0
        self._failed: tuple[Program, BaseException] | None = None

    @property
    def not_started(self) -> str:
        """How many programs have not started, for people; empty if all have."""
        if self._next is None:
            return ""
        left = self.grid[0] * self.grid[1] * self.grid[2] - self._next[0]
        return f"; {left} programs have not started, as {self._resident} at most run at once"

    @property
    def others_may_write(self) -> bool:
        """Whether the rank has threads that may write to private memory meanwhile, which nobody would see."""
        own = {self._launcher, *self._workers}
        return any(task.alive for task in self._context.tasks if task not in own)

    def token(self, what: str) -> Hashable:
        """What the host publishes before, and the programs after."""
        return ("launch", self.rank, self.number, what)

    def run(self) -> None:
        """Run all programs.

        Raises:
            KernelError: one of them failed.
        """
        memory, sim = self.world.sim.memory, self.world.sim
        await_stream(sim)
        sim.log("kernel", self.name, self.grid)
        memory.publish(self.rank, self.token("begin"))
        try:
            self._work()
            for task in self._workers:
                text = f"kernel {self.name}: its programs"
                sim.scheduler.join(task, Wait("kernel", text, self.stack))
        finally:
            self._end_workers()
            self.space.forget_caller()
        memory.observe(self.rank, self.token("end"))
        sim.scheduler.progress()
        if self._failed is not None:
            program, error = self._failed
            raise KernelError(self._text(program, error)) from error

    def _text(self, program: Program, error: BaseException) -> str:
        place = self.world.place_of(error)
        what = str(error) or type(error).__name__
        text = what if isinstance(error, self.world.own_errors) else f"{type(error).__name__}: {what}"
        return f"{program}{', ' + place if place else ''}: {text}"

    # -- programs ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Run programs until none is left to start."""
        while self._next is not None and self._failed is None:
            number, ids = self._next
            self._next = next(self._programs, None)
            self._run(Program(self, number, ids))

    def _run(self, program: Program) -> None:
        self._under_way += 1
        try:
            with self.world.running(program), np.errstate(all="ignore"):
                program.begin()
                self._body()
                program.end()
        except _GivenUp:
            pass
        except RankEnded:
            raise
        except BaseException as error:
            self._fail(program, error)
        finally:
            self._under_way -= 1
            self.world.sim.scheduler.switches += 1  # the watchdog sees that something gets done

    def _fail(self, program: Program, error: BaseException) -> None:
        if self._failed is None:
            self._failed = (program, error)
        self.world.watch.wake(self)

    def before_wait(self) -> None:
        """The calling program is about to wait: another may start meanwhile."""
        if self._next is not None and self._under_way < self._resident and self._failed is None:
            self._start_worker()

    def after_wait(self) -> None:
        """
        Raises:
            _GivenUp: another program has failed.
        """
        if self._failed is not None:
            raise _GivenUp

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        name = f"r{self.rank}/{self.name}#{self.number}.{len(self._workers) + 1}"
        scheduler = self.world.sim.scheduler
        self._under_way += 1  # from now on, so that no second one starts for the same program

        def work() -> None:
            self._under_way -= 1
            self._work()

        if self.world.threads_carry:
            task, run = scheduler.adopt(name, self._context, work)
            _thread.start_new_thread(run, ())
        else:
            task = scheduler.spawn(name, self._context, work)
        self._workers.append(task)
        self._context.tasks.append(task)

    def _end_workers(self) -> None:
        """They have ended, but if the launching thread is being unwound."""
        for task in self._workers:
            self.world.sim.scheduler.end_task(task, RankEnded("killed"))
            self._context.tasks.remove(task)
