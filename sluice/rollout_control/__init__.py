"""Controls rollouts, from the promotion verdict to production."""
