"""Weights on their way to and from the artifact store: safetensors, never a pickle (REG-3)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.base.seeding import Stream
from sluice.models.build import require_network, sketch_network
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.models.weights_format import foreign_format
from sluice.models.weights_header import FACTS, WeightsFacts
from sluice.models.weights_limits import LIMITS
from sluice.training.members import Member
from sluice.workloads.workload import Workload

_FEW = 2**24
"""A network of fewer numbers is built without asking first."""

_LAYER = 64
"""No layer of Sluice's own networks has more numbers than this times the square of its width."""

_INNER = "network."
"""Begins the names of the tensors of the network itself, inside ``Scaled``."""


def pack(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Return one safetensors file with ``tensors`` and, in its header, ``facts``.

    Equal content gives equal bytes in every process.

    Args:
        tensors: On any device; tensors that share memory are written apart.
        facts: Plain JSON.
    """
    # One header entry: safetensors writes several in an order that differs between processes.
    header = {FACTS: json.dumps(facts, sort_keys=True)}
    apart = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return safetensors.torch.save(apart, header)


def unpack(content: bytes, *, where: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a file made by ``pack``.

    Args:
        content: The file.
        where: Its path or name, for the message.

    Raises:
        ContractError: It is no such file.
    """
    try:
        tensors = safetensors.torch.load(content)
        # load() checked the header; it only does not hand it out.
        length = int.from_bytes(content[:8], "little")
        facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][FACTS])
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise ContractError(
            f"{where} must be a safetensors file written by Sluice, and is "
            f"{foreign_format(content) or f'not ({error!r})'}.",
            fix="Name a file of weights, or run the pipeline again to make one.",
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
    return pack(model.state_dict(), facts)


def load_member(
    member: Member, workload: Workload, settings: ModelSettings, store: ArtifactStore
) -> Scaled:
    """Return a fitted member, ready to predict (in evaluation mode).

    Args:
        member: Names the weights.
        workload: Builds the network, as it did for training.
        settings: Architecture and size, as in training.
        store: Holds the weights.

    Raises:
        IntegrityError: The weights are missing or damaged.
        ContractError: They are of another architecture or size; the differing names are listed.
    """
    where = f"The weights of seed {member.seed}, fold {member.fold_id} ({member.weights[:12]})"
    content = store.get(member.weights)
    tensors, _ = unpack(content, where=where)
    try:
        facts = WeightsFacts.read(content, LIMITS)
    except ValueError as error:
        raise ContractError(
            f"{where} must be weights as Sluice stores them: {error}.",
            cause="The file was not written by Sluice, or was changed.",
            fix="Restore the artifact from a backup, or run the pipeline again to make it.",
        ) from error
    with Stream(0).active():  # the initial weights are drawn and overwritten
        _require_size(workload, settings, facts, tensors, where)
        network = workload.build_model(facts.num_features, facts.num_outputs, settings)
    model = Scaled(
        require_network(network, f"build_model() of {type(workload).__name__}"),
        num_features=facts.num_features,
        num_outputs=facts.num_outputs,
        scale_inputs=facts.scale_inputs,
        scale_target=facts.scale_target,
    )
    differing = differing_tensors(model.state_dict(), tensors)
    if differing:
        raise _misfit(where, differing)
    model.load_state_dict(tensors)
    return model.eval()


def _require_size(
    workload: Workload,
    settings: ModelSettings,
    facts: WeightsFacts,
    tensors: Mapping[str, Tensor],
    where: str,
) -> None:
    """Refuse weights of another size than the settings state, before memory is taken for those.

    A small file may state a network of terabytes.
    """
    if type(workload).build_model is not Workload.build_model:
        return  # a user's own code decides what the settings mean
    width = facts.num_features + facts.num_outputs + settings.hidden
    most = _LAYER * (settings.layers + 1) * width**2
    most += facts.num_features * facts.num_outputs * settings.hidden
    if most < _FEW:
        return
    sketch = sketch_network(facts.num_features, facts.num_outputs, settings)
    if sketch is None:
        return
    given = {
        name.removeprefix(_INNER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_INNER)
    }
    differing = differing_shapes(sketch.state_dict(), given)
    if differing:
        raise _misfit(where, [f"{_INNER}{line}" for line in differing])


def _misfit(where: str, differing: Sequence[str]) -> ContractError:
    return ContractError(
        f"{where} must fit the network of the settings given; these differ: "
        f"{'; '.join(differing[:5])}.",
        cause="The model settings are not those the weights were trained with.",
        fix="Give the settings of the member's version.",
    )


def differing_tensors(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Return the lines of ``differing_shapes``, and one for every tensor of another kind.

    Floating-point precisions may differ; a count in place of a weight may not.
    """
    return differing_shapes(wanted, given) + [
        f"{name} is {wanted[name].dtype} in the network and {given[name].dtype} in the file"
        for name in sorted(wanted.keys() & given.keys())
        if wanted[name].is_floating_point() != given[name].is_floating_point()
    ]


def differing_shapes(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Return a line for every tensor that is absent on one side or shaped differently."""
    lines = []
    for name in sorted(wanted.keys() | given.keys()):
        here, there = (
            str(tuple(side[name].shape)) if name in side else "absent" for side in (wanted, given)
        )
        if here != there:
            lines.append(f"{name} is {here} in the network and {there} in the file")
    return lines
