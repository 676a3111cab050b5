"""Faults that are put into a run: ranks that die, stall or come late, stores and nodes that cannot be reached.

Map (imports go down only):
    faults          all faults of one run: what the simulation asks
    fault           a fault as a user writes it: its text, and how it is read
    catalogue       the faults that have a name
    processes       kill, restart
    clocks          slow ranks, wrong clocks
    stores          requests that are delayed or lost, servers that end; requests says what comes of one
    joiners         ranks that start late, early or never
    cut             a node that nobody reaches
    injection       what the function of a fault may do: the protocol of all faults
    values          times, ranks, moments: what stands behind an equals sign
    port            what faults need of a simulation

Nothing here knows torch; `simulator.torch_world.fault_port` acts. A fault is a function of an `Injection`, and draws
from a generator of its own, so the same seed gives the same run to the byte.

Not modelled: hardware (a GPU that is lost, memory that flips), disks, a network that is slow or loses part of what it
carries, except between a TCPStore and its clients; pauses as by SIGSTOP; a node that dies as a whole (kill its ranks).
"""

from __future__ import annotations

from simulator.faults.fault import Fault, FaultFunction, described, fault_of
from simulator.faults.injection import InjectedError, Injection

__all__ = ["Fault", "FaultFunction", "InjectedError", "Injection", "described", "fault_of"]
