"""Which users a challenger gets: always the same ones, and more of them as its share rises."""

import hashlib


def is_chosen(user: str, *, salt: str, share: float) -> bool:
    """Say whether a user belongs to the challenger's share.

    Every user has one place in [0, 1) for each salt, and those below ``share`` are chosen: a higher
    share adds users and never moves one back. Another salt draws other users.

    Args:
        user: Key of the user.
        salt: Unknown to users, or they could choose keys that are chosen (``Weights.salt``).
        share: Of all users, in [0, 1]; NaN chooses nobody.

    >>> is_chosen("ada", salt="r1", share=1.0), is_chosen("ada", salt="r1", share=0.0)
    (True, False)
    """
    return place(user, salt=salt) < share


def place(user: str, *, salt: str) -> float:
    """Return the user's place in [0, 1), uniform over users and independent between salts."""
    # The length keeps (salt "a", user "b...") and (salt "ab", user "...") apart.
    text = f"{len(salt)}:{salt}{user}".encode(errors="surrogatepass")
    # 53 bits are what a float holds: with more, the largest would round up to 1.
    return (int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 11) / 2**53
