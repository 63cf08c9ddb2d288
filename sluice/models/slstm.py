"""sLSTM network: an LSTM with an exponential input gate and two additional, stabilising states."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sluice.models.settings import ModelSettings

_FORGET_BIAS_RANGE = (3.0, 6.0)
"""Range of the initial forget biases, which are evenly spaced over the units. The initial forget
gates are 0.95 to 0.998, so the units average over about the last 20 to 400 rows."""


class SLSTMLayer(nn.Module):
    """One sLSTM layer with full recurrent mixing (one head).

    Shape legend: B = examples, L = sequence length [rows], D = features, H = hidden units,
    G = 4 H pre-activations of the gates.

    With the pre-activations i, f, z, o = W x_t + R h_(t-1) + b, stacked in this order::

        m_t = max(log sigmoid(f) + m_(t-1), i)        stabiliser
        i' = exp(i - m_t)                             input gate
        f' = exp(log sigmoid(f) + m_(t-1) - m_t)      forget gate
        c_t = f' c_(t-1) + i' tanh(z)                 cell
        n_t = f' n_(t-1) + i'                         normaliser
        h_t = sigmoid(o) c_t / n_t

    ``c_t / n_t`` is a weighted mean of tanh(z) over the rows so far, so it is between -1 and 1. The
    mean does not depend on m, which only keeps the exponentials in range. Therefore no gradient
    flows through m.

    The first row sets m_1 = i, so n_1 = 1. With m_0 = 0 and n_0 = 0, the first row would divide 0
    by 0 if the first i is far below log sigmoid(f). At every later row, i' or f' is 1, so
    1 <= n_t <= t.

    Source:
        Beck et al. (2024), "xLSTM: Extended Long Short-Term Memory", NeurIPS, section 2.2 (sLSTM).
        The paper allows a sigmoid or an exponential forget gate. This class has the sigmoid.
    """

    def __init__(self, num_features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        bound = hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, num_features).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        with torch.no_grad():
            self.bias[hidden : 2 * hidden] = torch.linspace(*_FORGET_BIAS_RANGE, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states and the normaliser states (B, L, H) for inputs (B, L, D)."""
        # W x + b is computed for all rows in one product, because only R h is sequential.
        inputs_BLG = F.linear(x, self.weight_ih, self.bias)
        hidden = torch.zeros_like(inputs_BLG[:, 0, : self.hidden])
        cell = normaliser = stabiliser = hidden
        hiddens, normalisers = [], []
        for row_index, inputs_BG in enumerate(inputs_BLG.unbind(dim=1)):
            is_first = row_index == 0
            gates = inputs_BG if is_first else torch.addmm(inputs_BG, hidden, self.weight_hh.T)
            i, f, z, o = gates.chunk(4, dim=1)
            if is_first:
                # exp(i - m) is 1, but has a gradient with respect to i, which weights this row
                # against later rows.
                stabiliser = i.detach()
                normaliser = (i - stabiliser).exp()
                cell = normaliser * torch.tanh(z)
            else:
                log_forget = F.logsigmoid(f) + stabiliser
                stabiliser = torch.maximum(log_forget, i).detach()
                forget_gate, input_gate = (log_forget - stabiliser).exp(), (i - stabiliser).exp()
                cell = forget_gate * cell + input_gate * torch.tanh(z)
                normaliser = forget_gate * normaliser + input_gate
            hidden = torch.sigmoid(o) * cell / normaliser
            hiddens.append(hidden)
            normalisers.append(normaliser)
        return torch.stack(hiddens, dim=1), torch.stack(normalisers, dim=1)


class SLSTM(nn.Module):
    """Stacked sLSTM layers; predicts from the hidden state after the window's last row.

    Shape legend: B = examples, L = sequence length [rows], D = features, O = outputs.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        widths = [num_features] + [settings.hidden] * settings.layers
        self.core = nn.ModuleList(
            SLSTMLayer(width, settings.hidden) for width in widths[: settings.layers]
        )
        self.drop = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (B, O) for windows (B, L, D)."""
        for layer in self.core:
            states, _ = layer(x)
            x = self.drop(states)
        output: Tensor = self.head(x[:, -1])
        return output
