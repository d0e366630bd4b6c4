"""`planpaint doctor`: what this host can run, and what to do where it cannot."""
