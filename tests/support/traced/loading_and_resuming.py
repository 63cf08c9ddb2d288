"""Correct and faulty programs with data loaders, schedules and checkpoints."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedules
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
)

from tests.support.traced.healthy import net, rows


class RandomDataset(Dataset):
    """24 rows, whose values are drawn by ``draw(generator, index)``."""

    def __init__(self, generator, draw):
        self.generator, self.draw = generator, draw

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((8,), float(self.draw(self.generator, index))), index % 3


def _train(loader, epochs=2, model=None, after_step=lambda: None, after_epoch=lambda: None):
    model = model or nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            after_step()
        after_epoch()


def _draw(generator, _):
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator)
    return generator.random()


def _seeded_by_row(generator, index):
    generator.manual_seed(index)
    return torch.rand((), generator=generator)


def draws_from(kind, draw=_draw, workers=2, **options):
    """Return a program whose loader workers use a random generator of the given kind."""

    def program():
        generator = {
            "torch": lambda: torch.Generator().manual_seed(1),
            "numpy": lambda: np.random.default_rng(1),
            "older numpy": lambda: np.random.RandomState(1),
            "python": lambda: random.Random(1),
        }[kind]()
        data = Subset(RandomDataset(generator, draw), range(24))
        _train(DataLoader(data, batch_size=4, num_workers=workers, **options))

    return program


_NOISE = np.random.default_rng(1)


class Noisy:
    """Collate function that adds noise from this module's global generator."""

    def __call__(self, rows):
        x, y = zip(*rows, strict=True)
        return self._with_noise(torch.stack(x)), torch.tensor(y)

    @staticmethod
    def _with_noise(x):
        return x + torch.tensor([_NOISE.random() for _ in x])[:, None]


def module_generator():
    """Use the global generator in the collate function."""
    draws_from("torch", lambda _, index: index / 24, collate_fn=Noisy())()


def module_generator_seeded_per_worker():
    """Seed the global generator in each worker."""

    def seed(_):
        global _NOISE
        _NOISE = np.random.default_rng(torch.initial_seed())

    draws_from("torch", lambda _, index: index / 24, collate_fn=Noisy(), worker_init_fn=seed)()


def table_drawn_once():
    """Draw a table of all rows at the first access. It must be equal in all workers."""

    def draw(generator, index):
        if not hasattr(draw, "table"):
            draw.table = torch.rand(24, generator=generator)
        return draw.table[index]

    draws_from("torch", draw)()


def reseeded_per_worker():
    """In each worker, seed the copy of the generator with the worker's seed."""

    def seed(_):
        info = torch.utils.data.get_worker_info()
        info.dataset.dataset.generator.manual_seed(info.seed)

    draws_from("torch", worker_init_fn=seed)()


def seeded_by_row():
    draws_from("torch", _seeded_by_row)()


def unused_generator():
    draws_from("torch", lambda _, index: index / 24)()


def generator_in_no_worker():
    draws_from("torch", workers=0)()


def same_seed_in_every_epoch():
    generator = torch.Generator()
    loader = DataLoader(rows(), batch_size=16, sampler=RandomSampler(rows(), generator=generator))
    generator.manual_seed(0)
    _train(loader, after_epoch=lambda: generator.manual_seed(0))


def one_generator_for_all_epochs():
    generator = torch.Generator().manual_seed(0)
    _train(DataLoader(rows(), batch_size=16, shuffle=True, generator=generator))


def without_set_epoch():
    sampler = DistributedSampler(rows(), num_replicas=1, rank=0)
    _train(DataLoader(rows(), batch_size=16, sampler=sampler))


def with_set_epoch():
    sampler = DistributedSampler(rows(), num_replicas=1, rank=0)
    loader = DataLoader(rows(), batch_size=16, sampler=sampler)
    _train(loader, after_epoch=lambda: sampler.set_epoch(1))


def without_shuffle():
    _train(DataLoader(rows(), batch_size=16))


def one_batch_per_epoch():
    generator = torch.Generator()
    loader = DataLoader(rows(), batch_size=96, shuffle=True, generator=generator)
    generator.manual_seed(0)
    _train(loader, epochs=4, after_epoch=lambda: generator.manual_seed(0))


def scheduled(make_scheduler, steps=64, per_epoch=False, epochs=4):
    """Return a program whose scheduler steps after each batch or after each epoch."""

    def program():
        model = nn.Linear(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = make_scheduler(optimizer)
        data = rows(steps // epochs * 4)
        for _ in range(epochs):
            for x, y in DataLoader(data, batch_size=4, shuffle=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                if not per_epoch:
                    takes_loss = isinstance(scheduler, schedules.ReduceLROnPlateau)
                    scheduler.step(*[loss.detach()] * takes_loss)
            if per_epoch:
                scheduler.step()

    return program


def _warmup_then_cosine(optimizer):
    warmup = schedules.LinearLR(optimizer, 0.01, total_iters=4)
    return schedules.SequentialLR(
        optimizer, [warmup, schedules.CosineAnnealingLR(optimizer, 60)], milestones=[4]
    )


CORRECT_SCHEDULES = {
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=65),
    "warm restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=4),
    "reduce on plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=3),
    "cosine over batches": lambda o: schedules.CosineAnnealingLR(o, 64),
    "warmup of a few batches": lambda o: schedules.LinearLR(o, 0.1, total_iters=4),
    "warmup, then cosine": _warmup_then_cosine,
    "step decay in batches": lambda o: schedules.StepLR(o, 20, gamma=0.1),
    "milestones in batches": lambda o: schedules.MultiStepLR(o, [32, 48]),
    "inverse root": lambda o: schedules.LambdaLR(
        o, lambda s: min((s + 1) / 8, (8 / (s + 1)) ** 0.5)
    ),
    "warmup from 0": lambda o: schedules.LambdaLR(o, lambda s: min(s / 16, 1.0)),
    "learning rate finder": lambda o: schedules.LambdaLR(o, lambda s: 10 ** (s / 8 - 6)),
    "slow exponential": lambda o: schedules.ExponentialLR(o, 0.99),
}


def _train_phase(model, optimizer, steps=12, scheduler=None, data=None):
    data = data or DataLoader(rows(12 * steps), batch_size=12)
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def second_phase_with_another_rate():
    model = net()
    _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-4))


def second_phase_of_more_parameters():
    model = net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for parameter in model[0].parameters():
        parameter.requires_grad_(True)
    _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def second_phase_on_other_rows():
    model = net()
    _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    other_data = DataLoader(rows(60), batch_size=5, shuffle=True)
    _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data=other_data)


def optimizer_without_state():
    model = net()
    _train_phase(model, torch.optim.SGD(model.parameters(), lr=0.1))
    _train_phase(model, torch.optim.SGD(model.parameters(), lr=0.1))


def three_folds():
    for _ in range(3):
        model = net()
        _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def finished_cosine_cycle():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        _train_phase(model, optimizer, scheduler=schedules.CosineAnnealingLR(optimizer, 12))


def resumed_with_its_state():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _train_phase(model, optimizer)
    new_optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    new_optimizer.load_state_dict(optimizer.state_dict())
    _train_phase(model, new_optimizer)


def scheduler_with_last_epoch():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _train_phase(model, optimizer, scheduler=schedules.CosineAnnealingLR(optimizer, 40))
    new_optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    new_optimizer.load_state_dict(optimizer.state_dict())
    scheduler = schedules.CosineAnnealingLR(new_optimizer, 40, last_epoch=11)
    _train_phase(model, new_optimizer, scheduler=scheduler)


CORRECT_RESUMES = (
    second_phase_with_another_rate,
    second_phase_of_more_parameters,
    second_phase_on_other_rows,
    optimizer_without_state,
    three_folds,
    finished_cosine_cycle,
    resumed_with_its_state,
    scheduler_with_last_epoch,
)


def new_optimizer_without_state():
    """Continue with a new optimizer, which has the same settings but no state."""
    model = net()
    data = DataLoader(rows(144), batch_size=12, shuffle=True)
    for _ in range(2):
        _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data=data)


def scheduler_state_lost():
    """Load the state of the optimizer, but not the state of the scheduler."""
    model = net()
    data = DataLoader(rows(144), batch_size=12, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    _train_phase(model, optimizer, scheduler=schedules.CosineAnnealingLR(optimizer, 40), data=data)
    state = optimizer.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = schedules.CosineAnnealingLR(optimizer, 40)
    optimizer.load_state_dict(state)
    _train_phase(model, optimizer, scheduler=scheduler, data=data)


def new_optimizer_in_every_epoch():
    model = net()
    data = DataLoader(rows(72), batch_size=12, shuffle=True)
    for _ in range(4):
        _train_phase(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data=data)


def only_the_body_is_loaded():
    """Load only the body of a pretrained network, because the head differs."""
    teacher, model = net(), nn.Sequential(*net()[:-1], nn.Linear(16, 7))
    state = {k: v for k, v in teacher.state_dict().items() if not k.startswith("4.")}
    model.load_state_dict(state, strict=False)
    _train_phase(model, torch.optim.AdamW(model.parameters()), steps=4)


def state_keys_with_prefix():
    """Load the state of a wrapped network. Its keys have a prefix, so no parameter is loaded."""
    model = net()
    state = {f"module.{k}": v for k, v in net().state_dict().items()}
    model.load_state_dict(state, strict=False)
    _train_phase(model, torch.optim.AdamW(model.parameters()), steps=4)
