"""Sticky assignment: a user always gets the same arm, and a higher share only adds users."""

import hashlib


def is_chosen(user: str, *, salt: str, share: float) -> bool:
    """Return whether a user belongs to the challenger's share.

    Every user has one hash fraction in [0, 1) for each salt, and those below ``share`` are chosen:
    a higher share adds users and never moves one back. Another salt selects other users.

    Args:
        user: User key.
        salt: Secret; otherwise clients could pick user keys that are chosen
            (``TrafficSplit.salt``).
        share: Share of all users, in [0, 1]; NaN chooses no user.

    >>> is_chosen("ada", salt="r1", share=1.0), is_chosen("ada", salt="r1", share=0.0)
    (True, False)
    """
    return hash_fraction(user, salt=salt) < share


def hash_fraction(user: str, *, salt: str) -> float:
    """Return the user's hash in [0, 1), uniform over users and independent between salts."""
    # The length prefix distinguishes (salt "a", user "b...") from (salt "ab", user "...").
    text = f"{len(salt)}:{salt}{user}".encode(errors="surrogatepass")
    # A float has 53 bits: with more, the largest would round up to 1.
    return (int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 11) / 2**53
