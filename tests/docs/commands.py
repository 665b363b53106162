"""What a command of the docs does when a test runs it: `python -m tests.docs.commands NAME ...`.

Bash runs the blocks; each name in COMMANDS is a stub on its PATH that runs this module, and a name
that is neither here nor in REAL is not found. What cannot run on every machine is checked as far as
it can be: files and services that are named exist, and flags are those of the program, where it is
installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import which
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"

# Programs that blocks use as they are.
REAL = ("lscpu", "openssl")

# Of forerun, what runs for real. The others take long, or what only a machine of one's own has;
# their command lines are parsed, and these tests run them.
RUN = ("serve-verify", "serve-draft", "generate", "health", "doctor", "top")
RUN_ELSEWHERE = {
    "demo": "tests/unit/cli/test_demo.py",
    "bench": "tests/unit/cli/test_bench.py",
    "train-draft": "tests/unit/cli/test_train_draft.py",
    "convert-head": "tests/unit/training/test_convert.py",
}
# Scripts of the repository, which must be programs that Bash can read, and who runs them.
SCRIPTS = {
    "benchmarks/amx_silicon.sh": "tests/native/test_amx_scripts.py; a machine with AMX",
    "deploy/smoke.sh": ".ci/run, where Docker is",
}


def forerun(arguments: list[str]) -> int:
    if arguments[0] == "top":  # shows itself on a terminal alone
        os.environ.update({"TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"})
    if arguments[0] in RUN:
        execute([sys.executable, "-m", "forerun.cli", *arguments])
    from forerun.cli.parser import build_parser

    build_parser(arguments).parse_args(arguments)
    return 0


def script(arguments: list[str]) -> int:
    path = ROOT / arguments[0]
    if not os.access(path, os.X_OK):
        refuse(f"{path} is not a program")
    return subprocess.run(["/bin/bash", "-n", path]).returncode


def make(arguments: list[str]) -> int:
    """Make itself finds the targets and names what they would run."""
    return output(["make", "--dry-run", "-C", str(ROOT), *arguments])[0]


def pip(arguments: list[str]) -> int:
    """Files that are named exist, and packages are pinned or extras of forerun."""
    action, *rest = arguments
    if action != "install":
        refuse(f"pip {action} is not checked here")
    pinned = {line.partition("==")[0] for line in (ROOT / "requirements.lock").open()}
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    while rest:
        word = rest.pop(0)
        if word == "--constraint":
            require_file(rest.pop(0))
        elif found := re.fullmatch(r"\.(?:\[(\w+)\])?", word):
            if found[1] not in (None, *extras):
                refuse(f"forerun has no extra {found[1]!r}")
        elif word not in pinned:
            refuse(f"{word!r} is neither pinned nor a flag that is known here")
    return 0


def apt_get(arguments: list[str]) -> int:
    """Packages are those that the image, continuous integration or an error message name."""
    action, *packages = arguments
    if action == "update":
        return 0
    sources = ("deploy/Dockerfile", ".ci/run", "scripts/check_prerequisites.py")
    text = "\n".join((ROOT / source).read_text() for source in sources).replace("\\\n", " ")
    named = " ".join(re.findall(r"apt(?:-get)? install([^\n&|>\"]*)", text)).split()
    # make cannot tell that it is missing, and numactl shows a person what the image binds to.
    unknown = set(packages) - {*named, "make", "numactl"}
    if action != "install" or unknown:
        refuse(f"apt-get {action} {' '.join(sorted(unknown))} is not known here")
    return 0


def sudo(arguments: list[str]) -> NoReturn:
    execute(arguments)


def cat(arguments: list[str]) -> int:
    """Prints files; the kernel's need not be there, since containers hide some."""
    for path in map(Path, arguments):
        if path.is_file() or not path.is_relative_to("/sys"):
            print(path.read_text(), end="")
    if not arguments:
        print(sys.stdin.read(), end="")
    return 0


def tee(arguments: list[str]) -> int:
    """Writes nothing: what is written to is the kernel's."""
    sys.stdin.read()
    if not all(path.startswith("/sys/kernel/mm/transparent_hugepage/") for path in arguments):
        refuse(f"tee {' '.join(arguments)} is not known here")
    return 0


def numactl(arguments: list[str]) -> int:
    """Runs the command on whatever node: the test's machine may have one alone."""
    if arguments == ["--hardware"]:
        return 0
    while arguments and re.fullmatch(r"--(cpunodebind|membind)=\d+", arguments[0]):
        arguments = arguments[1:]
    execute(arguments)


def docker(arguments: list[str]) -> int:
    if arguments[0] == "compose":
        return compose(arguments[1:])
    require_flags(["docker", arguments[0]], arguments[1:])
    return 0


def compose(arguments: list[str]) -> int:
    """Has Compose read the files. `up` tells the sandbox what to start in the containers' place."""
    options, (action, *rest) = split_options(arguments, with_value=("-f", "--env-file"))
    if options:
        services = compose_services(options)
    elif action == "version":
        services = {}
    else:
        refuse("the compose files are in deploy: name them with -f")
    command: list[str] = []
    if action in ("exec", "run"):
        flags, (name, *command) = split_options(rest)
        names = [name]
        if action == "run":  # the image's entry point
            command = ["forerun", *command]
    else:
        flags = [word for word in rest if word.startswith("-")]
        names = [word for word in rest if not word.startswith("-")]
    require_flags(["docker", "compose", action], flags)
    if unknown := set(names) - set(services):
        refuse(f"the compose files have no service {sorted(unknown)}")
    if command:
        execute(command)
    if action == "up":
        Path(os.environ["DOCS_SERVICES"]).write_text(json.dumps(services))
    return 0


def compose_services(options: list[str]) -> dict[str, Any]:
    """The services as Compose resolves them; as they are written where it is not installed."""
    files = [Path(value) for flag, value in pairwise(options) if flag == "-f"]
    if has_compose():
        code, text = output(["docker", "compose", *options, "config", "--format", "json"])
        if code:
            refuse(text)
        services: dict[str, Any] = json.loads(text)["services"]
        return services
    import yaml

    found: dict[str, Any] = {}
    for file in files:
        for name, service in yaml.safe_load(file.read_text())["services"].items():
            found[name] = found.get(name, {}) | service
    for service in found.values():
        if isinstance(service.get("command"), str):
            service["command"] = service["command"].split()
    return found


def has_compose() -> bool:
    return os.environ["DOCS_COMPOSE"] == "yes"


def kubectl(arguments: list[str]) -> int:
    action, *rest = arguments
    if action != "apply" or rest[:1] != ["-k"]:
        refuse(f"kubectl {action} is not checked here")
    return kustomization(Path(rest[1]))


def kustomize(arguments: list[str]) -> int:
    """`edit set image NAME=NEW`: the manifests of this folder use an image of that name."""
    *command, change = arguments
    if command != ["edit", "set", "image"]:
        refuse(f"kustomize {' '.join(command)} is not checked here")
    image = change.partition("=")[0]
    if not re.search(
        rf"image: {re.escape(image)}\b", (KUBERNETES / "base" / "verify.yaml").read_text()
    ):
        refuse(f"the manifests use no image {image!r}")
    return kustomization(Path())


def kustomization(folder: Path) -> int:
    require_file(folder / "kustomization.yaml")
    if not outer("kubectl"):
        return 0
    code, text = output(["kubectl", "kustomize", str(folder)])
    return code if "kind: Deployment" in text else 1


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "forerun": forerun,
    "script": script,
    "make": make,
    "pip": pip,
    "apt-get": apt_get,
    "sudo": sudo,
    "cat": cat,
    "tee": tee,
    "numactl": numactl,
    "docker": docker,
    "kubectl": kubectl,
    "kustomize": kustomize,
}


def split_options(
    arguments: list[str], with_value: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The options before the first word that is none, and the rest."""
    end = 0
    while end < len(arguments) and arguments[end].startswith("-"):
        end += 2 if arguments[end] in with_value else 1
    return arguments[:end], arguments[end:]


def require_flags(command: list[str], arguments: list[str]) -> None:
    """Flags must be in the program's own help, where it is installed."""
    if not arguments or not outer(command[0]) or (command[1] == "compose" and not has_compose()):
        return
    code, text = output([*command, "--help"])
    if code:
        refuse(f"{' '.join(command)}: {text}")
    for word in arguments:
        flag = word.partition("=")[0]
        if flag.startswith("-") and not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text):
            refuse(f"{' '.join(command)} has no flag {flag}")


def require_file(path: str | Path) -> None:
    if not Path(path).exists():
        refuse(f"{path} does not exist")


def outer(program: str) -> str | None:
    """Where a program is outside of the sandbox."""
    return which(program, path=os.environ["DOCS_OUTER_PATH"])


def output(command: list[str]) -> tuple[int, str]:
    """The exit code of a program from outside of the sandbox, and what it printed."""
    environment = os.environ | {"PATH": os.environ["DOCS_OUTER_PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    return done.returncode, done.stdout


def execute(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    # Who runs tests in the background may have Ctrl-C's signal ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)


def refuse(why: str) -> NoReturn:
    raise SystemExit(f"docs: {why}")


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    sys.exit(COMMANDS[name](rest))
