"""Making a version's networks again from what is recorded of it (REG-2, REG-3).

Imports torch: the ledger, which only looks most of the time, imports this inside functions.
"""

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes, short
from sluice.base.errors import (
    ContractError,
    IntegrityError,
    OtherCode,
    SettingsError,
    UntrustedCode,
)
from sluice.base.imports import import_named
from sluice.models.settings import ModelSettings
from sluice.models.weights_format import require_intact
from sluice.registry.code_paths import require_accepted_code, require_trusted_modules
from sluice.registry.own_code import (
    CodeComparison,
    code_sentence,
    commit_of,
    compare_code,
    require_same_code,
)
from sluice.registry.records import Finding, Version
from sluice.registry.stored_code import (
    CODE,
    CodeChoice,
    StoredModule,
    stored_modules,
    unpack_code,
)
from sluice.registry.stored_settings import RemovedSetting, migrate
from sluice.training.members import Member
from sluice.training.weights import load_member
from sluice.workloads.load import build_workload, require_workload_type
from sluice.workloads.workload import Workload


def rebuild(version: Version) -> tuple[Workload, ModelSettings]:
    """Return the workload and the model settings that a version was trained with.

    Settings that Sluice has no longer are left out; see ``stored_settings``. This is the one place
    where a version's import paths are followed.

    Raises:
        ContractError: They are not recorded, or no longer import, or a setting is unknown.
        UntrustedCode: It was imported, and names code that was not accepted then.
    """
    lineage = version.lineage
    where = f"{lineage.model}, candidate {short(lineage.candidate)}"
    config = lineage.resolved_config
    missing = [key for key in ("workload", "workload_settings", "model") if key not in config]
    if missing:
        raise ContractError(
            f"{where}: the recorded settings lack {', '.join(missing)}.",
            fix="Register the candidate again from a pipeline that records them.",
        )
    path = str(config["workload"])
    cls = _workload_type(version)
    current, _ = migrate(config["workload_settings"], cls.settings_type)
    try:
        settings = cls.settings_type.parse(current, where=where)
        model = ModelSettings.parse(config["model"], where=where)
    except SettingsError as error:
        raise SettingsError(
            error.what,
            cause="The version was stored with it, and the settings class of today does not take "
            "it.",
            fix="Let the settings class take it again, for example as a field with a default; or "
            "train the pipeline again.",
        ) from error
    return build_workload(cls, settings, path=path), model


def removed_settings(version: Version) -> tuple[RemovedSetting, ...]:
    """Return the stored settings of a version that Sluice has no longer.

    Raises:
        SettingsError: Its workload does not import.
        UntrustedCode: As ``rebuild``.
    """
    stored = version.lineage.resolved_config["workload_settings"]
    return migrate(stored, _workload_type(version).settings_type)[1]


def _workload_type(version: Version) -> type[Workload]:
    require_accepted_code(version)
    path = str(version.lineage.resolved_config["workload"])
    return require_workload_type(import_named(path, what="workload"), path)


def load_networks(version: Version, store: ArtifactStore) -> list[nn.Module]:
    """Return every network of a version, built by the code here, in the order of its members.

    It shows that the weights are there and fit. The code is not compared: what predicts for others
    is loaded by ``load_members``.

    Raises:
        IntegrityError: As ``load_members``.
    """
    with _explained(version):
        return _load(version, version.lineage.members, store)[1]


def load_members(
    version: Version,
    members: Sequence[Member],
    store: ArtifactStore,
    *,
    code: CodeChoice = "present",
) -> tuple[Workload, list[nn.Module]]:
    """Return the workload of a version and the networks of some of its members, in their order.

    Args:
        version: Names the workload, the settings and the weights.
        members: Of the version.
        store: Holds the weights, and the version's own modules.
        code: "present" builds the networks with the code of this checkout and refuses a version of
            other code. "stored" builds them with the modules that are stored with the version,
            which runs these modules: only for a person who asked for it.

    Raises:
        OtherCode: The version was trained with other code than the present one; or its own code
            was asked for and is not stored.
        UntrustedCode: It was imported, and names or brings code that was not trusted then.
        IntegrityError: Weights are missing, changed, no safetensors file, or do not fit; or the
            network cannot be built here. The message names the version and the part.
    """
    who, lineage = _name(version), version.lineage
    with _explained(version):
        if code == "stored":
            with stored_modules(read_stored_code(who, version, store)):
                return _load(version, members, store)
        require_same_code(who, lineage, compare_version(version))
        return _load(version, members, store)


def require_loadable(version: Version, store: ArtifactStore) -> None:
    """Read every artifact of a version and load every network, as serving would.

    Raises:
        IntegrityError: An artifact is missing or changed, or a network does not load.
        OtherCode: The version was trained with other code than the present one.
    """
    _require_artifacts(version, store)
    load_members(version, version.lineage.members, store)


def require_restorable(version: Version, store: ArtifactStore) -> str:
    """Read what a rollback needs of a version; return whether its code is the present one.

    A version of other code is not loaded and may be returned to: the servers that still run its
    code serve it, and so does one that starts with its stored code.

    Raises:
        IntegrityError: An artifact is missing or changed, or the networks of a version of the
            present code do not load.
    """
    _require_artifacts(version, store)
    with contextlib.suppress(OtherCode):
        load_members(version, version.lineage.members, store)
    return code_sentence(_name(version), version.lineage, compare_version(version))


def read_stored_code(who: str, version: Version, store: ArtifactStore) -> dict[str, StoredModule]:
    """Return the modules that are stored with a version; they are those of its code digest.

    Args:
        who: Names the version in messages.
        version: Whose code is meant.
        store: Holds the archive.

    Raises:
        OtherCode: The version was stored without its code.
        UntrustedCode: It was imported, and its code was not trusted then.
        IntegrityError: The archive is missing or damaged, or holds other modules.
    """
    require_trusted_modules(version)
    lineage = version.lineage
    identity = lineage.code_identity
    if identity is None or CODE not in lineage.artifacts:
        raise OtherCode(
            f"{who} must have its code stored with it, and has not.",
            cause="It was trained before Sluice stored the code of a version.",
            fix=f"Work in a checkout of its code ({commit_of(lineage)}), with the present code.",
        )
    modules = unpack_code(store.get(lineage.artifacts[CODE]))
    wrong = [n for n, m in modules.items() if identity.modules.get(n) != digest_bytes(m.source)]
    if wrong or identity.digest != lineage.code:
        raise IntegrityError(
            f"{who}: the stored code must be that of its code digest {short(lineage.code)}, and "
            f"{', '.join(wrong) or 'its list of modules'} is not.",
            cause="The lineage was changed after it was registered.",
            fix="Run: sluice registry verify",
        )
    return modules


def compare_version(version: Version) -> CodeComparison:
    """Compare the code of a version with the code of this process.

    Raises:
        ContractError: Its workload or architecture is not importable here.
    """
    return compare_code(version.lineage, *rebuild(version))


def code_findings(version: Version) -> list[Finding]:
    """Return a finding when the code here is not that of a version in production.

    None where the version's workload or network is not importable: another folder has its code.
    """
    try:
        comparison = compare_version(version)
        require_same_code(_name(version), version.lineage, comparison)
    except ContractError:
        return []
    except (OtherCode, UntrustedCode) as error:
        return [
            Finding(
                model=version.model,
                version=version.number,
                problem="code",
                what=f"{error.what} {error.cause}",
                fix=error.fix,
            )
        ]
    return []


@contextlib.contextmanager
def _explained(version: Version) -> Iterator[None]:
    try:
        yield
    except ContractError as error:
        fix = (
            "Start the command where the pipeline's own code imports, or keep the old name working"
        )
        if isinstance(error.__cause__, SettingsError):  # the stored settings do not fit
            fix = error.fix.rstrip(".")
        raise IntegrityError(
            f"{_name(version)} does not load: {error.what}",
            cause=error.cause
            or "Its workload or network is not importable here, or was renamed since.",
            fix=f"{fix}; nothing was moved.",
        ) from error


def _load(
    version: Version, members: Sequence[Member], store: ArtifactStore
) -> tuple[Workload, list[nn.Module]]:
    workload, settings = rebuild(version)
    return workload, [load_member(m, workload, settings, store) for m in members]


def _require_artifacts(version: Version, store: ArtifactStore) -> None:
    who = _name(version)
    for role, digest in version.lineage.weights().items():
        require_intact(store, digest, what=f"{who}, {role}", is_weights=True)
    for role, digest in version.lineage.other_artifacts().items():
        require_intact(store, digest, what=f"{who}, {role}", is_weights=False)


def _name(version: Version) -> str:
    return f"{version.model} version {version.number}"
