"""Generated CSV files without any preparation, one for each kind of table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

Table = tuple[pd.DataFrame, str]
"""The rows, and the column to predict."""


def numbers(rng: np.random.Generator, n: int = 500) -> Table:
    area, age = rng.uniform(30, 180, n), rng.uniform(0, 80, n)
    price = 2.5 * area + 40 * np.cos(age / 15) + rng.normal(scale=8, size=n)
    rows = {"Id": np.arange(n), "area": area, "age": age, "country": "DE", "Price": price}
    return pd.DataFrame(rows).round(3), "Price"


def dates(rng: np.random.Generator, n: int = 500) -> Table:
    day = pd.date_range("2022-01-03", periods=n)
    promotion = rng.integers(0, 2, n)
    sales = 80 + 20 * (day.day_of_week >= 5) + 15 * promotion + rng.normal(scale=3, size=n)
    rows = pd.DataFrame({"Day": day.strftime("%d/%m/%Y"), "promotion": promotion, "sales": sales})
    return rows.sample(frac=1, random_state=0).round(3), "sales"


def categories(rng: np.random.Generator, n: int = 600) -> Table:
    city, income = rng.choice(["Bonn", "New York", "Kassel"], n), rng.normal(50, 10, n).round(2)
    score = 2.5 * (city == "Bonn") - (income - 50) / 4
    rows = pd.DataFrame(
        {
            "customer": [f"C{number:05d}" for number in range(n)],
            "city": np.where(rng.random(n) < 0.1, None, city),
            "income": np.where(rng.random(n) < 0.2, np.nan, income),
            "churned": np.where(score + rng.normal(size=n) > 0.8, "yes", "no"),
        }
    )
    return rows, "churned"


def texts(rng: np.random.Generator, n: int = 600) -> Table:
    filler = ("the", "product", "arrived", "on", "monday", "and", "i", "used", "my", "phone")
    words = {"positive": ["great", "love", "happy"], "negative": ["poor", "broken", "refund"]}
    labels = rng.choice(list(words), n)
    reviews = [
        " ".join(rng.permutation([*rng.choice(filler, 7), *rng.choice(words[label], 2)]))
        for label in labels
    ]
    return pd.DataFrame({"review": reviews, "sentiment": labels}), "sentiment"


def imbalanced(rng: np.random.Generator, n: int = 1_500) -> Table:
    x = rng.normal(size=(n, 3))
    fraud = (2.5 * x[:, 0] + x[:, 1] + rng.normal(scale=0.5, size=n) > 4.2).astype(int)
    return pd.DataFrame(x, columns=["V1", "V2", "V3"]).round(4).assign(Class=fraud), "Class"


def unix_times(rng: np.random.Generator, n: int = 500) -> Table:
    hours = np.arange(n)
    load = 50 + 10 * np.sin(hours / 24 * 2 * np.pi) + rng.normal(size=n)
    rows = {"timestamp": 1_700_000_000_000 + 3_600_000 * hours, "wind": rng.normal(size=n)}
    return pd.DataFrame(rows | {"load": load + rows["wind"]}).round(3), "load"


def numbered_times(rng: np.random.Generator, n: int = 600) -> Table:
    amount = rng.exponential(size=n).round(3)
    fraud = np.where(amount + rng.normal(scale=0.3, size=n) > 1, "yes", "no")
    rows = {"Time": np.sort(rng.integers(0, 2 * n, n)) / 2, "amount": amount, "fraud": fraud}
    return pd.DataFrame(rows), "fraud"


def survey(rng: np.random.Generator, n: int = 600) -> Table:
    sex, agrees = rng.choice(["f", "m"], n), rng.integers(1, 6, n)
    votes = np.where((sex == "f") + agrees / 2 + rng.normal(scale=0.5, size=n) > 2, "yes", "no")
    rows = pd.DataFrame({"sex": sex, "agrees": agrees, "votes": votes})
    return rows.sort_values(["sex", "agrees", "votes"]), "votes"


TABLES: dict[str, Callable[[np.random.Generator], Table]] = {
    "numbers": numbers,
    "dates": dates,
    "categories": categories,
    "texts": texts,
    "imbalanced": imbalanced,
    "unix_times": unix_times,
    "numbered_times": numbered_times,
    "survey": survey,
}


def write_csv(kind: str, path: Path) -> str:
    """Write the table of a kind to a file, and return its target column."""
    rows, target = TABLES[kind](np.random.default_rng(7))
    rows.to_csv(path, index=False, sep=";" if kind == "categories" else ",")
    return target
