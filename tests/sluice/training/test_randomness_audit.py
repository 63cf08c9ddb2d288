"""TRACE-6: the audit lists every source of randomness and whether it is seeded."""

import ast
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sluice.base.seeding import RandomStream, deterministic, rng_state, seed_everything
from sluice.training.randomness_audit import RandomnessAudit, audit_randomness

GLOBAL = ("Python random", "NumPy global", "torch CPU")
ROWS = list(range(8))


@pytest.fixture(autouse=True)
def _own_generators(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "random"))
    with RandomStream(1).active():
        yield


def audit(seed: int = 7, **options) -> RandomnessAudit:
    options = {"generators": {}, "loaders": {}, "start_environment": {}} | options
    return audit_randomness(seed=seed, **options)


def statuses(found: RandomnessAudit) -> dict[str, str]:
    return {source.name: source.status for source in found.sources}


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
@pytest.mark.parametrize("num_draws", [0, 1, 623, 624, 625, 50_000])
def test_seeded_generators_are_recognized_after_any_number_of_draws(seed, num_draws):
    seed_everything(seed)
    for _ in range(num_draws):
        random.getrandbits(32)
    np.random.bytes(4 * num_draws)  # noqa: NPY002
    torch.rand(num_draws)

    assert [statuses(audit(seed))[name] for name in GLOBAL] == ["seeded"] * 3


def test_only_the_generator_with_another_seed_is_reported():
    def audit_after(reseed) -> dict[str, str]:
        seed_everything(7)
        reseed()
        status = statuses(audit())
        return {name: status[name] for name in GLOBAL if status[name] != "seeded"}

    assert audit_after(lambda: random.seed(8)) == {"Python random": "unknown"}
    assert audit_after(lambda: np.random.seed(8)) == {"NumPy global": "unknown"}  # noqa: NPY002
    assert audit_after(lambda: torch.manual_seed(8)) == {"torch CPU": "other seed"}


def test_audit_draws_no_random_number():
    before = rng_state()
    audit(generators={"a": torch.Generator()}, loaders={"train": DataLoader(ROWS)})

    after = rng_state()
    assert all(torch.equal(before[n], after[n]) for n in before if not n.endswith("gauss"))


def audit_new_process(**environment: str) -> dict[str, str]:
    script = (
        "from sluice.training.randomness_audit import audit_randomness\n"
        "found = audit_randomness(seed=0, generators={}, loaders={})\n"
        "print({s.name: s.status for s in found.sources})"
    )
    env = {"PYTHONPATH": os.getcwd(), "PATH": ""} | environment
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


@pytest.mark.slow
def test_unseeded_process_is_reported():
    assert audit_new_process() == {
        "Python random": "unknown",
        "NumPy global": "unknown",
        "torch CPU": "other seed",
        "PYTHONHASHSEED": "not seeded",
    }


@pytest.mark.exhaustive
@pytest.mark.slow
def test_hash_seed_of_a_process_is_reported_as_seeded():
    assert audit_new_process(PYTHONHASHSEED="3")["PYTHONHASHSEED"] == "seeded"


@pytest.mark.parametrize(
    ("value", "status"),
    [("0", "seeded"), ("12", "seeded"), ("random", "not seeded"), ("", "not seeded")],
)
def test_hash_seed_is_read_from_the_start_environment(value, status):
    os.environ["PYTHONHASHSEED"] = "5"

    found = audit(start_environment={"PYTHONHASHSEED": value})

    assert statuses(found)["PYTHONHASHSEED"] == status


def test_status_of_passed_generators():
    found = audit(
        generators={
            "order": torch.Generator().manual_seed(5),
            "forgotten": torch.Generator(),
            "bootstrap": np.random.default_rng(5),
            "jitter": np.random.default_rng(),
            "shuffle": random.Random(5),
        }
    )

    status = statuses(found)
    assert status["generator of order"] == "seeded"
    assert status["generator of forgotten"] == "not seeded"
    assert status["generator of bootstrap"] == "seeded"
    assert status["generator of jitter"] == "not seeded"
    assert status["generator of shuffle"] == "unknown"
    assert "generator of jitter" in found.unseeded
    assert "generator of order" not in found.unseeded


def test_loaders_without_own_generator_or_with_a_shared_one_are_reported():
    """Without its own generator a DataLoader draws from the global one: a resumed run differs."""
    own = torch.Generator().manual_seed(5)

    found = audit(
        generators={"augmentation": own},
        loaders={"train": DataLoader(ROWS, generator=own), "val": DataLoader(ROWS)},
    )

    assert statuses(found)["loader train"] == "seeded"
    assert statuses(found)["loader val"] == "not seeded"
    (shared,) = found.shared
    assert shared.users == ("generator of augmentation", "loader train")


def test_switches_report_the_deterministic_mode():
    def repeats() -> dict[str, bool]:
        return {switch.name: switch.repeats for switch in audit().switches}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert not repeats()["deterministic algorithms"]
        assert not repeats()["threads"]
        with deterministic():
            assert all(repeats().values())
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert not repeats()["deterministic algorithms"]
        torch.backends.cudnn.benchmark = True
        assert not repeats()["cudnn.benchmark"]
    finally:
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)
