"""The scenarios of ``sluice bench gate``: each source of error, alone and combined."""

from itertools import product

from sluice.bench.gate.scenarios import GateScenario


def full_grid() -> tuple[GateScenario, ...]:
    """Return all scenarios, with 1,000 rows in four folds unless stated otherwise.

    First dependence x horizon x seeds at equal variance shares; then tails, seed shares and a rule
    without seeds, each at three dependences; then 3,000 rows.
    """
    cells = [
        GateScenario(rho=rho, horizon_rows=horizon, num_seeds=seeds)
        for rho, horizon, seeds in product((0.0, 0.3, 0.5, 0.8), (1, 5, 20), (5, 8, 10))
    ]
    cells += [
        GateScenario(rho=rho, tails=tails, horizon_rows=horizon, num_seeds=seeds)
        for rho, tails, horizon, seeds in product(
            (0.0, 0.5, 0.8), ("t3", "clustered"), (1, 20), (5, 8)
        )
    ]
    cells += [
        GateScenario(rho=rho, seed_share=share, num_seeds=seeds)
        for rho, share, seeds in product((0.0, 0.5, 0.8), (0.0, 0.2, 0.8, 0.95), (5, 8))
    ]
    cells += [
        GateScenario(rho=rho, deterministic=True, seed_share=share)
        for rho, share in product((0.0, 0.5, 0.8), (0.0, 0.5))
    ]
    cells += [GateScenario(rho=rho, num_rows=3000) for rho in (0.0, 0.5, 0.8)]
    return tuple(cells)


def quick_grid() -> tuple[GateScenario, ...]:
    """Return a few scenarios that span the grid, for a quick check."""
    return (
        GateScenario(rho=0.0, num_seeds=5),
        GateScenario(rho=0.5, num_seeds=5, seed_share=0.2, tails="t3"),
        GateScenario(rho=0.5, num_seeds=8, horizon_rows=5, tails="clustered"),
        GateScenario(rho=0.8, num_seeds=8),
    )
