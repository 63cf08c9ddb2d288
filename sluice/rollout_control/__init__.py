"""From a verdict to production: what moves a rollout, with real servers and a real ledger."""
