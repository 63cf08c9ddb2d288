"""Checks that stored weights have the correct digest and are a safetensors file."""

from collections.abc import Mapping

import safetensors

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.models.import_limits import LIMITS
from sluice.models.weights_header import WeightsMetadata

_OTHER_FORMATS: Mapping[bytes, str] = {
    **{bytes([0x80, version]): "a Python pickle" for version in range(2, 6)},
    b"PK\x03\x04": "a zip archive, as torch.save writes it around a pickle",
    b"\x1f\x8b": "a gzip file, as joblib writes it around a pickle",
    b"\x89HDF": "an HDF5 file",
}
"""Names of other formats of weights, by the first bytes of the file."""


def foreign_format(content: bytes) -> str | None:
    """Return the name of the format of a file if its first bytes are those of a known other format.

    None for a safetensors file, and for an unknown format.
    """
    # A safetensors file starts with the length of its header in 8 bytes. The first two bytes of
    # some lengths, such as 640, are those of a pickle. The last five bytes of a length are zero.
    if content[3:8] == bytes(5):
        return None
    return next((name for magic, name in _OTHER_FORMATS.items() if content.startswith(magic)), None)


def require_intact(store: ArtifactStore, digest: str, *, what: str, is_weights: bool) -> None:
    """Read an artifact and verify its content.

    Args:
        store: Store of the artifact.
        digest: Digest of the artifact.
        what: Name of the artifact in messages, such as version and role.
        is_weights: Whether the artifact must be a safetensors file with at least one tensor.

    Raises:
        IntegrityError: The artifact is missing, changed, or not a safetensors file.
    """
    try:
        content = store.get(digest)
    except IntegrityError as error:
        raise IntegrityError(f"{what}: {error.what}", cause=error.cause, fix=error.fix) from None
    if is_weights:
        require_safetensors(content, what=f"{what}: artifact {digest}")


def require_safetensors(content: bytes, *, what: str) -> None:
    """Reject weights that are not in Sluice's format, without executing code that they contain.

    The file must be accepted by Sluice's header reader, which is strict, and by the safetensors
    library, which loads the tensors.

    Raises:
        IntegrityError: The file is a pickle or has another format, contains no tensor, or its
            header is malformed or exceeds the limits.
    """
    try:
        WeightsMetadata.read(content, LIMITS)
        safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except (ValueError, safetensors.SafetensorError) as error:
        foreign_name = foreign_format(content)
        if foreign_name is not None:
            raise IntegrityError(
                f"{what} must be a safetensors file of weights, but is {foreign_name}.",
                cause="Only safetensors files are accepted, because they contain only numbers. "
                "Loading other formats may execute code of their author.",
                fix="Save the weights with safetensors.torch.save_file, or run the pipeline again.",
            ) from error
        raise _invalid_weights_error(what, str(error)) from error


def _invalid_weights_error(what: str, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{what} is not a safetensors file of weights ({reason}).",
        cause="The candidate was registered with another file in place of the weights.",
        fix="Run the pipeline again to create a candidate with weights.",
    )
