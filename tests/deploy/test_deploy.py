"""The files in ``deploy/``: what they name exists, and the tools that are here find no fault."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from fairlead import Fairlead
from fairlead.cli.main import cli
from fairlead.telemetry.metrics_table import METRICS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "fairlead.json"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))

METRIC = re.compile(r"\b(?:fairlead|taskqueue)_[a-z0-9_]+\b")
RECORDED = re.compile(r"\bfairlead:[a-z0-9_:]+\b")


def shown(metric: Any) -> Iterator[str]:
    """The names under which a metric is scraped."""
    yield metric.name
    if metric.kind == "histogram":
        yield from (f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))


NAMES = {name: metric for metric in METRICS for name in shown(metric)}


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def dashboard_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def rules() -> list[dict[str, Any]]:
    return [rule for group in documents(RULES)[0]["groups"] for rule in group["rules"]]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} on this machine")
    return found


def run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


# -- Prometheus and Grafana --------------------------------------------------------------------


def test_every_metric_of_rules_and_dashboard_exists() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    queries = [*(rule["expr"] for rule in rules()), *dashboard_queries()]
    text = DASHBOARD.read_text() + (RULES.parent / "alerts_test.yml").read_text()
    for query in (*queries, text):
        assert set(METRIC.findall(query)) - {"fairlead_dashboard"} <= NAMES.keys(), query
        assert set(RECORDED.findall(query)) <= recorded, query


def test_every_label_that_a_query_selects_by_exists() -> None:
    for query in (*(rule["expr"] for rule in rules()), *dashboard_queries()):
        for name, selectors in re.findall(r"\b([a-z_]+)\{([^}]*)\}", query):
            labels = set(re.findall(r"([a-z_]+)\s*[=!]", selectors))
            assert labels <= {*NAMES[name].labels, "le"}, query


def test_alerts_have_a_severity_and_say_what_is_wrong() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) > 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"]["summary"].endswith(".")
    assert len({alert["alert"] for alert in alerts}) == len(alerts)


def test_promtool_finds_no_fault_with_the_rules() -> None:
    promtool = tool("promtool")
    run(promtool, "check", "rules", RULES)
    run(promtool, "test", "rules", "alerts_test.yml", cwd=RULES.parent)
    run(promtool, "check", "config", "--syntax-only", RULES.parent / "prometheus.yml")


def test_promtool_can_read_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    promtool = tool("promtool")
    filled = [
        query.replace("$__rate_interval", "5m").replace("$queue", ".*")
        for query in dashboard_queries()
    ]
    made = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(filled)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": made}]}))
    run(promtool, "check", "rules", path)


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


# -- commands ----------------------------------------------------------------------------------


def settings() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "fairlead.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def started_by_units() -> Iterator[tuple[str, list[str]]]:
    for unit in UNITS:
        text = unit.read_text().replace("\\\n", " ")
        (command,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
        filled = re.sub(r"\$\{(\w+)\}", lambda found: settings()[found[1]], command)
        yield unit.name, shlex.split(filled)[1:]


def started_by_containers() -> Iterator[tuple[str, list[str]]]:
    compose = documents(DEPLOY / "docker" / "compose.yaml")[0]
    yield "compose migrate", compose["services"]["migrate"]["command"]
    for name in ("worker", "api", "manager"):
        yield f"compose {name}", compose["services"][name]["command"]
        yield f"compose {name}", probe_of(compose["services"][name]["healthcheck"]["test"])
    for file in ("worker.yaml", "api.yaml", "manager.yaml"):
        deployment = documents(DEPLOY / "kubernetes" / file)[0]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        yield file, [part.replace("$(POD_IP)", "10.0.0.1") for part in container["args"]]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            command = container.get(probe, {}).get("exec", {}).get("command", ["none"])
            if command[0] == "fairlead":
                yield f"{file} {probe}", command[1:]
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    yield "Dockerfile", json.loads(command)


def probe_of(test: list[str]) -> list[str]:
    return test[2:] if test[1] == "fairlead" else ["check"]


COMMANDS = [*started_by_units(), *started_by_containers()]


@pytest.mark.parametrize(("where", "arguments"), COMMANDS, ids=lambda each: str(each)[:30])
def test_every_command_can_be_read(where: str, arguments: list[str]) -> None:
    name, *rest = arguments
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"{where}: there is no fairlead {name}"
    command.make_context(name, rest)


def test_a_worker_has_longer_to_stop_than_its_tasks() -> None:
    worker = documents(DEPLOY / "kubernetes" / "worker.yaml")[0]["spec"]["template"]["spec"]
    (grace,) = [part for part in worker["containers"][0]["args"] if part.startswith("--grace=")]
    assert worker["terminationGracePeriodSeconds"] >= int(grace.removeprefix("--grace=")) + 10
    text = (DEPLOY / "systemd" / "fairlead-worker.service").read_text()
    grace_of_unit = int(re.findall(r"--grace (\d+)", text)[0])
    assert int(re.findall(r"TimeoutStopSec=(\d+)", text)[0]) >= grace_of_unit + 10


# -- systemd, containers, Kubernetes -----------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_no_fault_with_the_units(unit: Path, tmp_path: Path) -> None:
    systemd = tool("systemd-analyze")
    program = str(Path(sys.executable).with_name("fairlead"))
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/fairlead/venv/bin/fairlead", program))
    done = subprocess.run([systemd, "verify", copy], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_the_image_takes_what_there_is_and_runs_as_nobody_special() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _target = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    last_stage = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last_stage, re.MULTILINE)
    extras = re.findall(r"\.\[([a-z,]+)\]", text)[0].split(",")
    assert {"server", "otel", "postgres"} <= set(extras)


def test_the_app_of_the_image_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "memory://")
    app = runpy.run_path(str(DEPLOY / "docker" / "tasks.py"))["app"]
    assert isinstance(app, Fairlead)
    assert app.registered("greet") is not None


def test_compose_starts_what_it_names() -> None:
    compose = documents(DEPLOY / "docker" / "compose.yaml")[0]
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("../"):
                assert (DEPLOY / "docker" / source).resolve().exists(), volume
            elif not source.startswith("."):
                assert source in compose["volumes"], volume
    targets = documents(RULES.parent / "prometheus.yml")[0]["scrape_configs"]
    named = {"api", "worker"}
    assert named <= services.keys()
    assert all(any(name in json.dumps(each) for name in named) for each in targets)


def test_manifests_fit_together() -> None:
    found = [
        document
        for file in ("worker.yaml", "api.yaml", "manager.yaml", "keda.yaml")
        for document in documents(DEPLOY / "kubernetes" / file)
    ]
    deployments = {each["metadata"]["name"]: each for each in found if each["kind"] == "Deployment"}
    for each in deployments.values():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"] == labels
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {"livenessProbe", "readinessProbe"} <= container.keys()
    (service,) = [each for each in found if each["kind"] == "Service"]
    api = deployments["fairlead-api"]["spec"]["template"]
    assert service["spec"]["selector"] == api["metadata"]["labels"]
    (scaled,) = [each for each in found if each["kind"] == "ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] in deployments
    kustomization = documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]
    assert all((DEPLOY / "kubernetes" / name).exists() for name in kustomization["resources"])


def test_keda_asks_for_something_that_the_api_answers() -> None:
    from fairlead.api.route_table import BASE, ROUTES

    (scaled,) = [
        each
        for each in documents(DEPLOY / "kubernetes" / "keda.yaml")
        if each["kind"] == "ScaledObject"
    ]
    (trigger,) = scaled["spec"]["triggers"]
    host, _, rest = trigger["metadata"]["url"].removeprefix("http://").partition("/")
    path, _, query = rest.partition("?")
    assert host == "fairlead-api:8800"
    routes = {BASE + route.path: route for route in ROUTES if route.method == "GET"}
    if f"/{path}" not in routes:
        pytest.skip("this build of the API has no signal for autoscalers")
    route = routes[f"/{path}"]
    assert route.query is not None
    pairs = dict(pair.split("=") for pair in query.split("&"))
    msgspec.convert(pairs, route.query, strict=False)
    assert route.answer is not None
    fields = [field.name for field in msgspec.structs.fields(route.answer)]
    assert trigger["metadata"]["valueLocation"] in fields


# -- what is said of them ----------------------------------------------------------------------


def test_every_file_says_whether_it_was_run_or_only_checked() -> None:
    for path in sorted(DEPLOY.rglob("*")):
        if path.suffix in (".yml", ".yaml", ".service") or path.name == "Dockerfile":
            if path.name == "alerts_test.yml":
                continue  # it is run by promtool, or it is nothing
            assert re.search(r"[Ll]inted|[Cc]hecked", path.read_text()[:200]), path
    assert "not opened in Grafana" in json.loads(DASHBOARD.read_text())["description"]


def test_the_page_names_every_file() -> None:
    page = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".md":
            assert path.name in page, path
