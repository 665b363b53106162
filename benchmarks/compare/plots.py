"""Draws a comparison: `plots.py REPORT.json PICTURE.svg`. Runs in an environment of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "forerun"  # the same picture for the same figures

from matplotlib import pyplot  # noqa: E402

OWN, OTHER = "#2a6f97", "#adb5bd"


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    cases = report["cases"]
    figure, panels = pyplot.subplots(1, len(cases), figsize=(4.2 * len(cases), 3), sharey=True)
    peers = list(reversed(report["peers"]))
    for case, panel in zip(cases, panels, strict=True):
        rates = [peer["tokens_per_s"][case] or 0 for peer in peers]
        colours = [OWN if peer["name"].startswith("forerun") else OTHER for peer in peers]
        bars = panel.barh([peer["name"] for peer in peers], rates, color=colours)
        labels = [f"{rate:.0f}" if rate else "failed" for rate in rates]
        panel.bar_label(bars, labels, padding=3)
        panel.set_title(case, fontsize=10)
        panel.set_xlim(0, 1.2 * max([*rates, 1]))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_xlabel("tokens/s of all streams")
    figure.suptitle(f"{report['machine']}, {report['threads']} threads, {report['isa']}")
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
