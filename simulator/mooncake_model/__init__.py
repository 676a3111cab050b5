"""Mooncake's control plane: who is alive, who belongs to which group, who takes part. No torch, no data.

timing        how long things take
agents        one process as the coordinator knows it
groups        one group's members, mask and epoch
proposals     requests to change who takes part, in order
coordinator   the state machine that all of it belongs to

It stands on the simpy environment of a run. Heartbeats are not simulated one by one: while a process lives, nothing
that follows from them can be seen, so only its end is an event, timed from the last beat before it. Not modelled: the
network (a message takes no time), a process that lives but is cut off or stopped, links that fail between living ones.

Source: mooncake-pg of Mooncake (coordinator, agent, worker) read; results measured on 0.3.13.post1 (docs/mooncake.md).
"""
