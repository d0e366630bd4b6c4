"""Trains the demo checkpoint from nothing: `python -m demo_model`. Not part of the service and not packaged."""
