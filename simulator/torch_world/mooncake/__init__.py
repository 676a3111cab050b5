"""Simulated Mooncake: the module `mooncake.pg` and the groups behind it, on the control plane of `mooncake_model`.

pg          stand-in for the module: names, signatures, checks
host        answers it: creation, attachment, the process that a group belongs to
calls       answers it for one group: peers, proposals, joining
process     a process's registration with the coordinator
group       a rank's group
comm        where the ranks of a group meet
seats       who sits on which place of a group, and since when
wire        the bytes that ranks write for each other
work        what collectives and messages return
failures    what the others see of a rank that is gone
arguments   what is refused, with Mooncake's texts
"""
