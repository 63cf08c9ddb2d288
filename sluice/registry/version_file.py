"""File format for one version: a zip archive with lineage, receipts, history and all artifacts.

Equal versions give equal bytes. The entries of the archive, called parts, are not compressed and
never extracted to a path. Each part is read by its name in the manifest, and verified against its
SHA-256 before it is used.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError, SluiceError, StorageError
from sluice.base.files import read_regular
from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.base.strict_json import parse_strict_json
from sluice.models.import_limits import ImportLimits
from sluice.registry.import_checks import find_import_problem, find_text_problem
from sluice.registry.lineage import Lineage
from sluice.registry.public_keys import ExporterPrivateKey, ManifestSignature, TrustedKeys
from sluice.registry.records import HistoryEntry
from sluice.registry.signing import SigningKey

FORMAT = "sluice version"
FORMAT_NUMBER = 1
"""Format number of version files; a file with another format number is rejected."""

_MANIFEST, _METADATA, _SIGNATURE = "manifest.json", "version.json", "signature.txt"
_PUBLIC_SIGNATURE = "signature.ed25519.txt"
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,  # a zip variant that Python does not support
    RuntimeError,  # an encrypted part
)
"""Exceptions that Python's zip reader raises for invalid or damaged files."""

_EARLIEST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""Fixed date of all parts, so that equal versions give equal bytes. It is the earliest date of the
zip format."""


class ExportedVersion(Record):
    """Metadata of an exported version, stored as version.json."""

    number: int
    lineage: Lineage
    receipts: tuple[Receipt, ...]
    history: tuple[HistoryEntry, ...]


class Manifest(Record):
    """Content of manifest.json: the SHA-256 of each other part except signatures, by name."""

    format: str
    format_number: int
    parts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFile:
    """Content of a version file."""

    exported_version: ExportedVersion
    artifacts: Mapping[str, bytes]
    """Content of the artifacts, by digest."""

    digest: str = ""
    """SHA-256 of the file from which this content was read; "" for new content."""

    signed_by: str = "unsigned"
    """Ed25519 signer as a phrase: "unsigned", "signed by NAME" or "signed by an unknown key,
    KEY"."""


def pack_version(
    file: VersionFile, *, key: SigningKey | None, private_key: ExporterPrivateKey | None
) -> bytes:
    """Return the bytes of a version file; equal versions give equal bytes.

    Args:
        file: Content of the file.
        key: Key of the registry. It signs the manifest, which covers all other parts. None to omit
            this signature.
        private_key: Ed25519 key of the exporter. It signs the manifest, too. None to omit this
            signature.
    """
    parts = {_METADATA: _json(file.exported_version.model_dump(mode="json"))}
    parts |= {f"artifacts/{digest}": content for digest, content in file.artifacts.items()}
    digests = {name: digest_bytes(content) for name, content in parts.items()}
    manifest = Manifest(format=FORMAT, format_number=FORMAT_NUMBER, parts=digests)
    parts[_MANIFEST] = _json(manifest.model_dump(mode="json"))
    if key is not None:
        text = f"{key.key_id} {key.sign('version file', digest_bytes(parts[_MANIFEST]))}"
        parts[_SIGNATURE] = text.encode()
    if private_key is not None:
        parts[_PUBLIC_SIGNATURE] = ManifestSignature.make(parts[_MANIFEST], private_key).content
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(parts):
            info = zipfile.ZipInfo(name, _EARLIEST_ZIP_DATE)
            info.create_system, info.external_attr = 3, 0o644 << 16  # Unix, mode 0644
            archive.writestr(info, parts[name])
    return target.getvalue()


def read_version(
    path: Path, *, key: SigningKey | None, trusted_keys: TrustedKeys | None, limits: ImportLimits
) -> VersionFile:
    """Read a file written by ``pack_version`` and verify every part of it.

    Args:
        path: Path of the file, which must be a regular file. It is read once.
        key: If given, the manifest must be signed with this key.
        trusted_keys: If given, the manifest must be signed with one of these Ed25519 keys. If None,
            an Ed25519 signature in the file must still be valid for the public key beside it.
        limits: Limits for everything that the author of the file chooses.

    Raises:
        StorageError: The file cannot be read, or is too large.
        ContractError: The archive is not a version file, or has another format number.
        IntegrityError: The file is not an archive, or is not signed as required; or a part is
            missing, unexpected, changed, malformed or beyond a limit.

    Cost:
        Holds the whole version in memory twice.
    """
    try:
        content = read_regular(path, max_bytes=limits.max_file_bytes)
    except OSError as error:
        raise StorageError(
            f"The file {path} cannot be read ({error.strerror or error}).",
            fix="Use a file created by sluice registry export.",
        ) from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = _read_parts(archive, str(path), limits, num_file_bytes=len(content))
    except SluiceError:  # _read_parts may raise a ContractError, which is also a ValueError
        raise
    except _ZIP_ERRORS as error:
        raise _damaged_error(str(path), f"it is damaged ({error})") from error
    if key is not None:
        _require_signed(parts, str(path), key)
    signed_by = _require_public_signature(parts, str(path), trusted_keys)
    for name in (_SIGNATURE, _PUBLIC_SIGNATURE, _MANIFEST):
        parts.pop(name, None)
    exported_version = _parse_metadata(parts.pop(_METADATA, b""), str(path), limits)
    artifacts = {name.removeprefix("artifacts/"): content for name, content in parts.items()}
    _require_complete(exported_version.lineage, artifacts, str(path))
    return VersionFile(
        exported_version=exported_version,
        artifacts=artifacts,
        digest=digest_bytes(content),
        signed_by=signed_by,
    )


def _parse_metadata(text: bytes, where: str, limits: ImportLimits) -> ExportedVersion:
    try:
        metadata = parse_strict_json(text, require_finite=False)  # receipts may contain NaN
        problem = find_text_problem(metadata, limits)
        if problem:
            raise _damaged_error(where, problem)
        exported_version = ExportedVersion.model_validate_json(text)
    except ValidationError as error:
        first_error = error.errors()[0]
        field_path = ".".join(str(part)[:80] for part in first_error["loc"])
        raise _damaged_error(
            where, f"its {_METADATA} cannot be read: {field_path}: {first_error['msg']}"
        ) from None
    except ValueError as error:
        raise _damaged_error(where, f"its {_METADATA} cannot be read: {error}") from None
    problem = find_import_problem(
        exported_version.lineage,
        receipts=exported_version.receipts,
        history=exported_version.history,
        limits=limits,
    )
    if problem:
        raise _damaged_error(where, problem)
    return exported_version


def _read_parts(
    archive: zipfile.ZipFile, where: str, limits: ImportLimits, *, num_file_bytes: int
) -> dict[str, bytes]:
    names = [info.filename for info in archive.infolist()]
    if len(names) > limits.max_parts:
        raise _damaged_error(where, f"it has {len(names):,} parts (max {limits.max_parts:,})")
    for info in archive.infolist():
        is_artifact = info.filename.startswith("artifacts/")
        if not is_artifact and info.file_size > limits.max_description_bytes:
            raise _damaged_error(
                where,
                f"{info.filename[:80]!r} has {info.file_size:,} bytes (max "
                f"{limits.max_description_bytes:,})",
            )
    # Compressed or overlapping parts are rejected, because they need more memory than the file.
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise _damaged_error(where, "a part is compressed")
    if sum(info.file_size for info in archive.infolist()) > num_file_bytes:
        raise _damaged_error(where, "its parts overlap")
    if len(set(names)) != len(names):
        raise _damaged_error(where, "it has a duplicate part")
    if _MANIFEST not in names:
        raise ContractError(
            f"{where} is not an exported version: it has no {_MANIFEST}.",
            fix="Use a file created by sluice registry export.",
        )
    manifest_text = archive.read(_MANIFEST)
    manifest = _parse_manifest(manifest_text, where)
    expected_names = {_MANIFEST, *manifest.parts}
    actual_names = set(names) - {_SIGNATURE, _PUBLIC_SIGNATURE}
    for name in sorted(expected_names ^ actual_names):
        raise _damaged_error(
            where, f"{name!r} is {'missing' if name in expected_names else 'unexpected'}"
        )
    parts = {_MANIFEST: manifest_text}
    for name, digest in manifest.parts.items():
        parts[name] = archive.read(name)
        if digest_bytes(parts[name]) != digest:
            raise _damaged_error(where, f"the content of {name!r} does not match the manifest")
    for name in {_SIGNATURE, _PUBLIC_SIGNATURE} & set(names):
        parts[name] = archive.read(name)
    return parts


def _parse_manifest(text: bytes, where: str) -> Manifest:
    try:
        manifest_fields = parse_strict_json(text, require_finite=True)
        number = manifest_fields["format_number"]
    except (ValueError, KeyError, TypeError):
        raise _damaged_error(where, "its manifest cannot be read") from None
    if number != FORMAT_NUMBER:
        raise ContractError(
            f"{where} has format {number}, but this version of Sluice supports format "
            f"{FORMAT_NUMBER}.",
            fix="Export the version again with this version of Sluice.",
        )
    try:
        manifest = Manifest.model_validate(manifest_fields)
    except ValidationError:
        raise _damaged_error(where, "its manifest cannot be read") from None
    if manifest.format != FORMAT:
        raise _damaged_error(where, f"it is a {manifest.format!r}, not a {FORMAT!r}")
    return manifest


def _require_complete(lineage: Lineage, artifacts: Mapping[str, bytes], where: str) -> None:
    """Check that the file has exactly the artifacts of the lineage, with matching digests."""
    lineage_digests = {*lineage.weights().values(), *lineage.other_artifacts().values()}
    for digest in sorted(lineage_digests ^ artifacts.keys()):
        state = "missing" if digest in lineage_digests else "not part of the version"
        raise _damaged_error(where, f"artifact {digest[:12]} is {state}")
    for digest, content in artifacts.items():
        if digest_bytes(content) != digest:
            raise _damaged_error(
                where, f"the content of artifact {digest[:12]} does not match its name"
            )


def _require_signed(parts: Mapping[str, bytes], where: str, key: SigningKey) -> None:
    text = parts.get(_SIGNATURE, b"").decode("ascii", errors="replace")
    _, _, signature = text.partition(" ")
    if not key.verify(signature, "version file", digest_bytes(parts[_MANIFEST])):
        raise IntegrityError(
            f"{where} is not signed with the given key.",
            cause="The file was exported without this key, or changed later.",
            fix="Export the version again with --key, or import the file without --key.",
        )


def _require_public_signature(
    parts: Mapping[str, bytes], where: str, trusted_keys: TrustedKeys | None
) -> str:
    """Return the signer of the file as a phrase; reject an invalid or untrusted signature.

    If ``trusted_keys`` is given, a file without an Ed25519 signature is rejected, too.
    """
    text = parts.get(_PUBLIC_SIGNATURE)
    signature = None if text is None else ManifestSignature.parse(text)
    if text is not None and (signature is None or not signature.verify(parts[_MANIFEST])):
        raise IntegrityError(
            f"The Ed25519 signature of {where} does not match its content.",
            cause="The file was changed after it was signed.",
            fix="Copy the file again, or request a new file. Nothing was imported.",
        )
    name = trusted_keys.name_of(signature.key) if trusted_keys and signature else None
    if trusted_keys is not None and name is None:
        state = f"signed by the unknown key {signature.key.text}" if signature else "unsigned"
        raise IntegrityError(
            f"{where} must be signed by a trusted key ({', '.join(trusted_keys.key_by_name)}), but "
            f"is {state}.",
            cause="The file was exported without a key, or with a key that is not in the list.",
            fix="Ask the owner of the file to export it with --private-key. Add a key to the list "
            "only after its owner has confirmed it over a separate channel.",
        )
    if signature is None:
        return "unsigned"
    return f"signed by {name}" if name else f"signed by an unknown key, {signature.key.text}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1).encode()


def _damaged_error(where: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{where} is not a valid version file: {why}.",
        cause="The file was changed or damaged after its export, or exceeds a limit of imports.",
        fix="Copy the file again, or export the version again. Nothing was imported.",
    )
