"""`planpaint check`: what must hold in the store and the bucket at any moment, as tables of small checks."""
