"""Random search spaces with every kind of parameter and with conditions."""

import numpy as np

from sluice.tuning.spaces import Space

OPTION_PATH = "model.options.{}"


def random_space(seed: int, *, count: int = 8) -> Space:
    """Return a random space over model options, which may have any value."""
    rng = np.random.default_rng(seed)
    parameters: dict[str, dict] = {}
    for number in range(count):
        parameter = _parameter(rng)
        choices = [path for path, p in parameters.items() if p["kind"] == "choice"]
        if choices and rng.random() < 0.4:
            condition = choices[rng.integers(len(choices))]
            options = parameters[condition]["options"]
            chosen = [options[i] for i in rng.permutation(len(options))[: 1 + rng.integers(2)]]
            parameter["when"] = {"path": condition, "one_of": chosen}
        parameters[OPTION_PATH.format(f"p{number}")] = parameter
    return Space.parse({"parameters": parameters}, where="random")


def _parameter(rng) -> dict:
    low = float(10 ** rng.uniform(-6, 3))
    high = low * float(10 ** rng.uniform(0.01, 4))
    whole, exponent, step = int(rng.integers(-50, 50)), int(rng.integers(0, 9)), rng.integers(1, 9)
    step, steps, q = int(step), int(rng.integers(1, 30)), float(rng.choice([0.1, 0.25, 1e-3, 2]))
    first = int(rng.integers(1, 40))
    kinds = [
        {"kind": "log_uniform", "low": low, "high": high, "may_be_off": bool(rng.random() < 0.5)},
        {"kind": "uniform", "low": whole + rng.random(), "high": whole + 1 + rng.random() * 9},
        {"kind": "integers", "low": step * whole, "high": step * (whole + steps)}
        | {"multiple_of": step},
        {"kind": "powers_of_two", "low": 2**exponent, "high": 2 ** (exponent + steps % 5 + 1)},
        {"kind": "choice", "options": _options(rng)},
        {"kind": "choice", "options": _options(rng)},
        {"kind": "tune", "function": "uniform", "arguments": [low, high]},
        {"kind": "tune", "function": "quniform", "arguments": [q * whole, q * (whole + steps), q]},
        {"kind": "tune", "function": "loguniform", "arguments": [low, high]},
        {"kind": "tune", "function": "qloguniform"} | {"arguments": [q * first, q * first * 9, q]},
        {"kind": "tune", "function": "randn", "arguments": [whole, high]},
        {"kind": "tune", "function": "qrandn", "arguments": [whole, steps * q, q]},
        {"kind": "tune", "function": "randint", "arguments": [whole, whole + steps + 1]},
        {"kind": "tune", "function": "qrandint"} | {"arguments": [whole, whole + 9 * step, step]},
        {"kind": "tune", "function": "lograndint", "arguments": [first, first + steps + 1]},
        {"kind": "tune", "function": "qlograndint", "arguments": [first, first + 9 * step, step]},
        {"kind": "tune", "function": "choice", "arguments": [_options(rng)]},
    ]
    return kinds[rng.integers(len(kinds))]


def _options(rng) -> list:
    every = [
        ["sgd", "adamw", "none"],
        [1, 2, 4, 8],
        [0.5, 1.0],
        [True, False],
        [1, 1.0, True, "1"],
        [[0.9, 0.999], [0.95, 0.99], [0, 0.9]],
        ["auto", 3, [1, 2]],
    ]
    return every[rng.integers(len(every))]
