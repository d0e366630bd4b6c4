"""What the tests' own files say, for tables that name tests."""

import ast
from functools import lru_cache
from pathlib import Path

TESTS = Path(__file__).parent


@lru_cache
def docstrings(path: Path) -> dict[str, str]:
    """Of each function of a file, by its name; empty where it has none."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}
