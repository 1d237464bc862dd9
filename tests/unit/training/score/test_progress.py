"""What a scoring process reports: not each batch, but each change between short and long pieces of work."""

from __future__ import annotations

from data_contracts.messages.children import Advanced
from training.score.team import CountBatches, Progress


def test_batches_are_reported_twice_a_second_and_long_pieces_at_once() -> None:
    now, reports = [0.0], list[Advanced]()
    progress = Progress(reports.append, lambda: now[0])
    batches = CountBatches(progress)
    for _ in range(10):
        batches.on_predict_batch_end()
        now[0] += 0.125
    batches.on_predict_epoch_end()
    batches.on_test_batch_end()
    batches.on_test_epoch_end()
    told = [(report.done, report.long) for report in reports]
    assert told == [(1, False), (5, False), (9, False), (11, True), (12, False), (13, True)]
