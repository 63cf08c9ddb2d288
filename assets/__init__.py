"""Dagster assets of one pipeline, in the order in which they depend on each other.

Data:

- ``raw_data``: rows of the source, stored under the digest of their content.
- ``features``: the feature frame with its target, and the walk-forward folds.

Training:

- ``poc_report``: result of the proof-of-concept gate, minutes of checks before hours of training.
- ``best_config``: settings of network and training, from a hyperparameter search or the YAML file.
- ``trained_models``: one trained network for each seed and fold.
- ``drift_reference``: distributions of training rows and held-out predictions, for drift tests.

Promotion:

- ``evaluation``: test losses of the candidate and of its reference, and regression suite results.
- ``promotion_verdict``: decision of the promotion gate, recorded as a receipt.
- ``candidate``: the candidate as an immutable version in the registry.
- ``rollout``: stepwise shift of traffic to the candidate; only where a rollout is configured.
- ``production_model``: version that the registry's production pointer refers to.
- ``rollout_review``: live quality of the rollout, and the rows on which it failed.

Monitoring:

- ``drift_report``: drift of new rows, requests, predictions, latency and losses.

Each module builds one asset with a function ``<name>_asset(pipeline)``. An asset reads its inputs,
calls the library below ``sluice`` and attaches metadata; it contains no decisions of its own.
"""
