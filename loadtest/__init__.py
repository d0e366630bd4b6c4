"""A load test of a running service by its front door alone: every answer is checked, not only timed."""
