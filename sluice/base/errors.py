"""Every error this library raises on purpose.

SluiceError
|-- ContractError        data handed over breaks a documented contract
|   |-- SchemaError      a table lacks columns, an index, a dtype
|   |-- SourceError      rows cannot be read from where they should be
|   `-- SettingsError    a setting is unknown, out of range, or does not import
|-- StorageError         a file or database cannot be written or read
|   |-- IntegrityError   stored bytes do not match their digest
|   |   `-- RegistryUnsound  the registry contradicts itself about what is acted on
|   `-- SamplesRefused   the database takes no samples that hold such values
|-- GateBlocked          a gate said no, or could not say yes
|   |-- PromotionConflict  somebody else moved the pointer first
|   `-- RolloutConflict    another rollout is under way, or moved on in the meantime
|-- TrainingFailed       a training unit ended without a usable model
|   |-- RankLost         of several processes that fit one model, another one is gone
|   `-- TrialFailed      a trial of a search failed, and Ray Tune gave it up
|-- OutOfMemory          an allocator refused a request of a training or an evaluation
|-- SearchFailed         no trial of a search ended with a finite loss
|-- UnknownVersion       the registry has no such version
|-- UntrustedCode        an imported version names code that was not trusted when it came
|-- OtherCode            a version was trained with other code than the present one
|-- RequestRefused       the server cannot answer a request; kinds in sluice/serving/refusals.py
`-- Interrupted          the user stopped the work

A message has up to three parts: what was seen, why it is likely, what to do.
"""

from typing import Any, ClassVar

from sluice.base.redaction import redact
from sluice.base.terminal_text import printable

GATE_SAID_NO = 1
INTERRUPTED = 130
"""As every shell has it: 128 and the number of SIGINT."""
USER_MISTAKE = 2
BROKEN = 3


def writable(text: str) -> str:
    """Return text that can be written as UTF-8, and shown in a terminal.

    What cannot, such as the byte of a file name that is no letter, or an escape code in the reason
    of an imported receipt, is spelled out.
    """
    return printable(text.encode("utf-8", "backslashreplace").decode())


class SluiceError(Exception):
    """Base of every deliberate error.

    Args:
        what: What was required and what arrived, with the place (column, row, parameter).
        fix: What to do next, in one or two sentences.
        cause: The likely cause, when it is not plain from ``what``.
    """

    exit_code: ClassVar[int] = BROKEN

    def __init__(self, what: str, *, fix: str, cause: str = "") -> None:
        # A message can repeat a URL or what a server answered, and is logged and stored.
        self.what, self.fix, self.cause = (redact(writable(text)) for text in (what, fix, cause))
        super().__init__(self.what)

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.cause, self.fix) if part)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive pickling by default, and units of work run in
        # other processes.
        return _rebuild, (type(self), self.what, self.fix, self.cause)


def _rebuild(kind: type[SluiceError], what: str, fix: str, cause: str) -> SluiceError:
    return kind(what, fix=fix, cause=cause)


class ContractError(SluiceError, ValueError):
    """Data handed over breaks a documented contract."""

    exit_code = USER_MISTAKE


class SchemaError(ContractError):
    """A table does not have the columns, index or dtypes that a stage declared."""


class SourceError(ContractError):
    """Rows cannot be read from the declared source."""


class SettingsError(ContractError):
    """A setting is unknown, out of range, or names something that does not import."""


class StorageError(SluiceError):
    """A file or database of ours cannot be written or read."""

    exit_code = USER_MISTAKE


class IntegrityError(StorageError):
    """Stored bytes do not match the digest they are filed under."""


class RegistryUnsound(IntegrityError):
    """The registry contradicts itself about the version that somebody is about to act on."""

    num_findings: int = 1
    """Number of contradictions found; the message names the first."""


class SamplesRefused(StorageError):
    """Samples hold what their database cannot store; the same again would be refused again."""


class GateBlocked(SluiceError):
    """A gate said no, or had no evidence to say yes."""

    exit_code = GATE_SAID_NO


class PromotionConflict(GateBlocked):
    """Another promotion or rollback moved the pointer first."""


class RolloutConflict(GateBlocked):
    """Another rollout of the model is under way, or this one was changed in the meantime."""


class TrainingFailed(SluiceError):
    """A training unit ended without a usable model."""

    exit_code = GATE_SAID_NO


class RankLost(TrainingFailed):
    """One of several processes that fit one model ended or does not answer."""


class TrialFailed(TrainingFailed):
    """A trial of a search failed, and Ray Tune gave it up.

    Args:
        what: As ``SluiceError``.
        fix: As ``SluiceError``.
        number: Number of the trial in its study.
        config: Its configuration.
        error: What the trainable raised, as Ray handed it over; None where that is lost.
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
        return _rebuild_trial, (self.what, self.fix, self.number, self.config, self.error)


def _rebuild_trial(
    what: str, fix: str, number: int, config: dict[str, Any], error: Exception | None
) -> TrialFailed:
    return TrialFailed(what, fix=fix, number=number, config=config, error=error)


class OutOfMemory(SluiceError):
    """The memory of the machine or of its accelerator is exhausted."""

    exit_code = USER_MISTAKE


class SearchFailed(SluiceError):
    """No trial of a search ended with a finite loss."""

    exit_code = GATE_SAID_NO


class UnknownVersion(SluiceError):
    """The registry has no such version."""

    exit_code = USER_MISTAKE


class OtherCode(SluiceError):
    """A version was trained with other code than the present one, which must not run it."""

    exit_code = USER_MISTAKE


class UntrustedCode(SluiceError):
    """An imported version names code that is not the pipeline's own and was not trusted."""

    exit_code = USER_MISTAKE


class RequestRefused(SluiceError):
    """The server cannot answer a request; the caller is told what to do about it."""


class Interrupted(SluiceError):
    """The user stopped the work; what was finished is kept."""

    exit_code = INTERRUPTED
