"""Outcomes of the comparison of a resumed training with an uninterrupted one."""

import re

from sluice.base.error_location import locate_error
from sluice.base.errors import SluiceError, StorageError
from sluice.failfast.checkpoints.training_state import FlatState, StateDifference
from sluice.findings.check_outcome import CheckOutcome

_WRAPPERS = {
    "module.": (
        "The model was wrapped by DataParallel or DistributedDataParallel only when it was saved "
        "or only when it was loaded. The wrapper prefixes every name with 'module.'.",
        "Save model.module.state_dict(), or load into a model that is wrapped in the same way.",
    ),
    "_orig_mod.": (
        "The model was compiled only when it was saved or only when it was loaded. torch.compile "
        "prefixes every name with '_orig_mod.'.",
        "Save the state_dict() of the model that was passed to torch.compile.",
    ),
}
_MAX_NAMES = 3
"""Maximum number of names in each list of a message: the names that are only in the checkpoint, and
the names that are only in the new model."""


def passed_outcome(num_steps: int, *, num_values: int) -> CheckOutcome:
    """Return the outcome "pass": the whole state was restored.

    Args:
        num_steps: Number of steps before the checkpoint, and again after it.
        num_values: Number of compared values of the stored state.
    """
    # The size of the file is not reported: the file contains times, so its size differs between
    # runs.
    return CheckOutcome(
        outcome="pass",
        summary=f"Saved, loaded into a new model and resumed: predictions, {num_values:,} stored "
        "values and all later losses are bit-identical; a truncated checkpoint is detected.",
        numbers={"num_steps": num_steps, "num_values": num_values},
    )


def not_writable_finding(error: StorageError) -> CheckOutcome:
    """Return the finding that the disk is not writable."""
    return CheckOutcome(
        outcome="fail",
        summary=error.what,
        fault="storage not writable",
        cause=error.cause or "The folder of the checkpoints is not writable.",
        fix=error.fix,
    )


def nothing_saved_finding() -> CheckOutcome:
    """Return the finding that no file was written."""
    return _mismatch_finding(
        "save() must write a checkpoint to its path argument, and did not.",
        cause="save() wrote to another path, or appended a suffix to the name.",
        fix="Write to exactly the given path.",
    )


def load_error_finding(
    error: Exception, saved_state: FlatState, initial_state: FlatState
) -> CheckOutcome:
    """Return the finding that the checkpoint could not be loaded.

    Args:
        error: Exception raised by load().
        saved_state: State of the model when it was saved.
        initial_state: State of the new model before load() was called.
    """
    text = error.what if isinstance(error, SluiceError) else " ".join(str(error).split())
    text = text.removesuffix(".")
    observation = f"The checkpoint could not be loaded: {type(error).__name__}: {text[:400]}"
    location = "" if isinstance(error, SluiceError) else f" (raised {locate_error(error)})"
    names = _differing_names(saved_state, initial_state)
    cause, fix = _wrapper_advice(f"{text} {names}")
    if names:
        observation += f". {names}"
        cause = cause or (
            "The state names of the model differ each time it is built, so a checkpoint of one "
            "process cannot be loaded by another."
        )
        fix = fix or "Use fixed names for modules and parameters, without counters or ids."
    if not cause and "state_dict" not in text:
        cause = "save() did not write the whole checkpoint, or load() expects another format."
        fix = "Let load() read what save() writes; write to a temporary name and rename it."
    return _mismatch_finding(f"{observation}{location}.", cause=cause, fix=fix)


def model_difference_finding(difference: StateDifference, *, is_unchanged: bool) -> CheckOutcome:
    """Return the finding that the model's state was not restored.

    Args:
        difference: The first difference.
        is_unchanged: Whether load() did not change the model at all.
    """
    cause, fix = _wrapper_advice(difference.path)
    if is_unchanged:
        observation = "load() left the model as it was initialised"
        cause = cause or (
            "load() does not load the model's state, or the names in the file differ from the "
            "model's, for example by the 'module.' prefix of a DataParallel wrapper, and "
            "strict=False hides this."
        )
        fix = fix or "Load with strict=True, and save the names of the model's state_dict()."
    else:
        observation = "The loaded model differs from the saved model"
        cause = cause or "A tensor is not saved, not loaded, or converted to another dtype."
        fix = (
            fix or "Save and load the whole, unchanged state_dict() of the model, with strict=True."
        )
    return _mismatch_finding(f"{observation}: {difference}.", cause=cause, fix=fix)


def prediction_difference_finding(
    difference: StateDifference, hidden_difference: StateDifference | None
) -> CheckOutcome:
    """Return the finding that predictions differ although all weights are equal.

    Args:
        difference: The first prediction that differs.
        hidden_difference: First difference of state that ``state_dict`` does not contain.
    """
    return _mismatch_finding(
        f"All weights were restored, but the predictions differ: {difference}."
        f"{_describe_hidden(hidden_difference)}",
        cause="A prediction needs a state that state_dict() does not contain: a buffer with "
        "persistent=False, or a plain attribute that training changes.",
        fix="Register the state with register_buffer(name, tensor), which state_dict() contains by "
        "default.",
    )


def state_difference_finding(name: str, difference: StateDifference) -> CheckOutcome:
    """Return the finding that a further state was not restored."""
    return _lost_state_finding(
        f"The state of the {name} was not restored: {difference}.",
        cause=f"The {name} is not in the checkpoint, load() does not restore it, or its "
        f"state_dict() has another order each time the {name} is built.",
        fix=f"Save the {name}'s state_dict(), and load it after the model into an object that is "
        "built in the same way.",
    )


def continuation_finding(
    change: str, hidden_difference: StateDifference | None, *, is_repeatable: bool
) -> CheckOutcome:
    """Return the finding that training from equal state continues differently.

    Args:
        change: Description of the first difference.
        hidden_difference: First difference of the state outside ``state_dict`` after loading.
        is_repeatable: Whether resuming the checkpoint twice gives equal losses.
    """
    observation = (
        f"All stored state was restored, but the training continues differently: {change}."
    )
    if not is_repeatable:
        return _lost_state_finding(
            f"{observation}{_describe_hidden(hidden_difference)} Two trainings resumed from the "
            "checkpoint differ from each other, too.",
            cause="A random generator is not seeded, or an operation has no deterministic "
            "implementation on this machine.",
            fix="Seed every generator, and try torch.use_deterministic_algorithms(True).",
        )
    return _lost_state_finding(
        f"{observation}{_describe_hidden(hidden_difference)}",
        cause="A random state or the position in the data was not restored: a generator of the "
        "model or the data loader, or the global generators.",
        fix="Save the state of every generator (get_state(), bit_generator.state) and the "
        "position in the data, or derive both from seed and epoch.",
    )


def partial_load_finding() -> CheckOutcome:
    """Return the finding that a truncated file is loaded without an error."""
    return _mismatch_finding(
        "A checkpoint whose largest file was truncated to half its size was partially loaded "
        "without an error.",
        cause="load() catches the error of a damaged file, or applies the files one by one.",
        fix="Read and validate the whole checkpoint before applying any state, and raise an error "
        "if the checkpoint is damaged.",
    )


def _mismatch_finding(summary: str, *, cause: str, fix: str) -> CheckOutcome:
    return CheckOutcome(
        outcome="fail", summary=summary, fault="checkpoint mismatch", cause=cause, fix=fix
    )


def _lost_state_finding(summary: str, *, cause: str, fix: str) -> CheckOutcome:
    return CheckOutcome(
        outcome="fail", summary=summary, fault="resume state lost", cause=cause, fix=fix
    )


def _describe_hidden(difference: StateDifference | None) -> str:
    if difference is None:
        return ""
    return f" State that is not in state_dict() and differs: {difference}."


def _differing_names(saved_state: FlatState, initial_state: FlatState) -> str:
    only_saved = [name for name in saved_state if name not in initial_state]
    only_initial = [name for name in initial_state if name not in saved_state]
    if not (only_saved or only_initial):
        return ""
    texts = [
        f"{source}: {', '.join(names[:_MAX_NAMES])}"
        for source, names in (("checkpoint", only_saved), ("new model", only_initial))
        if names
    ]
    return f"Names only in the {'; only in the '.join(texts)}"


def _wrapper_advice(text: str) -> tuple[str, str]:
    """Return the cause and the fix if the text contains a wrapper's prefix; otherwise ("", "")."""
    for prefix, advice in _WRAPPERS.items():
        # The word boundary excludes names such as 'my_module.', which end with the prefix.
        if re.search(rf"\b{re.escape(prefix)}", text):
            return advice
    return "", ""
