"""The Dagster assets of a pipeline, one module each.

The line from raw rows to production, in order:

- ``raw_data``: rows of the source, stored under the digest of their content.
- ``features``: the feature frame with its target, and the walk-forward folds.
- ``poc_report``: result of the proof-of-concept gate, whose checks take seconds.
- ``best_config``: settings of network and training, from a hyperparameter search or the YAML file.
- ``trained_models``: one trained network for each seed and fold.
- ``evaluation``: test losses of the candidate and of its reference, and regression suite results.
- ``promotion_verdict``: decision of the promotion gate, recorded as a receipt.
- ``candidate``: the candidate as an immutable version in the registry.
- ``approval``: a person's approval of a promotion. Exists only if an approval is required.
- ``rollout``: stepwise shift of traffic to the candidate. Exists only with rollout settings.
- ``rollout_review``: live quality of the rollout, and the rows on which it failed. Exists only with
  rollout settings.
- ``production_model``: version that the registry's production pointer refers to.

Two assets are beside the line. Without drift settings, ``drift_report`` does not exist and
``drift_reference`` is empty.

- ``drift_reference``: distributions of training rows and held-out predictions, for drift tests.
- ``drift_report``: drift of new rows, requests, predictions, embeddings, latency and losses.

The key of an asset consists of the name of its pipeline and the name of the asset. An asset of a
user's project can therefore depend on ``dg.AssetKey(["my_pipeline", "production_model"])`` without
an import from here.

Each module builds its asset with a function ``<name>_asset``. Its arguments are the name of the
pipeline and the fields of ``sluice.config.resolved.ResolvedPipeline`` that the asset needs. An
asset reads its inputs, calls the library in ``sluice`` and attaches metadata. The library makes all
decisions.
"""
