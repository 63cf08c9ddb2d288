"""Whether stored weights are what they must be: right bytes, and a safetensors file (REG-3)."""

from collections.abc import Mapping

import safetensors

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.models.weights_header import WeightsFacts
from sluice.models.weights_limits import LIMITS

_FOREIGN: Mapping[bytes, str] = {
    **{bytes([0x80, version]): "a Python pickle" for version in range(2, 6)},
    b"PK": "a zip archive, as torch.save writes it around a pickle",
    b"\x1f\x8b": "a gzip file, as joblib writes it around a pickle",
    b"\x89HDF": "an HDF5 file",
}
"""What else weights come as, by the first bytes."""


def foreign_format(content: bytes) -> str | None:
    """Name the format that weights must not have, when it can be told from the first bytes.

    A safetensors file begins with the length of its header, which never looks like these.
    """
    return next((name for magic, name in _FOREIGN.items() if content.startswith(magic)), None)


def require_intact(store: ArtifactStore, digest: str, *, what: str, is_weights: bool) -> None:
    """Read an artifact back.

    Args:
        store: Where it lies.
        digest: Its name.
        what: Which part of which version it is, for the message.
        is_weights: Its header must be a safetensors one, with at least one tensor.

    Raises:
        IntegrityError: It is missing, changed, or no safetensors file.
    """
    try:
        content = store.get(digest)
    except IntegrityError as error:
        raise IntegrityError(f"{what}: {error.what}", cause=error.cause, fix=error.fix) from None
    if is_weights:
        require_safetensors(content, what=f"{what}: artifact {digest}")


def require_safetensors(content: bytes, *, what: str) -> None:
    """Refuse weights that are not as Sluice writes them; nothing in them is ever run.

    Our own reader of the header comes first, because it is the stricter one; the library that
    loads the tensors must agree with it.

    Raises:
        IntegrityError: They are a pickle, or another kind of file, hold no tensor, or their
            header is malformed or out of bounds.
    """
    try:
        WeightsFacts.read(content, LIMITS)
        safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except (ValueError, safetensors.SafetensorError) as error:
        foreign = foreign_format(content)
        if foreign is not None:
            raise IntegrityError(
                f"{what} must be a safetensors file of weights, and is {foreign}.",
                cause="Loading a pickle runs whatever its author wrote into it.",
                fix="Save the weights with safetensors.torch.save_file, or run the pipeline again.",
            ) from error
        raise _no_weights(what, str(error)) from error


def _no_weights(what: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{what} is no safetensors file of weights ({why}).",
        cause="The candidate was registered with something else under the weights' name.",
        fix="Run the pipeline again to make a candidate with weights.",
    )
