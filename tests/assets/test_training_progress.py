"""The progress of a training reports where it resumes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from sluice.assets.trained_models import _TrainingProgress
from sluice.training.fold_run_events import FoldRunEvent

STARTED = FoldRunEvent(kind="started", seed=1, fold_id=0, epochs_done=0, max_epochs=400)


@pytest.mark.parametrize(
    ("event", "text", "is_important"),
    [
        (STARTED, "seed 1 fold 0 started", False),
        (replace(STARTED, epochs_done=107), "seed 1 fold 0 resumes at epoch 108/400", True),
        (
            replace(STARTED, epochs_done=0, steps_done=30),
            "seed 1 fold 0 resumes at epoch 1/400 after its step 30",
            True,
        ),
        (replace(STARTED, kind="epoch", epochs_done=3), "seed 1 fold 0 epoch 3/400", False),
    ],
)
def test_resumed_training_reports_its_epoch(
    event: FoldRunEvent, text: str, is_important: bool
) -> None:
    received: list[tuple[str, bool]] = []

    def progress(shown: str, *, is_important: bool = False, **_: object) -> None:
        received.append((shown, is_important))

    _TrainingProgress(SimpleNamespace(log=None), progress, num_fold_runs=2)(event)

    assert received == [(text, is_important)]
