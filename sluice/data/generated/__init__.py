"""Generated data whose truth is known, for the pipelines that Sluice contains and for tests."""
