"""Stores network weights in the artifact store as safetensors, never as a pickle."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.base.seeding import RandomStream
from sluice.models.build import build_meta_network, require_network
from sluice.models.import_limits import LIMITS
from sluice.models.input_encoder import ENCODER_TENSOR_PREFIX, InputEncoder
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.models.weights_format import foreign_format
from sluice.models.weights_header import METADATA_KEY, WeightsMetadata
from sluice.training.members import Member
from sluice.workloads.fitted_state import encode_of, has_fitted_state
from sluice.workloads.workload import Workload

_MIN_CHECKED_WEIGHTS = 2**24
"""Minimum number of weights for which the size of a network is compared with the file before the
network is built. The number is estimated as an upper bound from the settings."""

_MAX_LAYER_FACTOR = 64
"""Upper bound of the number of parameters of a built-in layer, divided by its width squared."""

_NETWORK_PREFIX = "network."
"""Prefix of the tensor names of the network inside ``Scaled``."""


def pack_tensors(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Return the content of a safetensors file with ``tensors`` and, in its header, ``facts``.

    Equal tensors and facts give equal bytes in every process.

    Args:
        tensors: Tensors by name, on any device. Tensors that share memory are stored separately.
        facts: Other values, as plain JSON.
    """
    # All facts are in one header entry, because safetensors writes several entries in an order that
    # differs between processes.
    header = {METADATA_KEY: json.dumps(facts, sort_keys=True)}
    copied_tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return safetensors.torch.save(copied_tensors, header)


def unpack_tensors(content: bytes, *, where: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a file written by ``pack_tensors``.

    Args:
        content: Content of the file.
        where: Path or name of the file, for the message.

    Raises:
        ContractError: The content has another format.
    """
    try:
        tensors = safetensors.torch.load(content)
        # safetensors.torch.load() has validated the header, but does not return it.
        length = int.from_bytes(content[:8], "little")
        facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][METADATA_KEY])
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise ContractError(
            f"{where} must be a safetensors file written by Sluice, and is "
            f"{foreign_format(content) or f'not ({error!r})'}.",
            fix="Use a weights file, or run the pipeline again to create one.",
        ) from error
    return tensors, facts


def pack_model(model: Scaled) -> bytes:
    """Return the weights and scaling of ``model`` as one safetensors file."""
    facts = {
        "num_features": model.num_features,
        "num_outputs": model.num_outputs,
        "scale_inputs": model.scale_inputs,
        "scale_target": model.scale_target,
    }
    return pack_tensors(model.state_dict(), facts)


def load_member(
    member: Member, workload: Workload, settings: ModelSettings, store: ArtifactStore
) -> Scaled:
    """Return the network of a member, in evaluation mode.

    Args:
        member: Member whose weights are loaded.
        workload: Workload that builds the network, as in training.
        settings: Architecture and size, as in training.
        store: Contains the weights.

    Raises:
        IntegrityError: The weights are missing or damaged.
        ContractError: The weights have another architecture or size; the message lists the tensors
            that differ.
    """
    where = f"The weights of seed {member.seed}, fold {member.fold_id} ({member.weights[:12]})"
    content = store.get(member.weights)
    tensors, _ = unpack_tensors(content, where=where)
    try:
        facts = WeightsMetadata.read(content, LIMITS)
    except ValueError as error:
        raise ContractError(
            f"{where} must be weights in Sluice's format: {error}.",
            cause="The file was not written by Sluice, or was changed.",
            fix="Restore the artifact from a backup, or run the pipeline again to create it.",
        ) from error
    # Initial weights, which are overwritten, must not change the caller's random generators.
    with RandomStream(0).active():
        _require_size(workload, settings, facts, tensors, where)
        network = workload.build_model(facts.num_features, facts.num_outputs, settings)
    model = Scaled(
        require_network(network, f"build_model() of {type(workload).__name__}"),
        num_features=facts.num_features,
        num_outputs=facts.num_outputs,
        scale_inputs=facts.scale_inputs,
        scale_target=facts.scale_target,
        encoder=_load_encoder(workload, tensors, where),
    )
    differences = differing_tensors(model.state_dict(), tensors)
    if differences:
        raise _mismatch_error(where, differences)
    model.load_state_dict(tensors)
    return model.eval()


def _load_encoder(
    workload: Workload, tensors: Mapping[str, Tensor], where: str
) -> InputEncoder | None:
    """Return the encoder with the stored result of the workload's ``fit``.

    Return None if the workload has no fitted state.
    """
    if not has_fitted_state(workload):
        return None
    state = {
        name.removeprefix(ENCODER_TENSOR_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(ENCODER_TENSOR_PREFIX)
    }
    if not state:
        raise ContractError(
            f"{where} must contain the fitted state that fit() of {type(workload).__name__} "
            "returned, but contain no fitted state.",
            cause="The network was trained before the workload had fit().",
            fix="Train the pipeline again, or use the code with which the version was trained.",
        )
    return InputEncoder(encode_of(workload), state)


def _require_size(
    workload: Workload,
    settings: ModelSettings,
    facts: WeightsMetadata,
    tensors: Mapping[str, Tensor],
    where: str,
) -> None:
    """Raise if the size of the weights differs from the settings, before memory is allocated.

    A small file that declares a network of terabytes must not exhaust the memory.
    """
    if type(workload).build_model is not Workload.build_model:
        return  # the size is unknown, because user code interprets the settings
    width = facts.num_features + facts.num_outputs + settings.hidden
    max_weights = _MAX_LAYER_FACTOR * (settings.layers + 1) * width**2
    max_weights += facts.num_features * facts.num_outputs * settings.hidden
    if max_weights < _MIN_CHECKED_WEIGHTS:
        return
    meta_network = build_meta_network(facts.num_features, facts.num_outputs, settings)
    if meta_network is None:
        return
    network_tensors = {
        name.removeprefix(_NETWORK_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(_NETWORK_PREFIX)
    }
    differences = differing_shapes(meta_network.state_dict(), network_tensors)
    if differences:
        raise _mismatch_error(where, [f"{_NETWORK_PREFIX}{line}" for line in differences])


def _mismatch_error(where: str, differences: Sequence[str]) -> ContractError:
    return ContractError(
        f"{where} do not fit the network of the given settings; these tensors differ: "
        f"{'; '.join(differences[:5])}.",
        cause="The weights were trained with other model settings.",
        fix="Use the model settings of the version that the member belongs to.",
    )


def differing_tensors(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> list[str]:
    """Return one line for every tensor that is missing on one side, or differs in shape or dtype.

    Dtypes differ only if one is a floating-point dtype and the other is not.
    """
    return differing_shapes(expected, stored) + [
        f"{name} is {expected[name].dtype} in the network and {stored[name].dtype} in the file"
        for name in sorted(expected.keys() & stored.keys())
        if expected[name].is_floating_point() != stored[name].is_floating_point()
    ]


def differing_shapes(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> list[str]:
    """Return one line for every tensor that is missing on one side or whose shape differs."""
    lines = []
    for name in sorted(expected.keys() | stored.keys()):
        in_network, in_file = (
            str(tuple(side[name].shape)) if name in side else "absent"
            for side in (expected, stored)
        )
        if in_network != in_file:
            lines.append(f"{name} is {in_network} in the network and {in_file} in the file")
    return lines
