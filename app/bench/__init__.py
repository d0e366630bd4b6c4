"""Benchmarks that print their conditions, the limit beside each figure, and a ratio instead of a bare time."""
