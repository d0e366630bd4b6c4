"""planpaint: a serving system for hybrid autoregressive + diffusion image models."""

__version__ = "0.1.0"
