"""From records to findings: pure functions over plain data, no torch, nothing printed.

findings    what a finding is
facts       small questions to the records (who is alive, what did it do instead)
contracts   new_group: the same calls, in one order, with one list each
roles       joiners whose groups reach too far or run alone; probes
deadlock    who waits for whom, when nothing could move any more
diagnose    all of them, in the order in which a reader wants them
"""
