"""Searchers whose libraries are in the extra 'searchers', and whether they are installed."""

import importlib
import importlib.util
import warnings

HYPEROPT = "ray.tune.search.hyperopt:HyperOptSearch"
NEVERGRAD = "ray.tune.search.nevergrad:NevergradSearch"
BOHB = "ray.tune.search.bohb:TuneBOHB"
MODULES = {HYPEROPT: ("hyperopt",), NEVERGRAD: ("nevergrad",), BOHB: ("hpbandster", "ConfigSpace")}


def is_installed(path: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in MODULES.get(path, ()))


def load_quietly() -> None:
    """Import the searchers without warnings, which would fail the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in MODULES:
            importlib.import_module(path.partition(":")[0])
