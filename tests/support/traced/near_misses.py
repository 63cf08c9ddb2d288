"""Correct programs that resemble programs with faults of data, tokens or losses."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from sluice.bench.tracer.data import BOS, PAD, VOCAB_SIZE, digits, sentences, table
from sluice.bench.tracer.nets import LanguageModel, classifier


def _images(num_train=384):
    """Return ``num_train`` training images and all held-out images."""
    train, held_out = digits("mlp", 1)
    return TensorDataset(*(t[:num_train] for t in train.tensors)), held_out


def _step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def gan_with_two_backward_passes():
    torch.manual_seed(0)
    generator = nn.Linear(8, 64)
    discriminator = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    for real, _ in DataLoader(_images()[0], batch_size=32):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        discriminator.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(real), ones).backward()
        fake = generator(torch.randn(len(real), 8))
        F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros).backward()
        discriminator_optimizer.step()
        generator.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(fake), ones).backward()
        generator_optimizer.step()


def gan_without_a_loader():
    torch.manual_seed(0)
    generator = nn.Linear(8, 64)
    discriminator = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    loss_of = nn.BCEWithLogitsLoss()
    for real in _images()[0].tensors[0].split(32):
        fake = generator(torch.randn(32, 8))
        discriminator_optimizer.zero_grad()
        loss_of(discriminator(real), torch.ones(32, 1)).backward()
        loss_of(discriminator(fake.detach()), torch.zeros(32, 1)).backward()
        discriminator_optimizer.step()
        generator_optimizer.zero_grad()
        loss_of(discriminator(fake), torch.ones(32, 1)).backward()
        generator_optimizer.step()


def two_tasks_on_one_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 11))
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(_images()[0], batch_size=32):
        optimizer.zero_grad()
        F.cross_entropy(model(x)[:, :10], y).backward()
        F.cross_entropy(model(x)[:, 10:] @ torch.ones(1, 10), y).backward()
        optimizer.step()


def _accumulate(loss_of, edit_gradients):
    """Sum the gradients of four batches, edit them, and step."""
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i, (x, y) in enumerate(DataLoader(_images()[0], batch_size=16)):
        loss_of(model(x), y).backward()
        if i % 4 == 3:
            edit_gradients(model)
            optimizer.step()
            optimizer.zero_grad()


def accumulated_sums():
    _accumulate(lambda out, y: F.cross_entropy(out, y, reduction="sum"), lambda _: None)


def manual_mean():
    _accumulate(lambda out, y: F.cross_entropy(out, y, reduction="sum") / 64, lambda _: None)


def manually_divided_gradients():
    def divide(model):
        for parameter in model.parameters():
            parameter.grad /= 4
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    _accumulate(lambda out, y: F.cross_entropy(out, y), divide)


def scaled_and_divided():
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for i, (x, y) in enumerate(DataLoader(_images()[0], batch_size=16)):
        scaler.scale(F.cross_entropy(model(x), y) / 4).backward()
        if i % 4 == 3:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def training_accuracy_and_validation():
    torch.manual_seed(0)
    train, held_out = _images()
    model = classifier("mlp")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model.train()
        for x, y in DataLoader(train, batch_size=32, shuffle=True):
            _step(optimizer, F.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            for data in (train, held_out):
                for x, y in DataLoader(data, batch_size=128):
                    (model(x).argmax(1) == y).sum()


def predicts_all_rows_at_the_end():
    torch.manual_seed(0)
    x, y = (torch.cat(tensors) for tensors in zip(*(d.tensors for d in _images()), strict=True))
    model = classifier("mlp")
    optimizer = torch.optim.Adam(model.parameters())
    for rows in torch.randperm(384).split(32):
        _step(optimizer, F.cross_entropy(model(x[rows]), y[rows]))
    with torch.inference_mode():
        model.eval()(x)


def predicts_training_rows_then_new_rows():
    torch.manual_seed(0)
    (x, y), (new_x, _) = (d.tensors for d in _images())
    model = classifier("mlp")
    optimizer = torch.optim.Adam(model.parameters())
    for rows in torch.randint(len(x), (24, 32)):  # some rows are never sampled
        _step(optimizer, F.cross_entropy(model(x[rows]), y[rows]))
    with torch.no_grad():
        mean_output = model(x).mean(0)
        (model(new_x) - mean_output).norm(dim=1)


def raw_pixels():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(_images()[0], batch_size=32):
        _step(optimizer, F.cross_entropy(model((x * 255).round()), y))


def weak_signal():
    """A target that is mostly noise, and a network that memorizes the training rows."""
    torch.manual_seed(0)
    x = torch.randn(1536, 10)
    y = 0.25 * x[:, 0] + torch.randn(1536)
    model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        for rows in torch.randperm(1024).split(64):
            _step(optimizer, F.mse_loss(model(x[rows])[:, 0], y[rows]))
        with torch.no_grad():
            F.mse_loss(model(x[1024:])[:, 0], y[1024:])


def imbalanced_classes():
    torch.manual_seed(0)
    x = torch.randn(1536, 8)
    y = (x[:, 0] + x[:, 1] > 2.9).float()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for rows in torch.randperm(1024).split(32):
            _step(optimizer, F.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows]))
        with torch.no_grad():
            F.binary_cross_entropy_with_logits(model(x[1024:])[:, 0], y[1024:])


def negative_correlation():
    torch.manual_seed(0)
    x = torch.randn(1024, 6)
    y = -x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for rows in torch.arange(1024).split(32):
        mean, spread = model(x[rows]).chunk(2, 1)
        _step(optimizer, F.gaussian_nll_loss(mean, y[rows], F.softplus(spread) + 1e-3))


def autoencoder():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters())
    for x, _ in DataLoader(_images()[0], batch_size=32):
        _step(optimizer, F.binary_cross_entropy(model(x), x))


def left_padded():
    torch.manual_seed(0)
    model = LanguageModel("gru")
    optimizer = torch.optim.Adam(model.parameters())
    for batch in DataLoader(sentences(0, rows=192), batch_size=32, collate_fn=lambda b: b):
        ids = torch.tensor([[PAD] * (18 - len(row)) + row for row in batch])
        logits = model(ids[:, :-1])
        _step(optimizer, F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=PAD))


def texts_without_eos():
    torch.manual_seed(0)
    rows = [torch.tensor(row[1:-1]) for row in sentences(0, rows=192)]
    model = LanguageModel("gru")
    optimizer = torch.optim.Adam(model.parameters())
    for start in range(0, len(rows), 32):
        ids = pad_sequence(rows[start : start + 32], batch_first=True, padding_value=PAD)
        logits = model(ids[:, :-1])
        _step(optimizer, F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=PAD))


def a_row_without_targets():
    torch.manual_seed(0)
    model = LanguageModel("gru")
    optimizer = torch.optim.Adam(model.parameters())
    for start in range(4):
        ids = torch.randint(3, VOCAB_SIZE, (16, 9))
        ids[:, 0] = BOS
        targets = ids[:, 1:].clone()
        targets[start] = -100
        _step(optimizer, F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), targets.flatten()))


def distillation():
    torch.manual_seed(0)
    teacher, student = classifier("mlp").eval(), classifier("mlp")
    optimizer = torch.optim.Adam(student.parameters())
    for x, y in DataLoader(_images()[0], batch_size=32):
        with torch.no_grad():
            soft_targets = teacher(x).softmax(1)
        out = student(x)
        hard = F.nll_loss(out.log_softmax(1), y)
        _step(optimizer, F.kl_div(out.log_softmax(1), soft_targets, reduction="batchmean") + hard)


def contrastive_views():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        for x, _ in DataLoader(_images()[0], batch_size=32, shuffle=True, drop_last=True):
            first_view = F.normalize(model(x + 0.05 * torch.randn_like(x)), dim=1)
            second_view = F.normalize(model(x + 0.05 * torch.randn_like(x)), dim=1)
            logits = first_view @ second_view.T / 0.2
            _step(optimizer, F.cross_entropy(logits, torch.arange(len(x))))


def two_folds():
    """The validation rows of one fold are the training rows of the next fold, for a new model."""
    torch.manual_seed(0)
    (x, y), _ = (d.tensors for d in _images())
    folds = torch.randperm(len(x)).chunk(2)
    for val_rows, train_rows in (folds, folds[::-1]):
        model = classifier("mlp")
        optimizer = torch.optim.Adam(model.parameters())
        for rows in train_rows.split(32):
            _step(optimizer, F.cross_entropy(model(x[rows]), y[rows]))
        with torch.no_grad():
            F.cross_entropy(model(x[val_rows]), y[val_rows])


def noise_on_training_rows():
    torch.manual_seed(0)
    train, held_out = table(0, rows=512)
    model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(2):
        for x, y in DataLoader(train, batch_size=32, shuffle=True):
            _step(optimizer, F.huber_loss(model(x + 0.3 * torch.randn_like(x))[:, 0], y))
        model.eval()
        with torch.no_grad():
            x, y = held_out.tensors
            F.huber_loss(model(x)[:, 0], y)
        model.train()


def imputes_missing_values():
    class ImputingModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(24, 1)

        def forward(self, x):
            missing = x.isnan()
            return self.body(torch.cat([x.nan_to_num(), missing.float()], 1))

    torch.manual_seed(0)
    train, _ = table(0, rows=512)
    model = ImputingModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x, y in DataLoader(train, batch_size=32):
        x[::5, 3] = torch.nan
        _step(optimizer, F.mse_loss(model(x)[:, 0], y))


NEAR_MISSES = (
    gan_with_two_backward_passes,
    gan_without_a_loader,
    two_tasks_on_one_batch,
    accumulated_sums,
    manual_mean,
    manually_divided_gradients,
    scaled_and_divided,
    training_accuracy_and_validation,
    predicts_all_rows_at_the_end,
    predicts_training_rows_then_new_rows,
    raw_pixels,
    weak_signal,
    imbalanced_classes,
    negative_correlation,
    autoencoder,
    left_padded,
    texts_without_eos,
    a_row_without_targets,
    distillation,
    contrastive_views,
    two_folds,
    noise_on_training_rows,
    imputes_missing_values,
)
