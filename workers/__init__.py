"""The processes behind the API: one module a role, each with one readable loop."""
