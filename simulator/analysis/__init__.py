"""From records to findings: pure functions over plain data, no torch, nothing printed.

findings    what a finding is
facts       small questions to the records (who is alive, what did it do instead)
contracts   new_group: same calls, same order, same lists; cohorts; probes
deadlock    who waits for whom, when nothing could move any more
diagnose    all of them, in the order in which a reader wants them
"""
