"""`planpaint up`: the whole stack as children of one process, with embedded servers where none are configured."""
