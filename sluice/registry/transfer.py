"""Exports a version to a file and imports it into another registry."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import IntegrityError
from sluice.base.files import write_atomic
from sluice.models.import_limits import LIMITS, ImportLimits
from sluice.models.weights_format import require_safetensors
from sluice.registry.code_paths import accept_code, local_code_paths
from sluice.registry.ledger import Ledger
from sluice.registry.public_keys import ExporterPrivateKey, TrustedKeys
from sluice.registry.records import Version
from sluice.registry.signing import SigningKey
from sluice.registry.validation import require_consistent_lineage
from sluice.registry.version_file import ExportedVersion, VersionFile, pack_version, read_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedVersion:
    """Result of an import: the version and the signer of the file."""

    version: Version
    created: bool
    """False if the registry already had the candidate."""

    signed_by: str
    """Signer as a phrase: "unsigned", "signed by NAME" or "signed by an unknown key, KEY"."""


def export_version(
    ledger: Ledger,
    model: str,
    number: int,
    *,
    store: ArtifactStore,
    target: Path,
    key: SigningKey | None,
    private_key: ExporterPrivateKey | None,
) -> str:
    """Write one version to a file and return the file's SHA-256.

    Args:
        ledger: Ledger with the version.
        model: Name of the model.
        number: Number of the version.
        store: Store of the version's artifacts; each artifact is verified when it is read.
        target: Path of the file; an existing file is replaced.
        key: Key of the registry that signs the file; None to omit this signature.
        private_key: Ed25519 key of the exporter that signs the file; None to omit this signature.

    Raises:
        UnknownVersion: There is no such version.
        IntegrityError: An artifact is missing or was changed.
    """
    version = ledger.version(model, number)
    lineage = version.lineage
    receipts = [
        *ledger.imported_receipts(model, number),
        *(linked.receipt for linked in ledger.receipts(model, number)),
    ]
    digests = {*lineage.weights().values(), *lineage.other_artifacts().values()}
    exported_version = ExportedVersion(
        number=number,
        lineage=lineage,
        receipts=tuple({receipt.digest: receipt for receipt in receipts}.values()),
        history=tuple(
            entry
            for entry in ledger.history(model)
            if number in (entry.from_version, entry.to_version)
        ),
    )
    artifacts = {digest: store.get(digest) for digest in digests}
    file = VersionFile(exported_version=exported_version, artifacts=artifacts)
    content = pack_version(file, key=key, private_key=private_key)
    write_atomic(target, content)
    return digest_bytes(content)


def import_version(
    ledger: Ledger,
    source: Path,
    *,
    store: ArtifactStore,
    actor: str,
    key: SigningKey | None,
    trusted_keys: TrustedKeys | None,
    local_paths_of: Callable[[str], Collection[str]],
    trusted_paths: Collection[str],
    limits: ImportLimits = LIMITS,
) -> ImportedVersion:
    """Import the version of a file in state dev, after verifying the whole file.

    No code in the file is executed or imported. Each import path that the version names must be

    - a class of Sluice,
    - used by the shipped pipeline (a pipeline file that is part of Sluice) of the same name,
    - used by a version of the model that was trained here, or
    - in ``trusted_paths``.

    The history records the accepted and trusted import paths.

    Args:
        ledger: Ledger that stores the version under the next number of its model.
        source: File written by ``export_version``.
        store: Store for the artifacts.
        actor: Actor for the history.
        key: If given, the file must be signed with this key.
        trusted_keys: If given, the file must have an Ed25519 signature with one of these keys.
        local_paths_of: Returns the import paths that the shipped pipeline of a given name uses.
        trusted_paths: Import paths that the user trusts, including the modules stored in the file.
        limits: Limits for everything that the author of the file chooses.

    Raises:
        StorageError, ContractError, IntegrityError: See ``read_version`` and
            ``Ledger.import_version``; or the weights are not a safetensors file. The registry is
            unchanged.
        UntrustedCode: The version names code that is neither used here nor trusted.
        SettingsError: ``trusted_paths`` contains a path that the version does not name.
    """
    file = read_version(source, key=key, trusted_keys=trusted_keys, limits=limits)
    exported_version = file.exported_version
    lineage = exported_version.lineage
    for role, digest in lineage.weights().items():
        require_safetensors(file.artifacts[digest], what=f"{source.name}, {role}")
    problem = lineage.find_contradiction()
    if problem:
        raise IntegrityError(
            f"{source.name} was changed since its export: {problem}.",
            cause="Data, config, settings, code or weights were changed in transit.",
            fix="Export the version again. Nothing was imported.",
        )
    require_consistent_lineage(lineage.model, lineage)  # before anything is stored
    local_paths = {
        *local_paths_of(lineage.model),
        *local_code_paths(ledger.versions(lineage.model)),
    }
    code_acceptance = accept_code(lineage, local_paths=local_paths, trusted_paths=trusted_paths)
    for content in file.artifacts.values():
        store.put(content)
    first_entry = next(
        (entry for entry in exported_version.history if entry.revision is None), None
    )
    registered_text = f", registered {first_entry.at:%Y-%m-%d %H:%M:%S} UTC" if first_entry else ""
    result = ledger.import_version(
        lineage,
        exported_version.receipts,
        actor=actor,
        reason=f"imported from {source.name}: version {exported_version.number} of its "
        f"registry{registered_text}; SHA-256 {file.digest}; {file.signed_by}",
        code=code_acceptance,
    )
    return ImportedVersion(version=result.version, created=result.created, signed_by=file.signed_by)
