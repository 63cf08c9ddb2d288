"""Compares the current code with the code that a version was trained with.

A version may only run with the user's modules with which it was trained. Other versions of Sluice
or of other packages are only reported, because Sluice keeps stored networks loadable, and a package
update must not stop a server.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal
from weakref import WeakKeyDictionary

from sluice.base.digests import digest_bytes, short
from sluice.base.errors import CodeMismatch
from sluice.models.settings import ModelSettings
from sluice.registry.lineage import Lineage
from sluice.registry.stored_code import StoredModule
from sluice.training.code import follow_code, identify_code
from sluice.training.code_identity import CodeIdentity
from sluice.workloads.workload import Workload

_SOURCES: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Source of each imported module, as first read. If the file changes later, this process still
runs the first source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """Comparison of a version's code with the code of this process."""

    outcome: Literal["same", "other", "unknown"]
    """"same" or "other" depending on whether the user's modules are equal; "unknown" for a version
    that was stored with the digest of its code only."""

    trained_digest: str
    """Code digest with which the version was trained."""

    current_digest: str
    """Code digest of this process."""

    differences: tuple[str, ...] = ()
    """Differences in the user's modules, one phrase each."""

    other_differences: tuple[str, ...] = ()
    """Other differences: packages, Sluice, data files."""

    def warning(self, who: str) -> str:
        """Return a warning about ``other_differences`` or a missing comparison, or "".

        Differences in the user's modules are not repeated: ``require_same_code`` rejects them.
        """
        if self.outcome == "unknown":
            return (
                f"{who} was stored with the digest of its code only, so the current code cannot "
                "be compared with it."
            )
        if self.other_differences:
            return f"{who} was trained with: {'; '.join(self.other_differences)} (then -> now)."
        return ""


def collect_own_modules(workload: Workload, model: ModelSettings) -> dict[str, StoredModule]:
    """Return the user's modules used by the workload and the network, by dotted name.

    Each module has the source that this process imported, even if the file has changed since.

    Raises:
        SettingsError: The architecture cannot be imported.
    """
    return {
        name: StoredModule(source=_read_source(name, path), is_package=path.name == "__init__.py")
        for name, path in follow_code(workload, model).own_modules.items()
        if path.suffix == ".py"
    }


def compare_code(lineage: Lineage, workload: Workload, model: ModelSettings) -> CodeComparison:
    """Compare the code of a version with the code of this process.

    Args:
        lineage: Lineage of the version.
        workload: Workload of the version, built by the code of this process.
        model: Model settings of the version.

    Raises:
        SettingsError: The architecture cannot be imported, or a declared data file is missing.
    """
    own_modules = collect_own_modules(workload, model)
    identity_on_disk = identify_code(workload, model)
    digests = {name: digest_bytes(module.source) for name, module in own_modules.items()}
    current_identity = identity_on_disk.model_copy(
        update={"modules": identity_on_disk.modules | digests}
    )
    trained_identity = lineage.code_identity
    if trained_identity is None:
        return CodeComparison(
            outcome="unknown",
            trained_digest=lineage.code,
            current_digest=current_identity.digest,
        )
    differences = _user_modules_only(current_identity).changes(_user_modules_only(trained_identity))
    return CodeComparison(
        outcome="other" if differences else "same",
        trained_digest=lineage.code,
        current_digest=current_identity.digest,
        differences=differences,
        other_differences=tuple(
            change
            for change in current_identity.changes(trained_identity)
            if change not in differences
        ),
    )


def require_same_code(who: str, lineage: Lineage, comparison: CodeComparison) -> None:
    """Reject a version whose code differs from the current code.

    Args:
        who: Name of the version in messages.
        lineage: Lineage of the version.
        comparison: Result of ``compare_code``.

    Raises:
        CodeMismatch: The version was trained with code that differs from the current code.
    """
    if comparison.outcome == "other":
        raise CodeMismatch(
            f"{who} must run with the code that it was trained with "
            f"({short(comparison.trained_digest)}), but the current code is "
            f"{short(comparison.current_digest)}: "
            f"{'; '.join(comparison.differences)}.",
            cause="With other code, its weights give predictions that no gate has evaluated.",
            fix=f"Restore that code ({describe_commit(lineage)}) and start again, or train again, "
            "or serve it with its stored code: add --code stored to 'sluice serve'.",
        )


def describe_rollback_code(who: str, lineage: Lineage, comparison: CodeComparison) -> str:
    """Return sentences that say whether a version restored by a rollback has the current code."""
    if comparison.outcome == "other":
        return (
            f"The code was not rolled back: {who} was trained with other code "
            f"({short(comparison.trained_digest)}; now {short(comparison.current_digest)}): "
            f"{'; '.join(comparison.differences)}. This checkout cannot serve it until that code "
            f"is restored ({describe_commit(lineage)}); 'sluice serve' with --code stored can."
        )
    sentence = f"The current code is that of {who}." if comparison.outcome == "same" else ""
    return f"{sentence} {comparison.warning(who)}".strip()


def describe_commit(lineage: Lineage) -> str:
    """Return the git commit of a version for a message."""
    suffix = " with uncommitted changes" if lineage.git.dirty else ""
    return f"git commit {lineage.git.commit[:12]}{suffix}"


def _user_modules_only(identity: CodeIdentity) -> CodeIdentity:
    own_modules = {
        n: digest for n, digest in identity.modules.items() if n.split(".")[0] != "sluice"
    }
    return CodeIdentity(modules=own_modules, distributions={}, data_files={})


def _read_source(name: str, path: Path) -> bytes:
    module = sys.modules.get(name)
    if module is None:
        return path.read_bytes()
    return _SOURCES.setdefault(module, path.read_bytes())
