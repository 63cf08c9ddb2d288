"""What the comparison of a resumed training with an uninterrupted one says, and what to do."""

from sluice.base.error_location import place_of
from sluice.base.errors import SluiceError, StorageError
from sluice.failfast.checkpoints.training_state import Difference, Flat
from sluice.findings.finding import Finding

_WRAPPERS = {
    "module.": (
        "The model was wrapped by DataParallel or DistributedDataParallel on one side, which puts "
        "'module.' before every name.",
        "Save model.module.state_dict(), or load into a model that is wrapped alike.",
    ),
    "_orig_mod.": (
        "The model was compiled on one side, which puts '_orig_mod.' before every name.",
        "Save the state_dict() of the model that was given to torch.compile.",
    ),
}
_NAMED = 3
"""Names in a message."""


def round_trips(num_steps: int, *, num_values: int) -> Finding:
    """Return the finding that everything came back."""
    # Not the size of the file: it holds times, so it differs from run to run.
    return Finding(
        outcome="pass",
        summary=f"Saved, loaded into a fresh model and resumed: predictions, {num_values} stored "
        "values and all that follows are the same bits; one cut in half is noticed.",
        numbers={"num_steps": num_steps, "num_values": num_values},
    )


def not_writable(error: StorageError) -> Finding:
    """Return the finding that the disk refuses."""
    return Finding(
        outcome="fail",
        summary=error.what,
        kind="log not writable",
        cause=error.cause or "The checkpoints cannot be written where they are to lie.",
        fix=error.fix,
    )


def nothing_saved() -> Finding:
    """Return the finding that there is no file."""
    return _mismatch(
        "A checkpoint is required at the path given to save(), and there is none.",
        cause="save() wrote somewhere else, or added an ending to the name.",
        fix="Write to exactly the path that is given.",
    )


def load_raised(error: Exception, saved: Flat, fresh: Flat) -> Finding:
    """Return the finding that the checkpoint could not be loaded.

    Args:
        error: What load() raised.
        saved: The model's state when it was saved.
        fresh: That of the model that was to take it.
    """
    text = error.what if isinstance(error, SluiceError) else " ".join(str(error).split())
    seen = f"The checkpoint could not be loaded: {type(error).__name__}: {text[:400]}"
    place = "" if isinstance(error, SluiceError) else f" (raised {place_of(error)})"
    names = _differing_names(saved, fresh)
    cause, fix = _wrapper(f"{text} {names}")
    if names:
        seen += f". {names}"
        cause = cause or (
            "The names of the model's state are not the same each time it is built, so what one "
            "process saves another cannot load."
        )
        fix = fix or "Name modules and parameters by what they are, without counters or ids."
    if not cause and "state_dict" not in text:
        cause = "The checkpoint was not written whole, or load() expects another content."
        fix = "Let load() read what save() writes; write to a temporary name and rename it."
    return _mismatch(f"{seen}{place}.", cause=cause, fix=fix)


def model_differs(difference: Difference, *, skipped: bool) -> Finding:
    """Return the finding that the model's state did not come back.

    Args:
        difference: The first one.
        skipped: The model is as it was before load().
    """
    cause, fix = _wrapper(difference.path)
    if skipped:
        seen = "load() left the model as it was initialised"
        cause = cause or (
            "The names in the file are not the model's, such as with the 'module.' of a "
            "DataParallel wrapper before each, and strict=False hides it."
        )
        fix = fix or "Load with strict=True and save under the names of the model's state_dict()."
    else:
        seen = "The model is not the one that was saved"
        cause = cause or "A part is not saved, not loaded, or changed on the way (another dtype)."
        fix = fix or "Save and load the whole state_dict() of the model, unchanged and strict."
    return _mismatch(f"{seen}: {difference}.", cause=cause, fix=fix)


def predictions_differ(difference: Difference, beside: Difference | None) -> Finding:
    """Return the finding that equal weights predict something else.

    Args:
        difference: The first prediction that differs.
        beside: What differs besides the registered state.
    """
    return _mismatch(
        f"With every weight loaded the predictions are others: {difference}.{_beside(beside)}",
        cause="A prediction needs a state that state_dict() does not hold: a buffer with "
        "persistent=False, or a plain attribute that training changes.",
        fix="Register it with register_buffer(name, tensor), which is stored unless told not to.",
    )


def state_differs(name: str, difference: Difference) -> Finding:
    """Return the finding that a further state did not come back."""
    return _mismatch(
        f"The state of the {name} was not restored: {difference}.",
        cause=f"The {name} is not in the checkpoint, load() does not give it back, or its parts "
        "are in another order each time it is made.",
        fix=f"Save the {name}'s state_dict() and load it after the model, into one made alike.",
    )


def goes_on_differently(changed: str, beside: Difference | None, *, repeatable: bool) -> Finding:
    """Return the finding that the same state goes on in another way.

    Args:
        changed: The first thing that was not the same.
        beside: What differed besides the registered state when training was resumed.
        repeatable: The checkpoint, resumed twice, goes on alike.
    """
    seen = f"All stored state came back, and the training goes on in another way: {changed}."
    if not repeatable:
        return _mismatch(
            f"{seen}{_beside(beside)} Resumed twice, it does not even repeat itself.",
            cause="Something draws from a generator without a seed, or an operation has no "
            "deterministic form here.",
            fix="Seed every generator, and try torch.use_deterministic_algorithms(True).",
        )
    return _mismatch(
        f"{seen}{_beside(beside)}",
        cause="A random state or the position in the data was not restored: a generator of the "
        "model's or the loader's own, or the global ones.",
        fix="Save the state of every generator (get_state(), bit_generator.state) and the "
        "position in the data, or derive both from seed and epoch.",
    )


def half_loaded() -> Finding:
    """Return the finding that a torn file goes unnoticed."""
    return _mismatch(
        "A checkpoint cut in half was loaded in part, without an error.",
        cause="load() catches the error of a damaged file, or reads the parts one by one.",
        fix="Read and check the whole checkpoint before any of it is taken over, and raise.",
    )


def _mismatch(summary: str, *, cause: str, fix: str) -> Finding:
    return Finding(
        outcome="fail", summary=summary, kind="checkpoint mismatch", cause=cause, fix=fix
    )


def _beside(difference: Difference | None) -> str:
    return f" Not stored, and different: {difference}." if difference is not None else ""


def _differing_names(saved: Flat, fresh: Flat) -> str:
    lost = [name for name in saved if name not in fresh]
    new = [name for name in fresh if name not in saved]
    if not (lost or new):
        return ""
    sides = [f"{side}: {', '.join(n[:_NAMED])}" for side, n in (("saved", lost), ("now", new)) if n]
    return f"Names on one side only, {'; '.join(sides)}"


def _wrapper(text: str) -> tuple[str, str]:
    return next((said for mark, said in _WRAPPERS.items() if mark in text), ("", ""))
