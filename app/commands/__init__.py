"""What the command `planpaint` does beside running the roles: one module a noun."""
