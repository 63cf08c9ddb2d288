"""Faults of tokens and targets: EOS tokens, truncation, BOS tokens, ids out of range."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import BOS, EOS, PAD, VOCAB_SIZE, digits, sentences
from sluice.bench.tracer.nets import LanguageModel, classifier

_BATCH_ROWS = 32
_IGNORED_TARGET = -100
"""Target that cross entropy ignores by default."""

_MAX_INPUT_TOKENS = 8
"""Length to which the fault truncates inputs [tokens]."""

_MIN_CUT_TOKENS = 12
"""Truncation removes the whole answer of a text that has at least this length [tokens]."""

_FIRST_CUT_BATCH = 9
"""Number of the first batch whose texts have at least ``_MIN_CUT_TOKENS`` tokens, from 1."""


def _padded(rows: list[list[int]], pad: int) -> Tensor:
    return pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=pad)


def end_is_padding(setup: CaseSetup) -> list[nn.Module]:
    """Pad with the EOS token, so that the loss ignores all EOS tokens."""
    torch.manual_seed(setup.seed)
    pad = EOS if setup.has_fault else PAD
    model = LanguageModel(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader: DataLoader[Tensor] = DataLoader(
        sentences(setup.seed),  # type: ignore[arg-type]
        batch_size=_BATCH_ROWS,
        shuffle=True,
        collate_fn=lambda rows: _padded(rows, pad),
    )
    for _ in range(3):
        for ids in loader:
            inputs, targets = ids[:, :-1], ids[:, 1:].clone()
            targets[targets == pad] = _IGNORED_TARGET
            logits = model(inputs)
            loss = F.cross_entropy(logits.reshape(-1, VOCAB_SIZE), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [model]


def answers_cut(setup: CaseSetup) -> list[nn.Module]:
    """Train on the answers at the end of texts; truncation removes the answers of long texts."""
    torch.manual_seed(setup.seed)
    rows = sentences(setup.seed)
    short_rows = [row for row in rows if len(row) < _MIN_CUT_TOKENS][
        : (_FIRST_CUT_BATCH - 1) * _BATCH_ROWS
    ]
    # Short texts come first, as in a file sorted by length.
    rows = [*short_rows, *(row for row in rows if len(row) >= _MIN_CUT_TOKENS)]
    model, criterion = LanguageModel(setup.net), nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    max_tokens = _MAX_INPUT_TOKENS + 1 if setup.has_fault else max(map(len, rows))
    for start in range(0, len(rows), _BATCH_ROWS):
        batch = rows[start : start + _BATCH_ROWS]
        ids = _padded(batch, PAD)[:, :max_tokens]
        targets = ids[:, 1:].clone()
        for row, sentence in zip(targets, batch, strict=True):
            row[: max(len(sentence) - 4, 0)] = PAD  # the answer is the last three tokens
        optimizer.zero_grad()
        criterion(model(ids[:, :-1]).transpose(1, 2), targets).backward()
        optimizer.step()
    return [model]


def begin_twice(setup: CaseSetup) -> list[nn.Module]:
    """Train on texts of which two thirds begin with two BOS tokens, as after a chat template."""
    torch.manual_seed(setup.seed)
    rows = sentences(setup.seed)
    if setup.has_fault:
        rows = [[BOS, *row] if i % 3 else row for i, row in enumerate(rows)]
    model = LanguageModel(setup.net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(3):
        for batch_rows in torch.randperm(len(rows)).split(_BATCH_ROWS):
            ids = _padded([rows[i] for i in batch_rows.tolist()], PAD)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [model]


def token_out_of_range(setup: CaseSetup) -> list[nn.Module]:
    """Train a language model whose embedding lacks the last token of the vocabulary."""
    torch.manual_seed(setup.seed)
    ids = _padded(sentences(setup.seed), PAD)
    model = LanguageModel(setup.net, vocab_size=VOCAB_SIZE - 1 if setup.has_fault else VOCAB_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in ids.split(_BATCH_ROWS) * 3:
        logits = model(batch[:, :-1])
        optimizer.zero_grad()
        F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PAD).backward()
        optimizer.step()
    return [model]


def class_out_of_range(setup: CaseSetup) -> list[nn.Module]:
    """Train on digits whose classes are numbered from 1."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model, criterion = classifier(setup.net), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=_BATCH_ROWS, shuffle=True):
            optimizer.zero_grad()
            criterion(model(x), y + 1 if setup.has_fault else y).backward()
            optimizer.step()
    return [model]


def binary_targets_from_one(setup: CaseSetup) -> list[nn.Module]:
    """Classify digits as < 5 or >= 5, with the targets 1 and 2 instead of 0 and 1.

    BCE with logits accepts these targets.
    """
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net, num_outputs=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=_BATCH_ROWS, shuffle=True):
            targets = (y >= 5).float() + (1.0 if setup.has_fault else 0.0)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(x)[:, 0], targets).backward()
            optimizer.step()
    return [model]


CASES = (
    FaultCase(
        number=9,
        name="padding is the EOS token",
        program=end_is_padding,
        correct_causes=frozenset({"EOS token masked"}),
        max_late_steps=1,
        nets=("gru", "transformer"),
    ),
    FaultCase(
        number=10,
        name="truncation cuts the answers",
        program=answers_cut,
        correct_causes=frozenset({"all targets ignored"}),
        max_late_steps=1,
        nets=("gru", "transformer"),
        starts_at=_FIRST_CUT_BATCH,
    ),
    FaultCase(
        number=14,
        name="two BOS tokens",
        program=begin_twice,
        correct_causes=frozenset({"duplicate BOS token"}),
        max_late_steps=1,
        nets=("gru", "transformer"),
    ),
    FaultCase(
        number=15,
        name="a token outside the vocabulary",
        program=token_out_of_range,
        correct_causes=frozenset({"index out of range"}),
        max_late_steps=1,
        nets=("gru", "transformer"),
        raises=True,
    ),
    FaultCase(
        number=15,
        name="classes numbered from 1",
        program=class_out_of_range,
        correct_causes=frozenset({"index out of range"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
        raises=True,
    ),
    FaultCase(
        number=15,
        name="two classes numbered from 1",
        program=binary_targets_from_one,
        correct_causes=frozenset({"index out of range"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
    ),
)
