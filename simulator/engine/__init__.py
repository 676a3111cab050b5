"""The engine: simulated tasks on a simpy clock. It knows nothing of torch.

errors      what a user did wrong, what the simulator did wrong, and how a rank is ended
site        where in user code a call was made
trace       what happened, in order, as data
carrier     how one task is suspended and another resumed (threads or greenlets)
watchdog    the wall clock: a task that never blocks, and progress
task        a task, what it waits for, the bounds of a run
deadlines   time-outs of waits
operations  what tasks do that others can see, in order
lag         tasks that fall behind, so that another order comes about
scheduler   which task runs next, at which virtual time, until when
"""
