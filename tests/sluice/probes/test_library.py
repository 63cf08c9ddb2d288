"""Probes that are applied to a workload."""

import pytest
import torch

from sluice.models.settings import ModelSettings
from sluice.probes.library import run_probes
from sluice.probes.subject import Subject
from sluice.training.settings import TrainSettings
from tests.sluice.probes.test_probe_command import Speech
from tests.support.echo import Echo


class Undeclared(Speech):
    pad_id = None

    def build_model(self, *arguments):
        network = super().build_model(*arguments)
        for module in network.modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None
        return network


class WithoutPadding(Speech):
    pad_id = 99


@pytest.mark.parametrize(
    ("workload", "seen", "fix"),
    [
        (Echo, "are not token ids", "Call sluice.probes.padding.probe_padding"),
        (Undeclared, "No padding token is declared", "as pad_id of the workload"),
        (WithoutPadding, "train rows has both padding and real positions", ""),
    ],
)
def test_a_skipped_padding_probe_states_the_reason(workload, seen, fix):
    model, training = ModelSettings(architecture="linear"), TrainSettings(max_epochs=1)
    subject = Subject(workload=workload(), model_settings=model, train_settings=training, seed=0)
    (result,) = run_probes(subject, ["padding"])

    assert result.outcome == "skipped"
    assert seen in result.seen
    assert fix in result.fix
