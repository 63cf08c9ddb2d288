"""One version as one file: a zip of its lineage, receipts, history and every artifact.

Equal versions give equal bytes. Nothing is compressed and nothing is unpacked to a path: a part is
read by its name in the manifest, checked against its SHA-256, and only then used.
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
from sluice.models.weights_limits import ImportLimits
from sluice.registry.import_checks import find_import_problem, find_text_problem
from sluice.registry.lineage import Lineage
from sluice.registry.public_keys import ManifestSignature, PrivateKey, TrustedKeys
from sluice.registry.records import HistoryEntry
from sluice.registry.signing import SigningKey

FORMAT = "sluice version"
FORMAT_NUMBER = 1

_MANIFEST, _CONTENT, _SIGNATURE = "manifest.json", "version.json", "signature.txt"
_PUBLIC_SIGNATURE = "signature.ed25519.txt"
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,  # a kind of zip that Python does not read
    RuntimeError,  # an encrypted part
)
"""What Python's reader raises for a file that is no zip, or a damaged one."""

_BEFORE_ZIP_KNEW_TIME = (1980, 1, 1, 0, 0, 0)


class ExportedVersion(Record):
    """What a registry says of one version, without its artifacts."""

    number: int
    lineage: Lineage
    receipts: tuple[Receipt, ...]
    history: tuple[HistoryEntry, ...]


class Manifest(Record):
    """Which parts there are, by name, each with its SHA-256."""

    format: str
    format_number: int
    parts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFile:
    """A version that left its registry."""

    exported: ExportedVersion
    artifacts: Mapping[str, bytes]
    """Content by digest."""

    digest: str = ""
    """SHA-256 of the whole file that was read; "" for one that is not written yet."""

    signed_by: str = "unsigned"
    """Who signed it with Ed25519, as a phrase: unsigned, by an unknown key, or by a trusted one."""


def pack_version(
    file: VersionFile, *, key: SigningKey | None, private_key: PrivateKey | None
) -> bytes:
    """Return the file's bytes, the same for the same version.

    Args:
        file: What to write.
        key: Signs the manifest, and with it every part, for those who have the same key.
        private_key: Signs the manifest for everybody who has its public half.
    """
    parts = {_CONTENT: _json(file.exported.model_dump(mode="json"))}
    parts |= {f"artifacts/{digest}": content for digest, content in file.artifacts.items()}
    digests = {name: digest_bytes(content) for name, content in parts.items()}
    manifest = Manifest(format=FORMAT, format_number=FORMAT_NUMBER, parts=digests)
    parts[_MANIFEST] = _json(manifest.model_dump(mode="json"))
    if key is not None:
        text = f"{key.key_id} {key.sign('version file', digest_bytes(parts[_MANIFEST]))}"
        parts[_SIGNATURE] = text.encode()
    if private_key is not None:
        parts[_PUBLIC_SIGNATURE] = ManifestSignature.make(parts[_MANIFEST], private_key).text
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(parts):
            info = zipfile.ZipInfo(name, _BEFORE_ZIP_KNEW_TIME)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, parts[name])
    return target.getvalue()


def read_version(
    path: Path, *, key: SigningKey | None, trusted: TrustedKeys | None, limits: ImportLimits
) -> VersionFile:
    """Read a file that ``pack_version`` made, and check every part of it.

    Args:
        path: The file; it is read once, and no pipe or device.
        key: Requires a signature of the manifest with this key.
        trusted: Requires an Ed25519 signature of the manifest with one of these keys. Without
            them, a signature that is there must still fit the key that it names.
        limits: Bounds of everything that the author of the file chooses.

    Raises:
        StorageError: The file cannot be read, or is larger than the limit.
        ContractError: It is no such file, or of another format.
        IntegrityError: A part is missing, unexpected, changed, malformed, out of bounds, or not
            signed with the key.

    Cost:
        Holds the whole version in memory, twice.
    """
    try:
        content = read_regular(path, max_bytes=limits.max_file_bytes)
    except OSError as error:
        raise StorageError(
            f"The file {path} cannot be read ({error.strerror or error}).",
            fix="Name a file that sluice registry export made.",
        ) from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = _read_parts(archive, str(path), limits, num_bytes=len(content))
    except SluiceError:  # our own refusals, of which some are ValueErrors as well
        raise
    except _ZIP_ERRORS as error:
        raise _damaged(str(path), f"it is damaged ({error})") from error
    if key is not None:
        _require_signed(parts, str(path), key)
    signed_by = _require_public_signature(parts, str(path), trusted)
    for name in (_SIGNATURE, _PUBLIC_SIGNATURE, _MANIFEST):
        parts.pop(name, None)
    exported = _parse_description(parts.pop(_CONTENT, b""), str(path), limits)
    artifacts = {name.removeprefix("artifacts/"): content for name, content in parts.items()}
    _require_whole(exported.lineage, artifacts, str(path))
    return VersionFile(
        exported=exported,
        artifacts=artifacts,
        digest=digest_bytes(content),
        signed_by=signed_by,
    )


def _parse_description(text: bytes, where: str, limits: ImportLimits) -> ExportedVersion:
    try:
        problem = find_text_problem(
            parse_strict_json(text, finite=False), limits
        )  # NaN is evidence
        if problem:
            raise _damaged(where, problem)
        exported = ExportedVersion.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part)[:80] for part in first["loc"])
        raise _damaged(where, f"its description cannot be read: {place}: {first['msg']}") from None
    except ValueError as error:
        raise _damaged(where, f"its description cannot be read: {error}") from None
    problem = find_import_problem(
        exported.lineage, receipts=exported.receipts, history=exported.history, limits=limits
    )
    if problem:
        raise _damaged(where, problem)
    return exported


def _read_parts(
    archive: zipfile.ZipFile, where: str, limits: ImportLimits, *, num_bytes: int
) -> dict[str, bytes]:
    names = [info.filename for info in archive.infolist()]
    if len(names) > limits.max_parts:
        raise _damaged(where, f"it has {len(names):,} parts (max {limits.max_parts:,})")
    for info in archive.infolist():
        is_artifact = info.filename.startswith("artifacts/")
        if not is_artifact and info.file_size > limits.max_description_bytes:
            raise _damaged(where, f"{info.filename[:80]!r} has {info.file_size:,} bytes")
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise _damaged(where, "a part is compressed")  # a small file could fill the memory
    if sum(info.file_size for info in archive.infolist()) > num_bytes:
        raise _damaged(where, "its parts share bytes")  # a small file could fill the memory
    if len(set(names)) != len(names):
        raise _damaged(where, "a part is there twice")
    if _MANIFEST not in names:
        raise ContractError(
            f"{where} must be a version that was exported, and holds no {_MANIFEST}.",
            fix="Name a file that sluice registry export made.",
        )
    manifest_text = archive.read(_MANIFEST)
    manifest = _parse_manifest(manifest_text, where)
    expected = {_MANIFEST, *manifest.parts}
    found = set(names) - {_SIGNATURE, _PUBLIC_SIGNATURE}
    for name in sorted(expected ^ found):
        raise _damaged(where, f"{name!r} is {'missing' if name in expected else 'unexpected'}")
    parts = {_MANIFEST: manifest_text}
    for name, digest in manifest.parts.items():
        parts[name] = archive.read(name)
        if digest_bytes(parts[name]) != digest:
            raise _damaged(where, f"{name!r} holds other bytes than the manifest says")
    for name in {_SIGNATURE, _PUBLIC_SIGNATURE} & set(names):
        parts[name] = archive.read(name)
    return parts


def _parse_manifest(text: bytes, where: str) -> Manifest:
    try:
        found = parse_strict_json(text, finite=True)
        number = found["format_number"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(where, "its manifest cannot be read") from None
    if number != FORMAT_NUMBER:
        raise ContractError(
            f"{where} has format {number}, and this Sluice reads format {FORMAT_NUMBER}.",
            fix="Export it again with the same version of Sluice as this one.",
        )
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError:
        raise _damaged(where, "its manifest cannot be read") from None
    if manifest.format != FORMAT:
        raise _damaged(where, f"it is a {manifest.format!r}, not a {FORMAT!r}")
    return manifest


def _require_whole(lineage: Lineage, artifacts: Mapping[str, bytes], where: str) -> None:
    """Every artifact of the lineage under its digest, and nothing else."""
    named = {*lineage.weights().values(), *lineage.other_artifacts().values()}
    for digest in sorted(named ^ artifacts.keys()):
        state = "missing" if digest in named else "not part of the version"
        raise _damaged(where, f"artifact {digest[:12]} is {state}")
    for digest, content in artifacts.items():
        if digest_bytes(content) != digest:
            raise _damaged(where, f"artifact {digest[:12]} holds other bytes than its name says")


def _require_signed(parts: Mapping[str, bytes], where: str, key: SigningKey) -> None:
    text = parts.get(_SIGNATURE, b"").decode("ascii", errors="replace")
    _, _, signature = text.partition(" ")
    if not key.fits(signature, "version file", digest_bytes(parts[_MANIFEST])):
        raise IntegrityError(
            f"{where} is not signed with the key given.",
            cause="It was exported without this key, or changed since.",
            fix="Export it again with --key, or import it without.",
        )


def _require_public_signature(
    parts: Mapping[str, bytes], where: str, trusted: TrustedKeys | None
) -> str:
    """Return who signed the file, as a phrase; refuse a signature that is wrong or not trusted."""
    text = parts.get(_PUBLIC_SIGNATURE)
    signature = None if text is None else ManifestSignature.parse(text)
    if text is not None and (signature is None or not signature.fits(parts[_MANIFEST])):
        raise IntegrityError(
            f"{where} must have the Ed25519 signature of its content, and has another one.",
            cause="The file was changed after it was signed.",
            fix="Copy it again, or ask for it again; nothing was imported.",
        )
    name = trusted.name_of(signature.key) if trusted and signature else None
    if trusted is not None and name is None:
        found = f"signed by the unknown key {signature.key.text}" if signature else "unsigned"
        raise IntegrityError(
            f"{where} must be signed by a trusted key ({', '.join(trusted.by_name)}), and is "
            f"{found}.",
            cause="It was exported without a key, or by somebody whose key is not in the list.",
            fix="Ask its owner to export it with --private-key; add a key to the list only after "
            "its owner confirmed it on another way.",
        )
    if signature is None:
        return "unsigned"
    return f"signed by {name}" if name else f"signed by an unknown key, {signature.key.text}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1).encode()


def _damaged(where: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{where} is not as it was exported: {why}.",
        cause="The file was changed or damaged on its way.",
        fix="Copy it again, or export it again; nothing was imported.",
    )
