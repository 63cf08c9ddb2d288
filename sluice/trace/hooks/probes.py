"""Probes networks: perturbs the inputs or weights of a copy after an inspected forward pass."""

import functools
import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sluice.trace.inspection.padding import find_padding, tensor_arguments
from sluice.trace.inspection.perturbation import (
    PerturbationEffect,
    perturb_later_tokens,
    perturb_later_values,
    perturb_other_rows,
    perturb_padding,
    perturb_weights,
)
from sluice.trace.inspection.sequence_layers import (
    find_row_input,
    is_unbatched_sequence,
    layers_with_positions_first,
)
from sluice.trace.inspection.targets import (
    find_copied_input,
    find_next_token_input,
    find_reached_outputs,
)
from sluice.trace.objects.object_tracker import NetworkEntry
from sluice.trace.records.forward_passes import ModuleCallRecord, ProbeRecord
from sluice.trace.tracer_context import TracerContext


@dataclass(slots=True)
class InspectedPass:
    """One inspected forward pass."""

    entry: NetworkEntry
    network_ref: "weakref.ref[nn.Module]"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: list[ModuleCallRecord] = field(default_factory=list)
    """Calls of modules inside the network, in the order in which they returned."""
    output_nodes: list[Any] = field(default_factory=list)
    """Autograd nodes of the network's outputs; None for an output without a graph."""


class NetworkProbes:
    """Runs each kind of probe once for each network, and again after ``request_repeat``."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._finished_probes: set[tuple[int, str]] = set()
        """Network index and kind of each probe that was run."""

    def request_repeat(self, entry: NetworkEntry) -> None:
        """Let all probes of a network run again after its next inspected pass."""
        self._finished_probes = {
            (network, kind) for network, kind in self._finished_probes if network != entry.index
        }

    def run(self, inspected_pass: InspectedPass, network: nn.Module, loss: Tensor | None) -> None:
        """Run the probes that suit an inspected pass, before its backward pass.

        Args:
            inspected_pass: Forward pass whose inputs or weights are perturbed.
            network: Network of the pass.
            loss: Tensor on which the backward pass is called; None for several tensors.
        """
        arguments = (inspected_pass.args, inspected_pass.kwargs)
        token_match = None if loss is None else find_next_token_input(loss, arguments)
        if token_match is not None:
            tokens, position_dim = token_match
            probe = functools.partial(
                perturb_later_tokens, network, arguments, tokens, position_dim=position_dim
            )
            self._run_once(inspected_pass, "later tokens", probe)
        else:
            # If the targets are the input tokens, an output that depends on the token at its own
            # position can copy the target.
            copied_tokens = None if loss is None else find_copied_input(loss, arguments)
            if copied_tokens is not None:
                probe = functools.partial(
                    perturb_later_tokens,
                    network,
                    arguments,
                    copied_tokens,
                    with_first_perturbed=True,
                )
                self._run_once(inspected_pass, "own tokens", probe)
        series_ref = self._tracer.local.thread.loss_calls.shifted_input
        series = None if series_ref is None else series_ref()
        if series is not None and any(series is t for t in tensor_arguments(arguments)):
            probe = functools.partial(perturb_later_values, network, arguments, series)
            # The stored kind of this probe is "later tokens" for the values of a series, too.
            self._run_once(inspected_pass, "later tokens", probe)
        self._run_rows_probe(inspected_pass, network, loss)
        if find_padding(arguments) is not None:
            probe = functools.partial(perturb_padding, network, arguments)
            self._run_once(inspected_pass, "padding", probe)
        parameter_names: list[str] = []
        if self._tracer.steps.last_step >= 2:  # before, trained parameters may have no gradient yet
            parameter_names = self._parameters_without_gradient(inspected_pass, network)
        if parameter_names and loss is not None:
            output_indices = find_reached_outputs(loss, inspected_pass.output_nodes)
            if output_indices:
                probe = functools.partial(
                    perturb_weights, network, arguments, parameter_names, output_indices
                )
                self._run_once(inspected_pass, "weights", probe)

    def _run_rows_probe(
        self, inspected_pass: InspectedPass, network: nn.Module, loss: Tensor | None
    ) -> None:
        """Probe whether outputs depend on other rows, if a layer may process rows as positions."""
        arguments = (inspected_pass.args, inspected_pass.kwargs)
        values = None if loss is None else find_row_input(arguments, loss)
        if values is None:
            return
        layers = layers_with_positions_first(network, values)
        if layers:
            probe = functools.partial(perturb_other_rows, network, arguments, values)
            is_matrix = is_unbatched_sequence(values)
            self._run_once(inspected_pass, "rows", probe, modules=layers, is_matrix=is_matrix)

    def _parameters_without_gradient(
        self, inspected_pass: InspectedPass, network: nn.Module
    ) -> list[str]:
        """Return names of trainable parameters that a pass uses and that never had a gradient."""
        objects = self._tracer.objects
        used_indices = {i for call in inspected_pass.calls for i in call.parameters}
        parameter_names = []
        for name, parameter in network.named_parameters():
            entry = objects.parameters.get_or_add(parameter)
            entry.has_had_gradient = entry.has_had_gradient or parameter.grad is not None
            is_used = entry.index in used_indices
            if is_used and parameter.requires_grad and not entry.has_had_gradient:
                parameter_names.append(name)
        return parameter_names

    def _run_once(
        self, inspected_pass: InspectedPass, kind: Any, probe: Any, **probe_fields: Any
    ) -> None:
        """Run a probe and record its effect, unless this kind was already run for the network.

        ``probe_fields`` are additional fields of the record.
        """
        tracer, probe_key = self._tracer, (inspected_pass.entry.index, kind)
        if probe_key in self._finished_probes:
            return
        self._finished_probes.add(probe_key)
        thread, was_running = tracer.local.thread, tracer.local.thread.forward.is_running
        # Neither the calls of the copy nor its losses are recorded.
        thread.forward.is_running = thread.forward.is_probe = True
        try:
            effect: PerturbationEffect | None = probe()
        finally:
            thread.forward.is_running, thread.forward.is_probe = was_running, False
        if effect is not None:
            tracer.recorder.write(
                "probe",
                ProbeRecord(
                    step=tracer.steps.last_step,
                    network=inspected_pass.entry.index,
                    probe=kind,
                    changed=effect.num_changed,
                    largest_effect=effect.largest_effect,
                    earlier_effect=effect.earlier_effect,
                    real_effect=effect.real_token_effect,
                    parameters=tuple(
                        tracer.objects.parameters.get_or_add(p).index for p in effect.parameters
                    ),
                    **probe_fields,
                ),
            )
