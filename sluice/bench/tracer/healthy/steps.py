"""Healthy programs with overflows, a high learning rate, large gradients, or two optimizers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, HealthyCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier


def first_steps_overflow(setup: CaseSetup) -> list[nn.Module]:
    """Train in half precision with a loss scale that is too large for the first steps."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y, reduction="sum") / 4
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
    return [model]


def high_learning_rate(setup: CaseSetup) -> list[nn.Module]:
    """Train with a learning rate of 0.1 and momentum, which batch norm stabilises."""
    torch.manual_seed(setup.seed)
    training, held_out = digits(setup.net, setup.seed)
    if setup.net == "cnn":
        model = classifier("cnn")
    else:
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    for _ in range(4):
        model.train()
        for x, y in DataLoader(training, batch_size=48, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.inference_mode():
            for x, y in DataLoader(held_out, batch_size=120):
                F.cross_entropy(model(x), y)
    return [model]


def summed_loss(setup: CaseSetup) -> list[nn.Module]:
    """Sum the loss over the batch, and clip gradients whose norm is far above the limit."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=64, shuffle=True):
            optimizer.zero_grad(set_to_none=True)
            criterion(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
    return [model]


def gan(setup: CaseSetup) -> list[nn.Module]:
    """Train a GAN whose discriminator separates generated points from those of ``real_points``."""
    torch.manual_seed(setup.seed)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(
        discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999)
    )
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(200):
        real, generated = real_points(64), generator(torch.randn(64, 4))
        discriminator_optimizer.zero_grad()
        criterion(discriminator(real), torch.ones(64, 1)).backward()
        criterion(discriminator(generated.detach()), torch.zeros(64, 1)).backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        criterion(discriminator(generated), torch.ones(64, 1)).backward()
        generator_optimizer.step()
    return [generator, discriminator]


def real_points(num_points: int) -> Tensor:
    """Return points on a line through (2, -1), of shape (num_points, 2)."""
    return torch.tensor([2.0, -1.0]) + 0.3 * torch.randn(num_points, 1) * torch.tensor([1.0, 1.0])


CASES = (
    HealthyCase(
        number=12,
        name="loss scale that overflows at first",
        program=first_steps_overflow,
        nets=("mlp", "transformer"),
    ),
    HealthyCase(
        number=13,
        name="SGD 0.1, momentum, batch norm",
        program=high_learning_rate,
        nets=("mlp", "cnn"),
    ),
    HealthyCase(number=15, name="GAN", program=gan, nets=("mlp",)),
    HealthyCase(
        number=17,
        name="summed loss, clipped",
        program=summed_loss,
        nets=("mlp", "cnn", "gru", "transformer"),
    ),
)
