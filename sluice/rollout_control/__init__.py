"""Moves rollouts along, from the promotion verdict to production."""
