"""Whether stored weights would load: right bytes, and a safetensors file (REG-3)."""

import safetensors

from sluice.artifacts import ArtifactStore
from sluice.errors import IntegrityError


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
    if not is_weights:
        return
    try:
        num_tensors = len(safetensors.deserialize(content))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise _no_weights(what, digest, str(error)) from error
    if num_tensors == 0:
        raise _no_weights(what, digest, "it holds no tensor")


def _no_weights(what: str, digest: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{what}: artifact {digest} is no safetensors file of weights ({why}).",
        cause="The candidate was registered with something else under the weights' name.",
        fix="Run the pipeline again to make a candidate with weights.",
    )
