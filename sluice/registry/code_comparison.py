"""Compares the current code with the code that a version was trained with.

A version may only run with the same modules of the user as in its training. A different version of
Sluice or of another package is only reported. Sluice keeps stored networks loadable, and an update
of a package must not stop a server.
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

_FIRST_SOURCES: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Source of each imported module when it was first read. If the file changes later, this process
still runs this source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """Comparison of a version's code with the code of this process."""

    outcome: Literal["same", "other", "unknown"]
    """"same" if the user's modules are equal, "other" if they differ. "unknown" if the version was
    stored with the digest of its code only."""

    trained_digest: str
    """Digest of the code with which the version was trained."""

    current_digest: str
    """Digest of the code of this process."""

    differences: tuple[str, ...] = ()
    """Differences in the user's modules, one phrase each."""

    environment_differences: tuple[str, ...] = ()
    """Differences in packages, Sluice or data files, one phrase each."""

    def warning(self, version_name: str) -> str:
        """Return a warning about ``environment_differences`` or a missing comparison.

        "" if neither applies. Differences in the user's modules are not included, because
        ``require_same_code`` rejects the version.
        """
        if self.outcome == "unknown":
            return (
                f"{version_name} was stored with the digest of its code only, so it cannot be "
                "compared with the current code."
            )
        if self.environment_differences:
            differences_text = "; ".join(self.environment_differences)
            return f"{version_name} was trained with: {differences_text} (then -> now)."
        return ""


def collect_own_modules(workload: Workload, model: ModelSettings) -> dict[str, StoredModule]:
    """Return the user's modules used by the workload and the network, by dotted name.

    Each module has the source that this process imported, even if the file was changed later.

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
    user_modules = collect_own_modules(workload, model)
    identity_on_disk = identify_code(workload, model)
    imported_digests = {name: digest_bytes(module.source) for name, module in user_modules.items()}
    current_identity = identity_on_disk.model_copy(
        update={"modules": identity_on_disk.modules | imported_digests}
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
        environment_differences=tuple(
            change
            for change in current_identity.changes(trained_identity)
            if change not in differences
        ),
    )


def require_same_code(version_name: str, lineage: Lineage, comparison: CodeComparison) -> None:
    """Reject a version whose code differs from the current code.

    Args:
        version_name: Name of the version in messages.
        lineage: Lineage of the version.
        comparison: Result of ``compare_code``.

    Raises:
        CodeMismatch: The version was trained with code that differs from the current code.
    """
    if comparison.outcome == "other":
        raise CodeMismatch(
            f"{version_name} must run with the code that it was trained with "
            f"({short(comparison.trained_digest)}), but the current code is "
            f"{short(comparison.current_digest)}: "
            f"{'; '.join(comparison.differences)}.",
            cause="With other code, the weights give predictions that no gate has evaluated.",
            fix=f"Restore the code of the training ({describe_commit(lineage)}) and start again, "
            "train again, or serve the version with its stored code: sluice serve --code stored",
        )


def describe_rollback_code(version_name: str, lineage: Lineage, comparison: CodeComparison) -> str:
    """Return sentences about the code of a version to which production was rolled back.

    The sentences say whether the version was trained with the current code.
    """
    if comparison.outcome == "other":
        return (
            f"The code was not rolled back: {version_name} was trained with other code "
            f"({short(comparison.trained_digest)}; now {short(comparison.current_digest)}): "
            f"{'; '.join(comparison.differences)}. Restore that code ({describe_commit(lineage)}) "
            "before you serve the version here, or serve it with: sluice serve --code stored."
        )
    sentence = (
        f"The current code is the code of {version_name}." if comparison.outcome == "same" else ""
    )
    return f"{sentence} {comparison.warning(version_name)}".strip()


def describe_commit(lineage: Lineage) -> str:
    """Return the git commit of a version for a message."""
    suffix = " with uncommitted changes" if lineage.git.dirty else ""
    return f"git commit {lineage.git.commit[:12]}{suffix}"


def _user_modules_only(identity: CodeIdentity) -> CodeIdentity:
    user_modules = {
        name: digest for name, digest in identity.modules.items() if name.split(".")[0] != "sluice"
    }
    return CodeIdentity(modules=user_modules, distributions={}, data_files={})


def _read_source(name: str, path: Path) -> bytes:
    module = sys.modules.get(name)
    if module is None:
        return path.read_bytes()
    return _FIRST_SOURCES.setdefault(module, path.read_bytes())
