"""Where work runs: this machine's processes, or a Ray cluster. The only place that knows Ray."""
