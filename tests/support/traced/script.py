"""A training script, which tests start as ``python script.py MODE``."""

import hashlib
import os
import resource
import signal
import sys

MODE = sys.argv[1]

if MODE == "no torch":
    print("nothing to train")
    raise SystemExit(3)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
os.chdir("/")


def train(steps):
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(32, 8)), torch.randint(2, (32,)))
        loss.backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)
    return model


if MODE == "full":  # limits the size of all files that are written after this line
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
if MODE == "no optimizer":
    layer = nn.Linear(8, 2)
    for _ in range(4):
        (gradient,) = torch.autograd.grad(layer(torch.randn(4, 8)).square().sum(), [layer.weight])
    print(gradient.sum().item())
    sys.exit(2)
if MODE == "signals":

    def exit_with_9(number, _):
        print("leaving after", signal.Signals(number).name, flush=True)
        sys.exit(9)

    signal.signal(signal.SIGTERM, exit_with_9)
if MODE == "much to say":
    for _ in range(256):
        sys.stdout.write("x" * 1024 * 1024)
if MODE == "fork and kill":
    child = os.fork()
    if child == 0:
        train(4)
        os._exit(0)
    os.waitpid(child, 0)
model = train(8)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(weights).hexdigest(), sys.argv[1:], flush=True)
if MODE == "signals":
    os.kill(os.getpid(), signal.SIGTERM)
if MODE == "crash":
    raise ValueError("of the program itself")
if MODE == "fork and kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7)
