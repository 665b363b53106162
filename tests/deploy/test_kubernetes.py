"""The manifests as kustomize builds them, against the published schemas and against each other."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from draft_server.config import DraftConfig
from verify_server.config import VerifyConfig

ROOT = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
BUILT = ("base", "overlays/two-sockets", "overlays/scaled")
SCHEMAS = "1.32"  # the oldest version that is looked after at the time of writing
Object = dict[str, Any]

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, which has kustomize, is not installed"
)


@cache
def build(folder: str) -> list[Object]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(folder: str, kind: str) -> dict[str, Object]:
    return {o["metadata"]["name"]: o for o in build(folder) if o["kind"] == kind}


def pods(folder: str) -> dict[str, Object]:
    return {name: o["spec"]["template"] for name, o in of_kind(folder, "Deployment").items()}


@pytest.mark.parametrize("folder", BUILT)
def test_objects_keep_to_the_published_schemas(folder: str) -> None:
    for built in build(folder):
        if not built["apiVersion"].startswith("monitoring.coreos.com/"):  # not of Kubernetes itself
            kubernetes_validate.validate(built, SCHEMAS, strict=True)


def test_the_schemas_would_notice_a_misspelt_field() -> None:
    (built, *_) = of_kind("base", "Deployment").values()
    built = yaml.safe_load(yaml.safe_dump(built))
    built["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(built, SCHEMAS, strict=True)


@pytest.mark.parametrize("folder", BUILT)
def test_pods_are_guaranteed_whole_cores(folder: str) -> None:
    """Every container asks for as much as it may use, and the kubelet pins whole cores alone."""
    for template in pods(folder).values():
        spec = template["spec"]
        for container in (*spec["initContainers"], *spec["containers"]):
            asked = container["resources"]
            assert asked["requests"] == asked["limits"]
            assert set(asked["limits"]) == {"cpu", "memory"}
            assert int(asked["limits"]["cpu"]) > 0


@pytest.mark.parametrize("folder", BUILT)
def test_selectors_find_pods_and_ports_exist(folder: str) -> None:
    templates = pods(folder).values()

    def selected(labels: Object) -> list[Object]:
        return [t for t in templates if labels.items() <= t["metadata"]["labels"].items()]

    for service in of_kind(folder, "Service").values():
        (template,) = selected(service["spec"]["selector"])
        names = {p["name"] for c in template["spec"]["containers"] for p in c["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for budget in of_kind(folder, "PodDisruptionBudget").values():
        assert len(selected(budget["spec"]["selector"]["matchLabels"])) == 1
    for deployment in of_kind(folder, "Deployment").values():
        assert len(selected(deployment["spec"]["selector"]["matchLabels"])) == 1


@pytest.mark.parametrize("folder", BUILT)
def test_flags_and_settings_are_those_of_the_servers(folder: str) -> None:
    services, maps = of_kind(folder, "Service"), of_kind(folder, "ConfigMap")
    for name, template in pods(folder).items():
        config = VerifyConfig if name == "forerun-verify" else DraftConfig
        (container,) = template["spec"]["containers"]
        command, *flags = container["args"]
        assert command == name.replace("forerun-", "serve-")
        given = dict(zip(flags[::2], flags[1::2], strict=True))
        assert all(hasattr(config, flag.removeprefix("--").replace("-", "_")) for flag in given)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert given["--listen"] == f"0.0.0.0:{ports['grpc']}"
        assert int(given["--metrics-port"]) == ports["metrics"]
        assert container["startupProbe"]["grpc"]["port"] == ports["grpc"]
        assert container["readinessProbe"]["grpc"]["port"] == ports["grpc"]
        if "--verifier" in given:
            service, _, port = given["--verifier"].partition(":")
            assert int(port) in {p["port"] for p in services[service]["spec"]["ports"]}
        (source,) = container["envFrom"]
        names = [
            *maps[source["configMapRef"]["name"]]["data"],
            *(e["name"] for e in container["env"]),
        ]
        for key in names:
            assert key.startswith(config.environment_prefix)
            assert hasattr(config, key.removeprefix(config.environment_prefix).lower()), key
        grace = template["spec"]["terminationGracePeriodSeconds"]
        settings = maps[source["configMapRef"]["name"]]["data"]
        assert grace > int(settings[f"{config.environment_prefix}GRACE_S"])


def test_clients_and_drafts_can_balance_by_themselves() -> None:
    services = of_kind("base", "Service")
    headless = {name for name, s in services.items() if s["spec"].get("clusterIP") == "None"}
    assert headless == {"forerun-verify", "forerun-draft"}
    assert set(services) - headless == {"forerun"}


def test_both_servers_scale_and_monitors_find_the_metrics() -> None:
    deployments = of_kind("overlays/scaled", "Deployment")
    scalers = of_kind("overlays/scaled", "HorizontalPodAutoscaler")
    assert scalers.keys() == deployments.keys()
    for scaler in scalers.values():
        target = deployments[scaler["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"], "the autoscaler's number would be overwritten"
    services = of_kind("overlays/scaled", "Service").values()
    for monitor in of_kind("overlays/scaled", "ServiceMonitor").values():
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [s for s in services if wanted <= s["metadata"]["labels"].items()]
        ports = {port["name"] for service in found for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_the_operator_gets_the_alerts_of_compose() -> None:
    (rule,) = of_kind("overlays/scaled", "PrometheusRule").values()
    rules = ROOT.parent / "prometheus" / "rules.yml"
    assert rule["spec"] == yaml.safe_load(rules.read_text("utf-8"))
