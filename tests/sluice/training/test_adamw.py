"""torch's AdamW, bit for bit, without waiting for the compiler."""

import subprocess
import sys

import torch

from sluice.training.adamw import AdamW


def trained(kind):
    """Five steps, the state taken to a second optimizer, five more."""
    weights = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    options = {"lr": 0.1, "weight_decay": 0.02, "fused": True}
    first, second = kind([weights], **options), kind([weights], **options)
    for step in range(10):
        if step == 5:
            second.load_state_dict(first.state_dict())
        optimizer = first if step < 5 else second
        optimizer.zero_grad()
        (weights * weights.cos()).sum().backward()
        optimizer.step()
    return [weights, *second.state_dict()["state"][0].values()]


def test_it_ends_with_the_bits_of_torchs_own():
    for ours, torch_own in zip(trained(AdamW), trained(torch.optim.AdamW), strict=True):
        assert torch.equal(ours, torch_own)


def test_a_step_leaves_the_gradient_mode_alone_and_records_nothing():
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = AdamW([weights])
    weights.sum().backward()
    optimizer.step()

    assert torch.is_grad_enabled()
    assert weights.is_leaf


def test_training_a_unit_does_not_import_the_compiler():
    """1.2 s of processor time in every worker; what a unit needs is imported within 0.1 s more."""
    code = (
        "import sys, torch\n"
        "from sluice.models.recurrent import Recurrent\n"
        "from sluice.models.settings import ModelSettings\n"
        "from sluice.training.loop import train\n"
        "from sluice.training.settings import TrainSettings\n"
        "from sluice.workloads.workload import Examples\n"
        "import numpy as np\n"
        "rows = Examples(x=torch.randn(40, 5, 3), y=torch.randn(40, 1), rows=np.arange(40))\n"
        "model = Recurrent(3, 1, ModelSettings(hidden=4), cell='gru')\n"
        "loss = lambda output, y: (output - y).square().mean()\n"
        "losses = lambda output, y: (output - y).square()\n"
        "kept = []\n"
        "def go(**options):\n"
        "    return list(train(model, loss, losses, rows, rows, TrainSettings(max_epochs=2),\n"
        "                      seed=0, keep=kept.append, **options))\n"
        "go(), go(resume=kept[0])\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
