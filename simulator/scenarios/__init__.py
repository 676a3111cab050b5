"""Built-in scenarios: the one place where the simulator and the reference implementation meet.

scale_up   EP4 -> EP6 over Mooncake: four ranks serve, two join
recovery   a lost rank's slot is taken by a new process
start_up   an expert-parallel start on one node, with the topology probe
demo       both, before and after the repair, with their reports
"""
