"""Marks how a run of Weights & Biases (W&B) ended: its state and the reason."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

RunEnd = Literal["finished", "pruned", "failed", "stopped", "interrupted"]
"""'pruned': a scheduler ended the trial; 'stopped': the training ended while this fold run
was unfinished, usually because another fold run failed; 'interrupted': the user or a lost process
ended the training or search, which resumes when it is run again."""

_EXIT_CODES: Mapping[RunEnd, int] = {
    "finished": 0,
    "pruned": 0,
    "failed": 1,
    "stopped": 255,
    "interrupted": 255,
}
"""Exit code of a run by its state; W&B shows 0 as finished, 255 as killed, and others as failed."""


def finish_run(run: Any, *, tags: Sequence[str], state: RunEnd, reason: str) -> None:
    """Finish a run and wait until everything is written, or sent.

    Args:
        run: The run, as returned by ``wandb.init``.
        tags: Tags of the run; a state other than 'finished' is added.
        state: How the run ended.
        reason: Why the run ended. The reason also becomes the notes of a run that did not finish.
    """
    # Replace all tags, because a resumed run may have the tag of its earlier state.
    run.tags = tuple(tags) if state == "finished" else (*tags, state)
    if state != "finished":
        run.notes = reason
    elif run.resumed:
        run.notes = "Finished after it was resumed."  # replaces the reason; notes cannot be cleared
    run.summary.update({"state": state, "reason": reason})
    run.finish(exit_code=_EXIT_CODES[state])
