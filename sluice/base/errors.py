"""Exceptions raised by Sluice.

SluiceError
|-- ContractError            an input violates a documented contract
|   |-- SchemaError          a table lacks columns, an index or a dtype
|   |-- SourceError          rows cannot be read from the declared source
|   |-- PayloadError         the body of a request does not fit the codec of the model
|   `-- SettingsError        a setting is unknown, out of range, or cannot be imported
|-- StorageError             a file or database cannot be read or written
|   |-- IntegrityError       stored data are missing, damaged, or contradict each other
|   |   `-- RegistryInconsistent  the registry is inconsistent about a version in use
|   `-- SamplesRefused       samples contain values that the database cannot store
|-- GateBlocked              a gate failed, or its evidence is missing
|   |-- ApprovalMissing      a promotion waits for a person's approval
|   |-- PromotionConflict    another process moved the production pointer first
|   `-- RolloutConflict      another rollout is active, or the rollout was changed concurrently
|-- TrainingFailed           a fold run ended without a usable model
|   |-- RankLost             a process of a distributed training ended or does not respond
|   `-- TrialFailed          a trial of a search failed, and Ray Tune does not retry it
|-- OutOfMemory              an allocator rejected a request of a training or an evaluation
|-- SearchFailed             no trial of a search ended with a finite loss
|-- UnknownVersion           the registry has no such version
|-- UntrustedCode            an imported version names code that was not trusted at import
|-- CodeMismatch             a version was trained with code that differs from the current code
|   `-- CodecMismatch        requests are decoded in another way than the inputs of the training
|-- RequestRefused           the server cannot answer a request (sluice/serving/http_errors.py)
`-- Interrupted              the user stopped the command

A message has up to three parts: what happened, the likely cause, and what to do.
"""

from typing import Any, ClassVar

from sluice.base.redaction import redact
from sluice.base.terminal_text import escape_control_characters

EXIT_GATE_BLOCKED = 1
"""Exit code if a gate did not pass, or a training or search failed."""

EXIT_USER_ERROR = 2
"""Exit code after an error that the user can correct."""

EXIT_INTERNAL_ERROR = 3
"""Exit code after an error inside Sluice."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, by convention of the shell: 128 plus the signal number of SIGINT."""


def escape_unprintable(text: str) -> str:
    """Return text that can be encoded as UTF-8 and is safe to print on a terminal.

    All other characters are replaced by backslash escapes. Examples are an undecodable byte in a
    file name, and a terminal escape code in the reason of an imported receipt.
    """
    return escape_control_characters(text.encode("utf-8", "backslashreplace").decode())


class SluiceError(Exception):
    """Base class of all errors raised by Sluice.

    Args:
        what: What was expected and what was found, with the location (column, row, parameter).
        fix: What to do next, in one or two sentences.
        cause: Likely cause, when it is not obvious from ``what``.
    """

    exit_code: ClassVar[int] = EXIT_INTERNAL_ERROR

    def __init__(self, what: str, *, fix: str, cause: str = "") -> None:
        # Credentials are masked, because messages are logged and stored, and may contain a URL or a
        # server's response.
        self.what, self.fix, self.cause = (
            redact(escape_unprintable(text)) for text in (what, fix, cause)
        )
        super().__init__(self.what)

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.cause, self.fix) if part)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are pickled to pass them between processes. The default pickling loses keyword-only
        # arguments.
        return _rebuild_error, (type(self), self.what, self.fix, self.cause)


def _rebuild_error(error_class: type[SluiceError], what: str, fix: str, cause: str) -> SluiceError:
    return error_class(what, fix=fix, cause=cause)


class ContractError(SluiceError, ValueError):
    """An input violates a documented contract."""

    exit_code = EXIT_USER_ERROR


class SchemaError(ContractError):
    """A table does not have the columns, index or dtypes that a stage declared."""


class SourceError(ContractError):
    """Rows cannot be read from the declared source."""


class PayloadError(ContractError):
    """The body of a request does not fit the codec of the model."""


class SettingsError(ContractError):
    """A setting is unknown, out of range, or names something that cannot be imported."""


class StorageError(SluiceError):
    """A file or database of Sluice cannot be read or written."""

    exit_code = EXIT_USER_ERROR


class IntegrityError(StorageError):
    """Stored data are missing or damaged, or contradict each other."""


class RegistryInconsistent(IntegrityError):
    """The registry is inconsistent about a version that is about to be used."""

    num_findings: int = 1
    """Number of inconsistencies; the message names only the first."""


class SamplesRefused(StorageError):
    """Samples contain values that the database cannot store; a retry would fail again."""


class GateBlocked(SluiceError):
    """A gate failed, or the evidence that it requires is missing."""

    exit_code = EXIT_GATE_BLOCKED


class ApprovalMissing(GateBlocked):
    """A promotion requires the approval of a person, and no valid approval is recorded."""


class PromotionConflict(GateBlocked):
    """Another promotion or rollback changed the version in production first."""


class RolloutConflict(GateBlocked):
    """Another rollout of the model is active, or the rollout was changed concurrently."""


class TrainingFailed(SluiceError):
    """A fold run ended without a usable model."""

    exit_code = EXIT_GATE_BLOCKED


class RankLost(TrainingFailed):
    """A process of a distributed training ended or does not respond."""


class TrialFailed(TrainingFailed):
    """A trial of a search failed, and Ray Tune does not retry it.

    Args:
        what: See ``SluiceError``.
        fix: See ``SluiceError``.
        number: Number of the trial in its study.
        config: Configuration of the trial.
        error: Exception that the trial raised, as received from Ray; None if Ray lost it.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str,
        number: int,
        config: dict[str, Any],
        error: Exception | None,
    ) -> None:
        super().__init__(what, fix=fix)
        self.number, self.config, self.error = number, config, error

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_trial_failed, (self.what, self.fix, self.number, self.config, self.error)


def _rebuild_trial_failed(
    what: str, fix: str, number: int, config: dict[str, Any], error: Exception | None
) -> TrialFailed:
    return TrialFailed(what, fix=fix, number=number, config=config, error=error)


class OutOfMemory(SluiceError):
    """The memory of the machine or of its accelerator is exhausted."""

    exit_code = EXIT_USER_ERROR


class SearchFailed(SluiceError):
    """No trial of a search ended with a finite loss."""

    exit_code = EXIT_GATE_BLOCKED


class UnknownVersion(SluiceError):
    """The registry has no such version."""

    exit_code = EXIT_USER_ERROR


class CodeMismatch(SluiceError):
    """A version was trained with code that differs from the current code."""

    exit_code = EXIT_USER_ERROR


class CodecMismatch(CodeMismatch):
    """Requests are decoded in another way than the inputs of the training were."""


class UntrustedCode(SluiceError):
    """An imported version names code that does not belong to the pipeline and is not trusted."""

    exit_code = EXIT_USER_ERROR


class RequestRefused(SluiceError):
    """The server cannot answer a request; the response says what the client can do."""


class Interrupted(SluiceError):
    """The user stopped the command; completed work is kept."""

    exit_code = EXIT_INTERRUPTED
