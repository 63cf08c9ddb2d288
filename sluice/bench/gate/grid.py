"""The worlds that ``sluice bench gate`` tries: every source of trouble, alone and together."""

from itertools import product

from sluice.bench.gate.worlds import World


def full_grid() -> tuple[World, ...]:
    """Return every cell that has a figure to hold: 1,000 rows in four folds.

    Dependence x horizons x seeds at equal shares first; then tails, seed shares and a rule without
    seeds, each at every dependence; then the other direction, more rows.
    """
    cells = [
        World(rho=rho, horizon_rows=horizon, num_seeds=seeds)
        for rho, horizon, seeds in product((0.0, 0.3, 0.5, 0.8), (1, 5, 20), (5, 8, 10))
    ]
    cells += [
        World(rho=rho, tails=tails, horizon_rows=horizon, num_seeds=seeds)
        for rho, tails, horizon, seeds in product(
            (0.0, 0.5, 0.8), ("t3", "clustered"), (1, 20), (5, 8)
        )
    ]
    cells += [
        World(rho=rho, seed_share=share, num_seeds=seeds)
        for rho, share, seeds in product((0.0, 0.5, 0.8), (0.0, 0.2, 0.8, 0.95), (5, 8))
    ]
    cells += [
        World(rho=rho, deterministic=True, seed_share=share)
        for rho, share in product((0.0, 0.5, 0.8), (0.0, 0.5))
    ]
    cells += [World(rho=rho, num_rows=3000) for rho in (0.0, 0.5, 0.8)]
    return tuple(cells)


def quick_grid() -> tuple[World, ...]:
    """Return a few cells that span the grid: a look, no figure."""
    return (
        World(rho=0.0, num_seeds=5),
        World(rho=0.5, num_seeds=5, seed_share=0.2, tails="t3"),
        World(rho=0.5, num_seeds=8, horizon_rows=5, tails="clustered"),
        World(rho=0.8, num_seeds=8),
    )
