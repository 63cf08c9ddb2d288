"""Probes that are applied to a workload."""

import pytest
import torch

from sluice.models.settings import ModelSettings
from sluice.probes.library import run_probes
from sluice.probes.subject import Subject
from sluice.training.settings import TrainSettings
from tests.sluice.probes.test_probe_command import TokenWorkload
from tests.support.echo import Echo


class WithoutPadId(TokenWorkload):
    pad_id = None

    def build_model(self, *arguments):
        network = super().build_model(*arguments)
        for module in network.modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None
        return network


class WithoutPadding(TokenWorkload):
    pad_id = 99


@pytest.mark.parametrize(
    ("workload", "message", "fix"),
    [
        (Echo, "are not token ids", "Call sluice.probes.padding.probe_padding"),
        (WithoutPadId, "No padding token is declared", "as pad_id of the workload"),
        (WithoutPadding, "train rows has both padding and real positions", ""),
    ],
)
def test_a_skipped_padding_probe_states_the_reason(workload, message, fix):
    model, training = ModelSettings(architecture="linear"), TrainSettings(max_epochs=1)
    subject = Subject(workload=workload(), model_settings=model, train_settings=training, seed=0)
    (result,) = run_probes(subject, ["padding"])

    assert result.outcome == "skipped"
    assert message in result.seen
    assert fix in result.fix
