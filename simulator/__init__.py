"""hangcheck's simulator: run real torch.distributed code for N ranks in one process, and be told who waits for whom.

    from simulator import Cluster

    cluster = Cluster(nodes=1)
    cluster.launch(serve, ranks=4)
    cluster.join(grow, ranks=2, rank_offset=4, at_s=1.0)
    cluster.run().raise_if_bad()

Map of the code (imports go down only):
    cli             the command: run_command (torchrun, job_arguments, launcher, progress below it), explore_command,
                    replay_command, faults_command, and the demo
    pytest_plugin   fixtures; checked_cluster below it
    exploration/    many schedules of one program: who is slow, and does it matter
    lint/           static checks of source; needs no torch
    scenarios/      the demo and other built-in scenarios: the one place where simulator and refimpl meet
    cluster         what a user writes: nodes, cohorts, joins -> Outcome; options, cohort, outcome beside it
    run             one simulation, from its start to its outcome
    report/         findings to text and JSON; the only place that prints, with the commands
    analysis/       pure functions from records to findings
    torch_world/    the only owner of torch's and Python's process-wide state
    triton_world/   Triton kernels that ranks launch, interpreted
    faults/         faults that are put into a run; knows nothing of torch
    fake_pg         the process groups of the simulated backends; collective_calls, message_calls, work, message_work
                    and monitored belong to it
    device_work     what the device of a rank does while its host goes on; device, device_queue, device_tensors,
                    contacts below it
    gpu_groups      which devices a group takes, where ranks have simulated GPUs
    communicator    where the ranks of a group meet; collectives, arguments, backends below it, and
                    early_exits, for those who leave before all have met
    mooncake_model/ Mooncake's control plane: processes, groups, proposals, decisions; no torch
    barrier_model   simpy model of barriers: world, cohort, store, membership
    records         plain data that a run leaves; memory_records beside it, for memory that ranks share
    engine/         scheduler, carriers, virtual clock, trace; knows nothing of torch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.analysis.findings import Certainty, Finding, Level, Verdict
    from simulator.cluster import Cluster, simulate
    from simulator.engine.errors import HangcheckError, SimulatorFault, UsageError
    from simulator.engine.scheduler import Limits
    from simulator.exploration.exploration import Exploration, ExplorationFailed
    from simulator.exploration.explore import explore
    from simulator.exploration.schedule import Schedule
    from simulator.options import ClusterOptions
    from simulator.outcome import Outcome, SimulationFailed

_HOME = {
    "Cluster": "simulator.cluster",
    "ClusterOptions": "simulator.options",
    "Outcome": "simulator.outcome",
    "SimulationFailed": "simulator.outcome",
    "simulate": "simulator.cluster",
    "Finding": "simulator.analysis.findings",
    "Verdict": "simulator.analysis.findings",
    "Level": "simulator.analysis.findings",
    "Certainty": "simulator.analysis.findings",
    "Limits": "simulator.engine.scheduler",
    "HangcheckError": "simulator.engine.errors",
    "UsageError": "simulator.engine.errors",
    "SimulatorFault": "simulator.engine.errors",
    "explore": "simulator.exploration.explore",
    "Exploration": "simulator.exploration.exploration",
    "ExplorationFailed": "simulator.exploration.exploration",
    "Schedule": "simulator.exploration.schedule",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
