"""Mutation testing of the rooms whose mistakes cost most: does a test fail for each small mistake in the source?

    python -m tests.support.mutants [TARGET ...] [--alone] [--unserved] [--again] [--report]

Begin with `--alone --unserved`, which runs the quick tests only; then `--again` without them tries what survived, with
all tests. Results go to `.coverage/mutants/results.jsonl`, a line per mutant; a second call continues where the first
ended. It runs at the lowest priority, one trial at a time, and is no part of `make test` or of CI. What survives with a
reason is listed in `survivors.toml`.

mutmut 3 and Cosmic Ray 8 were read about, not tried. mutmut mutates inside a process that has imported the code under
test and forks it; here much of the code runs in processes that a test starts, which a scratch copy of the tree reaches
and which have to be ended after each trial. Cosmic Ray resumes, but it mutates the tree in place and starts the whole
test command for each mutant: 6 to 10 s of imports before the first test. Neither chooses tests by what such processes
reach.
"""
