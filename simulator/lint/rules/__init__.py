"""The rules, one module for each kind.

catalogue     all of them
rule          what a rule is
passing_on    HC001: parameters that a group constructor accepts, not passed on
offset_lists  HC002: rank lists compared with a global rank before the offset is in them
group_calls   HC003: groups under a condition that differs between ranks; HC004: groups in the order of a set
joiners       which conditions only those who come later meet
sets          what is a set
roots         HC005: a rank within a group taken for a global one
probes        HC006: topology probes in constructors without a question for the number of nodes
settings      HC007: settings read before the size of the group is known
"""
