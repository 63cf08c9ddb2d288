"""Probes use copies of a network and do not affect the program (TRACE-16)."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import seeded_generator
from tests.support.traced.unusual_models import UNUSUAL


def test_a_probe_of_a_network_that_returns_its_loss_is_not_an_evaluation(trace_of):
    class LossModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)

        def forward(self, ids, targets):
            logits = self.head(self.table(ids).cumsum(1))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def program():
        model = LossModel()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(9):
            ids = torch.randint(11, (8, 13), generator=seeded_generator(step))
            optimizer.zero_grad()
            model(ids[:, :-1], ids[:, 1:]).backward()
            optimizer.step()
            if step % 4 == 3:
                with torch.no_grad():
                    model(ids[:, :-1], ids[:, 1:])

    assert [e.step for e in trace_of(program).evaluations] == [4, 8]


def test_a_probe_of_a_random_network_gives_no_result_and_draws_no_random_numbers(trace_of):
    states = []

    def program():
        UNUSUAL["a tagger"]()
        states.append(torch.get_rng_state())

    trace = trace_of(program)
    torch.manual_seed(0)
    UNUSUAL["a tagger"]()

    assert trace.probes == ()  # no result: dropout is always on, so two passes of a copy differ
    assert torch.equal(states[0], torch.get_rng_state())
