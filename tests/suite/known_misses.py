"""Patterns of which the simulator does not yet say what their labels say, each with the reason.

A test compares this with what the simulator says: a pattern that fails has to stand here, and one that has become right
has to go.
"""

from __future__ import annotations

_ACCESS = "nothing watches accesses to a tensor between the issue of a call and its wait"
_UNWAITED = "work that nobody waits for is no finding"

KNOWN_MISSES: dict[str, str] = {
    "resource_leak-send_that_nobody_receives": _UNWAITED,
    "resource_leak-receive_that_is_forgotten": _UNWAITED,
    "resource_leak-handle_that_is_dropped": _UNWAITED,
    "resource_leak-one_rank_does_not_wait": _UNWAITED,
    "resource_leak-last_of_a_list_forgotten": _UNWAITED,
    "resource_leak-destroyed_with_a_send_in_flight": "destroy_process_group leaves a message on offer; gloo drops it",
    "request_lifecycle-read_before_the_wait": _ACCESS,
    "request_lifecycle-written_before_the_wait": _ACCESS,
    "request_lifecycle-input_changed_in_flight": _ACCESS,
    "request_lifecycle-one_buffer_for_two_receives": _ACCESS,
    "request_lifecycle-waits_for_the_wrong_handle": _UNWAITED,
    "local_concurrency-two_calls_on_one_tensor": _ACCESS,
    "local_concurrency-thread_writes_what_is_reduced": _ACCESS,
    "local_concurrency-send_and_reduce_one_tensor": _ACCESS,
    "message_race-first_come_taken_for_the_first_rank": "a race names the two sends, not the receive that takes either",
    "message_race-any_source_takes_what_another_receive_needs": "as above",
    "call_matching-skipped_creation_breaks_a_later_group": "on nccl, where creating a group waits for nobody, the "
    "skewed name shows as a cycle of collectives",
    "global_concurrency-device_runs_behind_the_host": "a key that is set after a collective: the ranks that wait for "
    "it are named, not the one that would set it",
    "corpus-B07": "a list that is wrong in the same way on all ranks",
    "corpus-B09": "a send and a receive without partners are two findings, though they would fit each other",
    "corpus-B40s": "messages of one size and tag in each other's place",
}
