"""What can be mutated, and which tests may see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Sources to mutate, and the tests that may see it: files by pattern, or single tests (`path::name`).

    Attributes:
        tests: those that start no process, except a server.
        processes: those that start processes, left out by --alone.
        late: tests that reach this file need a server; they come last, and --unserved leaves them out.
    """

    sources: str
    tests: tuple[str, ...]
    processes: tuple[str, ...] = ()
    late: str = ""


CONDUCTOR = "tests/unit/infra/gang"
ALONE = ("conductor_run", "generation", "generation_run", "liveness", "liveness_limits", "members", "recovery")
CONDUCTED = (
    "a_gang_trains_to_the_end",
    "a_node_that_is_lost_takes_the_others_with_it",
    "a_users_error_on_one_node_is_the_cause_whatever_the_others_say",
    "a_budget_is_spent_and_then_the_cause_raised",
    "a_missing_node_is_named_and_the_others_are_released",
    "a_supervisor_that_cannot_start_is_said_at_once",
    "what_starts_the_nodes_may_be_away_for_a_while",
    "a_finished_training_is_returned_without_a_launch",
    "it_says_from_which_step_it_goes_on_and_why",
    "it_goes_back_to_a_step_as_asked",
    "a_training_that_broke_off_after_its_last_step_hands_over_that_checkpoint",
    "a_corrupt_checkpoint_is_passed_over",
    "the_selected_checkpoint_is_handed_over_and_kept",
)
RECOVERED = (
    "out_of_memory_goes_on_once_with_half_the_micro_batch",
    "what_diverged_is_passed_over_by_this_conductor_and_by_the_next",
    "a_gang_grows_after_a_checkpoint_when_a_node_comes_late",
    "a_node_that_failed_twice_is_left_out_and_named",
    "an_error_before_a_generation_begins_is_not_tried_again",
)
STORE = "tests/unit/infra/store"
# Of a store: a server of S3 is the only process that these start.
STORED = (
    "approval", "attempts", "backends", "creation", "credentials", "database_backend", "descriptors", "folder",
    "game_day_store", "layout", "lease", "lease_keeper", "listing", "local_copies", "name_database", "opening",
    "pointers", "records", "retry", "s3_errors", "s3_faults", "s3_requests", "s3", "seal", "store", "writer",
)  # fmt: skip
TARGETS = {
    # order.py and feistel.py
    "training/order": Target("training/[of]*.py", ("tests/unit/training/order/test_*.py",)),
    "tasks/stages/promote": Target(
        "tasks/stages/promote.py",
        # Not test_holds, which trains for half a minute first, nor the thousands of decisions of test_decisions.
        ("tests/unit/tasks/stages/test_promote.py", "tests/unit/tasks/queries/test_plan.py"),
    ),
    "infra/store": Target(
        "infra/store/**/*.py",
        tuple(f"{STORE}/**/test_{name}.py" for name in STORED),
        (f"{STORE}/**/test_*.py",),
        late="infra/store/s3.py",
    ),
    # The gangs of real processes that end by themselves within a few seconds, each seen by one test.
    "infra/gang/conductor": Target(
        "infra/gang/[cmr][oe][nmc]?[!t]*.py",  # conductor.py, members.py and recovery.py
        tuple(f"{CONDUCTOR}/test_{name}.py" for name in ALONE),
        (
            *(f"{CONDUCTOR}/test_conductor.py::test_{name}" for name in CONDUCTED),
            *(f"{CONDUCTOR}/test_recovering.py::test_{name}" for name in RECOVERED),
            f"{CONDUCTOR}/test_store_blips.py::test_every_node_is_ended_although_one_cannot_be",
        ),
    ),
}
