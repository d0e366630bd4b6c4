"""What must not be anywhere: pickles, remote control, containers that run as root, builds with known holes."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from api.application import build
from app.queues.dit_queue import make_celery
from app.queues.transport import check

ROOT = Path(__file__).parent.parent
SOURCES = [path for top in ("app", "api", "workers", "loadtest") for path in (ROOT / top).rglob("*.py")]
#: Modules that run what they read.
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}


def _names(tree: ast.AST) -> set[str]:
    """Modules that are imported, and functions that are called by name or attribute."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            found.add(f"{node.func.value.id}.{node.func.attr}()")
    return found


def _wrong(source: str) -> set[str]:
    return _names(ast.parse(source)) & (UNSAFE | {"eval()", "exec()", "torch.load()", "yaml.load()"})


def test_nothing_reads_pickles_or_runs_text():
    assert len(SOURCES) > 100
    assert {str(path): found for path in SOURCES if (found := _wrong(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize("source", ["import pickle", "from pickle import loads", "torch.load('x')", "eval('1')"])
def test_the_rule_can_fail(source):
    assert _wrong(source)


def test_celery_takes_json_alone_and_no_orders(settings):
    conf = make_celery(settings).conf
    assert conf.accept_content == conf.result_accept_content == ["json"]
    assert {conf.task_serializer, conf.result_serializer, conf.event_serializer} == {"json"}
    assert not conf.worker_enable_remote_control
    assert not conf.worker_send_task_events
    assert conf.result_backend is None
    worker = (ROOT / "workers/dit.py").read_text("utf-8")
    assert "without_mingle=True" in worker
    assert "without_gossip=True" in worker


GOOD = {
    "body": "W1tdLCB7fSwge31d",
    "content-type": "application/json",
    "headers": {"task": "planpaint.paint", "id": "x"},
    "properties": {
        "delivery_tag": "x",
        "delivery_info": {"exchange": "", "routing_key": "dit"},
        "body_encoding": "base64",
    },
}


@pytest.mark.parametrize(
    "change",
    [
        {"content-type": "application/x-python-serialize"},
        {"content-type": None},
        {"headers": {"task": "os.system", "id": "x"}},
        {"headers": {"id": "x"}},
        {"headers": []},
        {"properties": {}},
        {"properties": {"delivery_tag": "x"}},
        {"properties": {"delivery_tag": "x", "delivery_info": {"exchange": ""}}},
        {"properties": "x"},
        {"body": "bm90IGpzb24="},
        {"body": "Nw=="},
        {"body": "W1sxXSwge30sIHt9XQ=="},
        {"body": 7},
        {"body": None},
    ],
)
def test_a_message_that_is_no_task_in_json_is_refused(change):
    check(GOOD)
    with pytest.raises(ValueError, match="its "):
        check(GOOD | change)


@pytest.mark.parametrize("message", [None, 7, "x", [1], {}])
def test_what_is_no_message_at_all_is_refused(message):
    with pytest.raises(ValueError, match=r"content type|not an object"):
        check(message)


# --- the audit


@pytest.fixture
def audit():
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci/audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_known_vulnerability_fails_the_audit_and_silence_is_said(audit, capsys):
    hole = {"id": "CVE-0000-1", "fix_versions": ["2"]}
    assert (
        audit.judge([{"name": "a", "version": "1", "vulns": [hole]}, {"name": "b", "version": "1", "vulns": []}]) == 1
    )
    assert "a 1: CVE-0000-1, fixed in 2" in capsys.readouterr().out
    assert audit.judge([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "x"}]) == 0
    assert "1 could not be asked" in capsys.readouterr().out
    assert audit.judge([{"name": "a", "skip_reason": "x"}]) == 0
    assert "NOT DONE" in capsys.readouterr().out


def test_an_audit_tool_that_is_not_there_is_a_notice(audit, tmp_path, capsys):
    lock = tmp_path / "lock"
    lock.write_text("a==1 \\\n    --hash=x\n")
    assert audit.main("/bin/false", str(lock)) == 0
    assert "NOT DONE" in capsys.readouterr().out
    lock.write_text("# nothing\n")
    assert audit.main("/bin/false", str(lock)) == 1


def test_ci_audits():
    assert re.search(r"^make audit$", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)


# --- other callers' jobs


def test_the_walk_over_other_callers_jobs_leaves_no_described_path_out(client, settings):
    """tests/api/test_keys.py asks every route of the application; this is about what the description has."""
    app = build(settings.model_copy(update={"api_keys": "off"}))
    asked = {
        (method, re.sub(r"<(?:int:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in rule.methods
    }
    described = app.test_client().get("/openapi.json").get_json()["paths"]
    missing = [
        (method, path) for path, item in described.items() for method in item if (method.upper(), path) not in asked
    ]
    assert missing == []
    assert sum("{job_id}" in path for path in described) >= 5
