"""The scenarios of ``sluice bench gate``: sources of variance, alone and combined."""

from itertools import product

from sluice.bench.gate.scenarios import GateScenario


def full_grid() -> tuple[GateScenario, ...]:
    """Return all scenarios, with 1,000 rows in four folds unless stated otherwise.

    The first scenarios combine autocorrelation, horizon and number of seeds; rows and seeds
    contribute equally to the variance. Then follow heavy tails, other shares of the variance,
    references without seeds, and 3,000 rows, each at three autocorrelations.
    """
    scenarios = [
        GateScenario(rho=rho, horizon_rows=horizon, num_seeds=seeds)
        for rho, horizon, seeds in product((0.0, 0.3, 0.5, 0.8), (1, 5, 20), (5, 8, 10))
    ]
    scenarios += [
        GateScenario(rho=rho, tails=tails, horizon_rows=horizon, num_seeds=seeds)
        for rho, tails, horizon, seeds in product(
            (0.0, 0.5, 0.8), ("t3", "clustered"), (1, 20), (5, 8)
        )
    ]
    scenarios += [
        GateScenario(rho=rho, seed_share=share, num_seeds=seeds)
        for rho, share, seeds in product((0.0, 0.5, 0.8), (0.0, 0.2, 0.8, 0.95), (5, 8))
    ]
    scenarios += [
        GateScenario(rho=rho, has_deterministic_reference=True, seed_share=share)
        for rho, share in product((0.0, 0.5, 0.8), (0.0, 0.5))
    ]
    scenarios += [GateScenario(rho=rho, num_rows=3000) for rho in (0.0, 0.5, 0.8)]
    return tuple(scenarios)


def quick_grid() -> tuple[GateScenario, ...]:
    """Return a few scenarios that span the grid, for a quick check."""
    return (
        GateScenario(rho=0.0, num_seeds=5),
        GateScenario(rho=0.5, num_seeds=5, seed_share=0.2, tails="t3"),
        GateScenario(rho=0.5, num_seeds=8, horizon_rows=5, tails="clustered"),
        GateScenario(rho=0.8, num_seeds=8),
    )
