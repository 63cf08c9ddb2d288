"""Sticky assignment of users to the challenger: a higher share adds users and moves none back."""

import hashlib


def is_chosen(user: str, *, salt: str, share: float) -> bool:
    """Return whether a user belongs to the challenger's share.

    For each salt, every user has a fixed hash in [0, 1). The users whose hash is below ``share``
    are chosen. So a higher share adds users and removes none. Another salt chooses other users.

    Args:
        user: User key.
        salt: ``TrafficSplit.salt``, which is secret. If clients knew it, they could search for user
            keys that are chosen.
        share: Share of all users, in [0, 1]; NaN chooses no user.

    >>> is_chosen("ada", salt="r1", share=1.0), is_chosen("ada", salt="r1", share=0.0)
    (True, False)
    """
    return hash_fraction(user, salt=salt) < share


def hash_fraction(user: str, *, salt: str) -> float:
    """Return the hash of a user in [0, 1): uniform over users, and independent between salts."""
    # The length prefix distinguishes (salt "a", user "b...") from (salt "ab", user "...").
    text = f"{len(salt)}:{salt}{user}".encode(errors="surrogatepass")
    # A float has 53 bits of precision; with more bits the largest number would round up to 1.
    return (int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 11) / 2**53
