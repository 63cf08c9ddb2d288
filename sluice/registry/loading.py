"""Rebuilds the workload and the networks of a version from its lineage and artifacts.

This module imports torch. The ledger therefore imports it only in the functions that need it.
"""

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes, short
from sluice.base.errors import (
    CodecMismatch,
    CodeMismatch,
    ContractError,
    IntegrityError,
    SettingsError,
    UntrustedCode,
)
from sluice.base.imports import import_object
from sluice.findings.user_code import wrap_user_errors
from sluice.models.settings import ModelSettings
from sluice.models.weights_format import require_intact
from sluice.registry.code_comparison import (
    CodeComparison,
    compare_code,
    describe_commit,
    describe_rollback_code,
    require_same_code,
)
from sluice.registry.code_paths import require_accepted_code, require_trusted_modules
from sluice.registry.records import RegistryFinding, Version
from sluice.registry.stored_code import (
    CODE_ROLE,
    CodeSource,
    StoredModule,
    unpack_code,
    use_stored_modules,
)
from sluice.registry.stored_settings import RemovedSetting, migrate_settings
from sluice.training.members import Member
from sluice.training.weights import load_member
from sluice.workloads.codecs.identity import require_same_codec
from sluice.workloads.load import build_workload, require_workload_type
from sluice.workloads.workload import Workload


def rebuild_workload(version: Version) -> tuple[Workload, ModelSettings]:
    """Return the workload and the model settings with which a version was trained.

    Settings that no longer exist are omitted; see ``stored_settings``. Only this module imports
    code by the import paths of a version.

    Raises:
        ContractError: The settings are not recorded, or the workload or its settings class does
            not accept them; or the workload cannot be imported.
        UntrustedCode: The version was imported, and names code that was not accepted.
    """
    lineage = version.lineage
    where = f"{lineage.model}, candidate {short(lineage.candidate)}"
    config = lineage.resolved_config
    required_names = ("workload", "workload_settings", "model")
    missing_names = [name for name in required_names if name not in config]
    if missing_names:
        raise ContractError(
            f"{where}: the recorded settings lack {', '.join(missing_names)}.",
            fix="Train another candidate with a pipeline that records them. The lineage of a "
            "registered candidate does not change.",
        )
    workload_path = str(config["workload"])
    workload_type = _import_workload_type(version)
    current_settings, _ = migrate_settings(config["workload_settings"], workload_type.settings_type)
    try:
        settings = workload_type.settings_type.parse(current_settings, where=where)
        model_settings = ModelSettings.parse(config["model"], where=where)
    except SettingsError as error:
        raise SettingsError(
            error.what,
            cause="The version was stored with settings that the current settings class does not "
            "accept.",
            fix="Make the settings class accept the stored settings again, for example with "
            "defaults for new and removed fields; or train the pipeline again.",
        ) from error
    return build_workload(workload_type, settings, path=workload_path), model_settings


def removed_settings(version: Version) -> tuple[RemovedSetting, ...]:
    """Return the stored settings of a version that no longer exist.

    Raises:
        SettingsError: The workload cannot be imported.
        UntrustedCode: See ``rebuild_workload``.
    """
    stored_settings = version.lineage.resolved_config["workload_settings"]
    return migrate_settings(stored_settings, _import_workload_type(version).settings_type)[1]


def _import_workload_type(version: Version) -> type[Workload]:
    require_accepted_code(version)
    path = str(version.lineage.resolved_config["workload"])
    return require_workload_type(import_object(path, what="workload"), path)


def load_networks(version: Version, store: ArtifactStore) -> list[nn.Module]:
    """Return the networks of all members of a version, built by the current code.

    The weights must exist and match the networks. The code is not compared, so use ``load_members``
    to load a version for predictions.

    Raises:
        CodecMismatch, UntrustedCode, IntegrityError: See ``load_members``.
    """
    with _as_integrity_error(version):
        return _load_workload_and_networks(version, version.lineage.members, store)[1]


def load_members(
    version: Version,
    members: Sequence[Member],
    store: ArtifactStore,
    *,
    code: CodeSource = "current",
) -> tuple[Workload, list[nn.Module]]:
    """Return a version's workload and the networks of the given members, in their order.

    Args:
        version: The version.
        members: Members to load.
        store: Store of the weights and of the version's code.
        code: "current" builds the networks with the code of this checkout, and rejects a version
            that was trained with other code. "stored" builds them with the modules stored with the
            version. These modules are executed, so use "stored" only if a person requests it.

    Raises:
        CodeMismatch: The version was trained with code that differs from the current code; or its
            stored code was requested and does not exist.
        CodecMismatch: Requests would be decoded in another way than the inputs of the training.
        UntrustedCode: The version was imported, and names or contains code that is not trusted.
        IntegrityError: Weights are missing, changed, not a safetensors file, or do not match the
            network; or the network cannot be built.
    """
    version_name, lineage = _version_name(version), version.lineage
    with _as_integrity_error(version):
        if code == "stored":
            with use_stored_modules(read_stored_code(version_name, version, store)):
                return _load_workload_and_networks(version, members, store)
        require_same_code(version_name, lineage, compare_version(version))
        return _load_workload_and_networks(version, members, store)


def require_loadable(version: Version, store: ArtifactStore) -> None:
    """Verify every artifact of a version and load every network, as serving does.

    Raises:
        IntegrityError: An artifact is missing or changed, or a network cannot be loaded.
        CodeMismatch, CodecMismatch, UntrustedCode: See ``load_members``.
    """
    _require_artifacts(version, store)
    load_members(version, version.lineage.members, store)


def require_restorable(version: Version, store: ArtifactStore) -> str:
    """Verify the target of a rollback; return sentences on whether its code is the current code.

    A rollback to a version with other code is allowed, without loading the version. Servers that
    still run its code can serve the version, and so can a server started with its stored code. A
    rollback is also allowed if the current code decodes requests in another way than the version.

    Raises:
        IntegrityError: An artifact is missing or changed, or the networks of a version with the
            current code cannot be loaded.
        UntrustedCode: The version was imported, and names code that was not accepted.
    """
    _require_artifacts(version, store)
    codec_problem = ""
    try:
        load_members(version, version.lineage.members, store)
    except CodecMismatch as error:
        codec_problem = f"This checkout cannot serve it: {error.what}"
    except CodeMismatch:  # describe_rollback_code below describes the differences
        pass
    code_text = describe_rollback_code(
        _version_name(version), version.lineage, compare_version(version)
    )
    return f"{code_text} {codec_problem}".strip()


def read_stored_code(
    version_name: str, version: Version, store: ArtifactStore
) -> dict[str, StoredModule]:
    """Return the modules stored with a version, verified against its code digest.

    Args:
        version_name: Name of the version in messages.
        version: The version.
        store: Store of the archive.

    Raises:
        CodeMismatch: The version was stored without its code.
        UntrustedCode: The version was imported, and its code is not trusted.
        IntegrityError: The archive is missing or damaged, or its modules do not match the code
            digest.
    """
    require_trusted_modules(version)
    lineage = version.lineage
    identity = lineage.code_identity
    if identity is None or CODE_ROLE not in lineage.artifacts:
        raise CodeMismatch(
            f"{version_name} was stored without its code.",
            cause="The version was trained before Sluice stored the code of versions.",
            fix=f"Use a checkout of its code ({describe_commit(lineage)}) without --code stored.",
        )
    modules = unpack_code(store.get(lineage.artifacts[CODE_ROLE]))
    mismatched_modules = [
        name
        for name, module in modules.items()
        if identity.modules.get(name) != digest_bytes(module.source)
    ]
    if mismatched_modules or identity.digest != lineage.code:
        raise IntegrityError(
            f"The stored code of {version_name} must match its code digest {short(lineage.code)}, "
            f"but {', '.join(mismatched_modules) or 'its list of modules'} does not match.",
            cause="The lineage was changed after it was registered.",
            fix="Run: sluice registry verify",
        )
    return modules


def compare_version(version: Version) -> CodeComparison:
    """Compare the code of a version with the code of this process.

    Raises:
        ContractError: The version's workload or architecture cannot be imported here.
        UntrustedCode: The version was imported, and names code that was not accepted.
    """
    return compare_code(version.lineage, *rebuild_workload(version))


def code_findings(version: Version) -> list[RegistryFinding]:
    """Return a finding if a version was trained with other code or names code not accepted here.

    The result is [] if the workload or network cannot be imported, because the command then
    probably runs outside the folder of the pipeline.
    """
    try:
        comparison = compare_version(version)
        require_same_code(_version_name(version), version.lineage, comparison)
    except ContractError:
        return []
    except (CodeMismatch, UntrustedCode) as error:
        return [
            RegistryFinding(
                model=version.model,
                version=version.number,
                problem="code",
                what=f"{error.what} {error.cause}",
                fix=error.fix,
            )
        ]
    return []


@contextlib.contextmanager
def _as_integrity_error(version: Version) -> Iterator[None]:
    """Convert a ContractError to an IntegrityError that names the version and says what to do."""
    try:
        yield
    except ContractError as error:
        fix = (
            "Start the command in the folder with the pipeline's code, or keep the old name "
            "importable"
        )
        if isinstance(error.__cause__, SettingsError):  # the stored settings are not accepted
            fix = error.fix.rstrip(".")
        raise IntegrityError(
            f"{_version_name(version)} cannot be loaded: {error.what}",
            cause=error.cause or "The workload or network cannot be imported here, or was renamed.",
            fix=f"{fix}. Production was not changed.",
        ) from error


def _load_workload_and_networks(
    version: Version, members: Sequence[Member], store: ArtifactStore
) -> tuple[Workload, list[nn.Module]]:
    workload, settings = rebuild_workload(version)
    training_codec = version.lineage.codec
    if training_codec is not None:
        with wrap_user_errors("codec() of the workload"):
            current_codec = workload.codec().identity()
        require_same_codec(_version_name(version), training_codec, current_codec)
    return workload, [load_member(member, workload, settings, store) for member in members]


def _require_artifacts(version: Version, store: ArtifactStore) -> None:
    version_name = _version_name(version)
    for role, digest in version.lineage.weights().items():
        require_intact(store, digest, what=f"{version_name}, {role}", is_weights=True)
    for role, digest in version.lineage.other_artifacts().items():
        require_intact(store, digest, what=f"{version_name}, {role}", is_weights=False)


def _version_name(version: Version) -> str:
    return f"{version.model} version {version.number}"
