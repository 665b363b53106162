"""What the compose files say, as Compose itself reads them; deploy/smoke.sh runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
ALONE: tuple[str, ...] = ()


def has_compose() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has_compose(), reason="Docker Compose v2 is not installed")


def compose(*overrides: str, **environment: str) -> dict[str, Any]:
    """The files as Compose resolves them."""
    names = ["compose.yaml", *(f"compose.{name}.yaml" for name in overrides)]
    files = [part for name in names for part in ("-f", str(DEPLOY / name))]
    done = subprocess.run(
        ["docker", "compose", *files, "config", "--format", "json"],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


@pytest.mark.parametrize("overrides", [ALONE, ("two-cores",), ("one-socket",)])
def test_only_the_port_for_clients_leaves_the_machine(overrides: tuple[str, ...]) -> None:
    services = compose(*overrides, VERIFY_CPUS="0", DRAFT_CPUS="1")
    outside = [
        (name, port["target"])
        for name, service in services.items()
        for port in service.get("ports", ())
        if port.get("host_ip") != "127.0.0.1"
    ]
    assert outside == [("draft", 50051)]
    assert list(services["verify"]["networks"]) == ["inside"]


def test_each_server_has_a_socket() -> None:
    services = compose(VERIFY_CPUS="0-31", DRAFT_CPUS="32-63")
    nodes = {
        name: services[name]["environment"]["FORERUN_NUMA_NODE"] for name in ("verify", "draft")
    }
    assert nodes == {"verify": "0", "draft": "1"}
    assert services["verify"]["cpuset"] == "0-31"
    assert services["draft"]["cpuset"] == "32-63"


def test_one_socket_asks_for_processors_and_two_cores_need_nothing() -> None:
    with pytest.raises(AssertionError, match=r"processors of the (verify|draft) server"):
        compose("one-socket")
    services = compose("one-socket", VERIFY_CPUS="0-11", DRAFT_CPUS="12-15")
    assert services["draft"]["environment"]["FORERUN_NUMA_NODE"] == "0"
    services = compose("two-cores")
    assert services["draft"]["environment"]["FORERUN_NUMA_NODE"] == ""
    assert services["verify"]["cpuset"] == "0,1"


def test_containers_may_do_little() -> None:
    services = compose()
    for name in ("model", "verify", "draft"):
        service = services[name]
        assert (service["cap_drop"], service["cap_add"]) == (["ALL"], ["SYS_NICE"])
        assert service["read_only"] and service["security_opt"] == ["no-new-privileges:true"]


def test_names_in_deployments_are_settings() -> None:
    """A misspelt one would keep a server from starting."""
    from draft_server.config import DraftConfig
    from verify_server.config import VerifyConfig

    services = compose(FORERUN_MODEL="/models/m", DRAFT_METHOD="ngram")
    for name, config in (("verify", VerifyConfig), ("draft", DraftConfig)):
        prefix = config.environment_prefix
        names = [key for key in services[name]["environment"] if key.startswith(prefix)]
        assert names
        for key in names:
            assert hasattr(config, key.removeprefix(prefix).lower()), key


def test_the_smoke_test_depends_on_no_settings_of_this_machine() -> None:
    """deploy/.env is read by every command of Compose, unless the environment has the name."""
    files = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "compose.two-cores.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", files))
    lines = re.findall(r"^export (.*)$", (DEPLOY / "smoke.sh").read_text(), re.M)
    given = set(re.findall(r"(\w+)=", " ".join(lines)))
    elsewhere = {"VERIFY_NODE", "DRAFT_NODE", "GRAFANA_PORT"}  # of no node, and not started
    assert asked - elsewhere <= given
