"""Labels that were made wrong are found, few others are, and nothing is said where nothing can be."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.stages.evaluate import label_errors, probabilities_of


def model(rows: int, classes: int, seed: int, skill: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """True classes, and logits of a model that knows most of them."""
    draw = np.random.default_rng(seed)
    true = draw.integers(0, classes, rows)
    logits = draw.normal(size=(rows, classes))
    logits[np.arange(rows), true] += skill
    return true, logits.astype(np.float32)


@pytest.mark.parametrize("classes", [2, 10])
def test_wrong_labels_are_found(classes: int) -> None:
    true, logits = model(5_000, classes, seed=1)
    labels = true.copy()
    planted = np.arange(0, 5_000, 50)
    labels[planted] = (labels[planted] + 1) % classes
    probabilities = probabilities_of(logits)
    assert probabilities is not None
    found = label_errors(labels, probabilities)
    assert found is not None
    right = np.isin(planted, found.positions).mean()
    first = np.isin(found.positions[:50], planted).mean()
    assert right >= 0.6, "those that the model knows better than most rows of their class"
    assert first >= 0.9, "the most suspicious rows come first"
    hit = np.isin(found.positions, planted)
    assert (found.suggested[hit] == true[found.positions[hit]]).mean() > 0.95
    assert np.all(found.suggested_probability > found.label_probability)


def test_a_model_that_is_always_right_points_nothing_out() -> None:
    true, logits = model(2_000, 3, seed=2, skill=50)
    probabilities = probabilities_of(logits)
    assert probabilities is not None
    found = label_errors(true, probabilities)
    assert found is not None
    assert (len(found.positions), found.rows) == (0, 2_000)


def test_rows_without_a_class_or_a_number_are_left_out() -> None:
    likely = np.array([[0.9, 0.1], [0.1, 0.9], [0.2, 0.8], [np.nan, 0.5], [0.05, 0.95]])
    found = label_errors(np.array([0, 1, -1, 0, 0]), likely)
    assert found is not None
    assert found.positions.tolist() == [4]
    assert (found.labels.tolist(), found.suggested.tolist()) == ([0], [1])


def test_a_class_that_no_row_carries_is_not_suggested() -> None:
    found = label_errors(np.array([0, 0, 1]), np.array([[0.1, 0.1, 0.8], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]))
    assert found is not None
    assert found.positions.tolist() == []


def test_numbers_are_not_classes() -> None:
    assert label_errors(np.array([0.5, 1.5]), np.array([[0.5, 0.5], [0.5, 0.5]])) is None
    assert label_errors(np.array([0, 1]), np.array([[0.5], [0.5]])) is None
    assert label_errors(np.zeros(0, np.int64), np.zeros((0, 2))) is None


def test_probabilities_of_what_models_return() -> None:
    given = np.array([[0.2, 0.8], [0.5, 0.5]], np.float32)
    np.testing.assert_allclose(probabilities_of(given), given)
    np.testing.assert_allclose(probabilities_of(np.array([[0.25]])), [[0.75, 0.25]])
    np.testing.assert_allclose(probabilities_of(np.array([[0.0], [-2.0]])), [[0.5, 0.5], [0.8808, 0.1192]], atol=1e-4)
    np.testing.assert_allclose(probabilities_of(np.array([[3.0, 3.0]])), [[0.5, 0.5]])
    assert probabilities_of(np.array([[1], [0]])) is None, "answers without a probability"
