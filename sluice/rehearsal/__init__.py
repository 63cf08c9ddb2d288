"""A rollout rehearsed: real server, real traffic of held-out rows, a fault planted on purpose."""
