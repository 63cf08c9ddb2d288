"""What the gate catches and what it leaves alone, measured: defects and healthy set-ups as data."""
