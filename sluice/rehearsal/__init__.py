"""Rehearses a rollout: a real server, held-out rows as traffic, and an injected fault."""
