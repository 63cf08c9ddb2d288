"""Weight tying that is broken during training (TRACE-16)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.bench.tracer.data import PAD, sentences
from sluice.bench.tracer.faults.structure import pad_sentences
from sluice.bench.tracer.nets import LanguageModel
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, train_step


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)

    def tie(self):
        self.out.weight = self.table.weight

    def forward(self, ids):
        return self.out(self.table(ids))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_rebuilt_network_without_weight_tying_is_reported(trace_of, is_tied):
    def program():
        ids = torch.arange(8)
        model = Tied()
        model.tie()
        for phase in range(2):
            if phase:
                state, model = model.state_dict(), Tied()
                model.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)
                if is_tied:
                    model.tie()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                train_step(optimizer, F.cross_entropy(model(ids), ids + 1))

    assert (("tied weights broken", "error") in fault_severities(trace_of(program))) is not is_tied


def test_an_untied_network_is_not_reported_if_only_the_tied_one_loaded_a_state(trace_of):
    def program():
        ids = torch.arange(8)
        for is_tied in (True, False):
            model = Tied()
            if is_tied:
                model.tie()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                train_step(optimizer, F.cross_entropy(model(ids), ids + 1))
            if is_tied:
                model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})

    assert "tied weights broken" not in dict(fault_severities(trace_of(program)))


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def test_weight_tying_broken_during_training_is_reported_at_its_step(trace_of):
    def program():
        ids = pad_sentences(sentences(0), 18)
        model = LanguageModel("gru")
        model.head.weight = model.embedding.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(16):
            if step == 9:
                model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
                optimizer.add_param_group({"params": [model.head.weight]})
            batch = ids[step * 16 : step * 16 + 16]
            optimizer.zero_grad()
            logits = model(batch[:, :-1]).flatten(0, 1)
            F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=PAD).backward()
            optimizer.step()

    assert ("tied weights broken", "error", 10) in root_cause_list(trace_of(program))
