"""The floors of ARCHITECTURE.md, checked by reading every import, also those inside functions and under `if`."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: Module prefix -> floor; the longest prefix that fits counts. Imports go down only.
FLOORS = {
    "app": 0,
    "app.domain": 0,
    "app.errors": 0,
    "app.crash_points": 0,
    "app.settings": 1,
    "app.checkpoint": 1,
    "app.keys": 1,
    "app.connect": 1,
    "app.logs": 1,
    "app.traces": 1,
    "app.pictures": 1,
    "app.outbound": 1,
    "app.decode": 1,
    "app.ranks": 1,
    "app.sheet": 1,
    "app.devices": 1,
    "app.bench": 6,
    "app.store": 2,
    "app.queues": 2,
    "app.blobs": 2,
    "app.webhooks": 2,
    "app.metrics": 2,
    "app.views": 2,
    "app.ar": 2,
    "app.dit": 2,
    "app.tiny_checkpoint": 2,
    "app.service": 3,
    "app.invariants": 3,
    "app.wiring": 4,
    "api": 5,
    "workers": 5,
    "app.launcher": 6,
    "app.demo": 6,
    "app.doctor": 6,
    "app.cli": 6,
    "app.commands": 6,
}
#: Floors on which modules may use one another.
OPEN_FLOORS = {0, 1, 6}
TORCH = {"torch", "torch_npu", "transformers", "diffusers"}
MAY_USE_TORCH = (
    "app.ar",
    "app.dit",
    "app.devices",
    "app.ranks",
    "app.tiny_checkpoint",
    "workers.ar",
    "workers.dit",
    "workers.selftest",
    "app.bench",
)
ENGINES = ("app.ar", "app.dit")


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _unit(module: str) -> str:
    """The row of FLOORS that a module belongs to."""
    fitting = [prefix for prefix in FLOORS if module == prefix or module.startswith(prefix + ".")]
    assert fitting, f"{module} has no floor; add it to FLOORS and to ARCHITECTURE.md"
    return max(fitting, key=len)


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = {_module(path): _imports(path) for top in ("app", "api", "workers") for path in (ROOT / top).rglob("*.py")}
OURS = ("app", "api", "workers")
#: Stands outside: nothing of the service may know it, and it may know the world, the sizes and the prompts alone.
TRAINER = {_module(path): _imports(path) for path in (ROOT / "demo_model").rglob("*.py")}
TRAINER_MAY_USE = ("app.bench.", "app.domain.sizes.", "app.ar.prompt.", "app.tiny_checkpoint.scheduler")


def violations(modules: dict[str, set[str]]) -> list[str]:
    found = []
    for module, imports in modules.items():
        mine = _unit(module)
        for name in imports:
            top = name.split(".")[0]
            if top in TORCH and not module.startswith(MAY_USE_TORCH):
                found.append(f"{module} imports {name}")
            if top not in OURS:
                continue
            theirs = _unit(name)
            below = FLOORS[theirs] < FLOORS[mine]
            same = theirs == mine or (FLOORS[theirs] == FLOORS[mine] and FLOORS[mine] in OPEN_FLOORS)
            if not (below or same):
                found.append(f"{module} (floor {FLOORS[mine]}) imports {name} (floor {FLOORS[theirs]})")
            if theirs in ENGINES and mine not in (theirs, "workers", "app.bench"):
                found.append(f"{module} imports the engine {name}")
    return found


def test_imports_go_down_only():
    assert violations(MODULES) == []


def strangers(service: dict[str, set[str]], trainer: dict[str, set[str]]) -> list[str]:
    found = [f"{m} imports {n}" for m, names in service.items() for n in names if n.startswith("demo_model")]
    for module, names in trainer.items():
        ours = [name for name in names if name.split(".")[0] in OURS]
        found += [f"{module} imports {name}" for name in ours if not name.startswith(TRAINER_MAY_USE)]
    return found


def test_the_demo_model_is_trained_outside_of_the_service():
    assert strangers(MODULES, TRAINER) == []
    assert strangers({"app.demo": {"demo_model.card.text"}}, {})
    assert strangers({}, {"demo_model.ar": {"app.ar.engine.ArEngine"}})


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("app.domain.job", "app.store.jobs"),
        ("app.store.jobs", "app.queues.ar_stream"),
        ("api.jobs", "workers.ar"),
        ("api.jobs", "torch"),
        ("app.service", "app.dit.engine"),
        ("app.ar.engine", "app.dit.engine"),
    ],
)
def test_the_rule_can_fail(module, name):
    assert violations({module: {name}})


def test_the_domain_uses_the_standard_library_alone():
    import sys

    for module, imports in MODULES.items():
        if module.startswith("app.domain"):
            tops = {name.split(".")[0] for name in imports}
            assert tops <= set(sys.stdlib_module_names) | {"app"}, module
