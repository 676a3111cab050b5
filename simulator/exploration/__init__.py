"""Many schedules of one program: does its outcome depend on who is slow?

    exploration = explore(work, 4, schedules=200)
    exploration.raise_if_bad()

explore     runs the program under many schedules, and says what came of them
program     what is run: a function on ranks, a cluster, a script
plans       which schedules to try: random, pct, depth-first; recipes: one of them, before it has been run
trial       one run under one schedule, and what is kept of it
execution   trials in this process, in others, on other machines
order       which operations of a run conflict, which of them could have come in another order
values      what can be compared of what ranks return
shrinking   the fewest delays that lead to the same outcome
swap        which two events came in another order
judgement   what the trials say: the verdict, and a race with its two outcomes
exploration what came of it
wording     operations and tasks in words
schedule    who is delayed where, as data and as text
"""
