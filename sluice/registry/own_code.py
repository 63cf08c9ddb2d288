"""Whether the code here is the code that a version was trained with.

The user's own modules decide: a version runs in the modules that it was trained with. Another
version of Sluice or of a package is reported only, because Sluice keeps its own stored networks
loadable, and an update of a package must not stop a server.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal
from weakref import WeakKeyDictionary

from sluice.base.digests import digest_bytes, short
from sluice.base.errors import OtherCode
from sluice.models.settings import ModelSettings
from sluice.registry.lineage import Lineage
from sluice.registry.stored_code import StoredModule
from sluice.training.code import follow_code, identify_code
from sluice.training.code_identity import CodeIdentity
from sluice.workloads.workload import Workload

_READ: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Source of each module of this process as it was read first. A file that was changed since is not
what the process runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """The code of a version beside the code of this process."""

    outcome: Literal["same", "other", "unknown"]
    """"same" when the user's own modules are the same; "unknown" for a version that was stored
    with the digest of its code alone."""

    before: str
    """Code digest of the version."""

    now: str
    """Code digest of this process."""

    differences: tuple[str, ...] = ()
    """What differs in the user's own modules, a phrase for each."""

    others: tuple[str, ...] = ()
    """What differs besides: packages, Sluice, data files."""

    def warning(self, who: str) -> str:
        """Return what cannot be compared or differs besides, as a sentence; "" when nothing."""
        if self.outcome == "unknown":
            return (
                f"{who} was stored without the parts of its code, so the code here cannot be "
                "compared with it."
            )
        if self.others:
            return f"{who} was trained with: {'; '.join(self.others)} (then -> here)."
        return ""


def collect_own_modules(workload: Workload, model: ModelSettings) -> dict[str, StoredModule]:
    """Return the user's modules that the workload and the network consist of, by dotted name.

    A module is as this process read it first: what is in memory, not what is on disk since.

    Raises:
        SettingsError: The architecture does not import.
    """
    return {
        name: StoredModule(source=_source(name, path), is_package=path.name == "__init__.py")
        for name, path in follow_code(workload, model).own.items()
        if path.suffix == ".py"
    }


def compare_code(lineage: Lineage, workload: Workload, model: ModelSettings) -> CodeComparison:
    """Compare the code of a version with the code of this process.

    Args:
        lineage: Of the version.
        workload: Of the version, built by the code of this process.
        model: Settings of the version.

    Raises:
        SettingsError: The architecture does not import, or a declared data file is missing.
    """
    own = collect_own_modules(workload, model)
    on_disk = identify_code(workload, model)
    digests = {name: digest_bytes(module.source) for name, module in own.items()}
    now = on_disk.model_copy(update={"modules": on_disk.modules | digests})
    before = lineage.code_identity
    if before is None:
        return CodeComparison(outcome="unknown", before=lineage.code, now=now.digest)
    differences = _own_modules(now).changes(_own_modules(before))
    return CodeComparison(
        outcome="other" if differences else "same",
        before=lineage.code,
        now=now.digest,
        differences=differences,
        others=tuple(each for each in now.changes(before) if each not in differences),
    )


def require_same_code(who: str, lineage: Lineage, comparison: CodeComparison) -> None:
    """Refuse a version of other code.

    Args:
        who: Names the version.
        lineage: Of the version.
        comparison: From ``compare_code``.

    Raises:
        OtherCode: The version was trained with other code than this process runs.
    """
    if comparison.outcome == "other":
        raise OtherCode(
            f"{who} must run the code that it was trained with ({short(comparison.before)}), and "
            f"the code here is {short(comparison.now)}: {'; '.join(comparison.differences)}.",
            cause="Its weights in a network of other code make other predictions than those that "
            "the gates judged.",
            fix=f"Restore that code ({commit_of(lineage)}) and start again, or train again, or "
            "serve it with the code that is stored with it: add --code stored to 'sluice serve'.",
        )


def code_sentence(who: str, lineage: Lineage, comparison: CodeComparison) -> str:
    """Return whether the code went back with a version, for a rollback."""
    if comparison.outcome == "other":
        return (
            f"The code did not go back: {who} was trained with other code "
            f"({short(comparison.before)}; here {short(comparison.now)}): "
            f"{'; '.join(comparison.differences)}. This checkout does not serve it until that code "
            f"is restored ({commit_of(lineage)}); 'sluice serve' with --code stored does."
        )
    same = f"The code here is that of {who}." if comparison.outcome == "same" else ""
    return f"{same} {comparison.warning(who)}".strip()


def commit_of(lineage: Lineage) -> str:
    """Return the git commit of a version, for a message."""
    changed = " with uncommitted changes" if lineage.git.dirty else ""
    return f"git commit {lineage.git.commit[:12]}{changed}"


def _own_modules(identity: CodeIdentity) -> CodeIdentity:
    own = {n: digest for n, digest in identity.modules.items() if n.split(".")[0] != "sluice"}
    return CodeIdentity(modules=own, distributions={}, data_files={})


def _source(name: str, path: Path) -> bytes:
    module = sys.modules.get(name)
    if module is None:
        return path.read_bytes()
    return _READ.setdefault(module, path.read_bytes())
