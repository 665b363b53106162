"""`forerun doctor`: what this machine offers to the engine, and what the engine chooses of it.

Owns the report and its two forms, a table and JSON. Measures memory bandwidth; changes nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata
from typing import Any

from forerun import __version__, hardware

REPORTED_PACKAGES = ("grpcio", "protobuf", "numpy", "tokenizers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-bandwidth", action="store_true", help="do not measure memory bandwidth"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report; 0 when the native engine loads, else 1."""
    report = collect(measure=not args.no_bandwidth)
    if args.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print_report(report)
    return 0 if "error" not in report["engine"] else 1


def collect(*, measure: bool) -> dict[str, Any]:
    """The whole report, as JSON values."""
    cpus = hardware.allowed_cpus()
    choice = hardware.default_threads()
    pages = hardware.huge_pages()
    return {
        "versions": {
            "forerun": __version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
            **{name: _version(name) for name in REPORTED_PACKAGES},
        },
        "processor": hardware.processor_name(),
        "cpus": {
            "allowed": hardware.format_cpu_list(cpus),
            "logical": len(cpus),
            "physical_cores": hardware.physical_cores(cpus),
            "quota": hardware.cpu_quota(),
        },
        "threads": {"chosen": choice.count, "reason": choice.reason},
        "numa_nodes": [
            {
                "node": node.index,
                "cpus": hardware.format_cpu_list(node.cpus),
                "memory_bytes": node.memory_bytes,
            }
            for node in hardware.numa_nodes()
        ],
        "huge_pages": {
            "transparent": pages.transparent,
            "reserved": {f"{size} kB": number for size, number in pages.reserved.items()},
        },
        "engine": _engine(choice.count if measure else 0),
    }


def _engine(bandwidth_threads: int) -> dict[str, Any]:
    """Levels of the kernels, and the bandwidth in GB/s that this many threads read (0: none)."""
    try:
        from forerun.engine import isa_report, read_bandwidth

        report: dict[str, Any] = {"isa": isa_report()}
        if bandwidth_threads:
            report["bandwidth_gb_s"] = round(read_bandwidth(bandwidth_threads), 1)
    except (ImportError, RuntimeError, ValueError) as error:
        return {"error": f"the native module does not run here: {error}"}
    return report


def print_report(report: dict[str, Any]) -> None:
    """The report as a table on standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(report):
        table.add_row(name, Text(value))
    Console().print(table)


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    cpus, threads, pages = report["cpus"], report["threads"], report["huge_pages"]
    quota = "none" if cpus["quota"] is None else f"{cpus['quota']:g} CPUs"
    reserved = ", ".join(f"{number} of {size}" for size, number in pages["reserved"].items())
    rows = [
        ("versions", ", ".join(f"{name} {value}" for name, value in report["versions"].items())),
        ("processor", report["processor"]),
        (
            "CPUs",
            f"{cpus['allowed']}: {cpus['logical']} logical, {cpus['physical_cores']} physical",
        ),
        ("CPU quota", quota),
        ("threads", f"{threads['chosen']}: {threads['reason']}"),
        *(
            (
                f"NUMA node {node['node']}",
                f"CPUs {node['cpus'] or 'none'}, {node['memory_bytes'] / 2**30:.1f} GiB",
            )
            for node in report["numa_nodes"]
        ),
        ("huge pages", f"transparent: {pages['transparent']}; reserved: {reserved or 'none'}"),
    ]
    engine = report["engine"]
    if "error" in engine:
        return [*rows, ("engine", engine["error"])]
    rows.append(("kernels", engine["isa"]["selected"]))
    for level in engine["isa"]["levels"]:
        state = "available" if level["available"] else f"not available: {level['reason']}"
        rows.append((f"  {level['name']}", state))
    if "bandwidth_gb_s" in engine:
        rows.append(("memory read", f"{engine['bandwidth_gb_s']} GB/s"))
    return rows


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
