"""Taking a version from one registry to another (REG-1, REG-3)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import IntegrityError
from sluice.base.files import write_atomic
from sluice.models.weights_format import require_safetensors
from sluice.models.weights_limits import LIMITS, ImportLimits
from sluice.registry.admission import require_consistent
from sluice.registry.code_paths import accept_code, code_trained_here
from sluice.registry.ledger import Ledger
from sluice.registry.public_keys import PrivateKey, TrustedKeys
from sluice.registry.records import Version
from sluice.registry.signing import SigningKey
from sluice.registry.version_file import ExportedVersion, VersionFile, pack_version, read_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedVersion:
    """The version that a file became, and who signed the file."""

    version: Version
    created: bool
    """False for a candidate that the registry had already."""

    signed_by: str
    """A phrase: "unsigned", "signed by NAME", or by an unknown key, which is stated."""


def export_version(
    ledger: Ledger,
    model: str,
    number: int,
    *,
    store: ArtifactStore,
    target: Path,
    key: SigningKey | None,
    private_key: PrivateKey | None,
) -> str:
    """Write one version to a file and return the file's SHA-256.

    Args:
        ledger: Holds the version.
        model: Its name.
        number: Its number.
        store: Holds its artifacts; each is checked as it is read.
        target: The file; one that is there is replaced.
        key: Signs the file for those who have the same key.
        private_key: Signs the file for everybody who has its public half.

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
    exported = ExportedVersion(
        number=number,
        lineage=lineage,
        receipts=tuple({receipt.digest: receipt for receipt in receipts}.values()),
        history=tuple(
            entry
            for entry in ledger.history(model)
            if number in (entry.from_version, entry.to_version)
        ),
    )
    file = VersionFile(exported=exported, artifacts={d: store.get(d) for d in digests})
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
    trusted: TrustedKeys | None,
    own: Callable[[str], Collection[str]],
    trust: Collection[str],
    limits: ImportLimits = LIMITS,
) -> ImportedVersion:
    """File the version in ``source`` as dev, after checking all of it.

    Nothing in the file is run or imported. The code that it names must be Sluice's own, that of
    the pipeline here, or trusted; which of these it is goes into the history.

    Args:
        ledger: Takes it under the next number of its model.
        source: A file that ``export_version`` wrote.
        store: Takes its artifacts.
        actor: Who, for the history.
        key: Requires the file's signature with this key.
        trusted: Requires an Ed25519 signature with one of these keys.
        own: Returns the import paths that the pipeline of a name has here. Those of versions that
            were trained here are known without it.
        trust: Import paths that the importer trusts, with the modules in the file.
        limits: Bounds of everything that the author of the file chooses.

    Raises:
        StorageError, ContractError, IntegrityError: See ``read_version``; or weights are no
            safetensors file. Nothing is filed then.
        UntrustedCode: The version names code that is neither known here nor trusted.
        SettingsError: A trusted path is not one that the version names.
    """
    file = read_version(source, key=key, trusted=trusted, limits=limits)
    exported = file.exported
    lineage = exported.lineage
    for role, digest in lineage.weights().items():
        require_safetensors(file.artifacts[digest], what=f"{source.name}, {role}")
    problem = lineage.contradiction()
    if problem:
        raise IntegrityError(
            f"{source.name} is not as it was exported: {problem}.",
            cause="Data, config, settings, code or weights were changed on the way.",
            fix="Export it again; nothing was imported.",
        )
    require_consistent(lineage.model, lineage)  # before anything is stored
    known = {*own(lineage.model), *code_trained_here(ledger.versions(lineage.model))}
    code = accept_code(lineage, own=known, trust=trust)
    for content in file.artifacts.values():
        store.put(content)
    registered = next((e for e in exported.history if e.revision is None), None)
    when = f", registered {registered.at:%Y-%m-%d %H:%M:%S} UTC" if registered else ""
    done = ledger.adopt(
        lineage,
        exported.receipts,
        actor=actor,
        reason=f"imported from {source.name}: version {exported.number} of its registry{when}; "
        f"SHA-256 {file.digest}; {file.signed_by}",
        code=code,
    )
    return ImportedVersion(version=done.version, created=done.created, signed_by=file.signed_by)
