# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The picture of README.md: bars, and under them curves over sizes and a heat map of ratios.

figures.py take BENCH.JSON FIGURES.TSV [COMMIT]: the medians of a run of run.sh, with date and machine.
figures.py draw FIGURES.TSV FIGURES.SVG: the picture of them. The same file gives the same picture."""
import datetime
import json
import os
import re
import statistics
import sys

import bars
import charts
import table
from charts import text

LESS, MORE = "shorter is better", "longer is better"
SHM, UCX, UCX_CMA = "shm", "UCX posix", "UCX posix+cma"
# group, what, unit, key, (name of a bar, peer of the samples)...
ROWS = [
    (LESS, "8 B message, half round trip", "us", "half_8", ("erdma", "erdma"), (UCX, UCX), (SHM, SHM)),
    (LESS, "4 KiB message, half round trip", "us", "half_4096", ("erdma", "erdma"), (SHM, SHM)),
    (LESS, "8 B fi_write", "us", "write_8", ("erdma", "erdma"), (SHM, SHM)),
    (LESS, "8 B fi_read", "us", "read_8", ("erdma", "erdma"), (SHM, SHM)),
    (LESS, "8 B fetch-add", "us", "fetch_add", ("erdma", "erdma"), (SHM, SHM)),
    (LESS, "Open MPI, 8 B, half round trip", "us", "half_8",
     ("erdma", "Open MPI erdma"), ("vader", "Open MPI vader")),
    (MORE, "8 B messages per second", "M/s", "stream_8", ("erdma", "erdma"), (UCX, UCX)),
    (MORE, "64 KiB messages", "GB/s", "half_65536", ("erdma", "erdma"), (UCX, UCX), (UCX_CMA, UCX_CMA)),
    (MORE, "1 MiB messages", "GB/s", "half_1048576", ("erdma", "erdma"), (UCX, UCX)),
    (MORE, "4 MiB messages", "GB/s", "half_4194304", ("erdma", "erdma"), (UCX, UCX)),
    (MORE, "1 MiB, CMA refused", "GB/s", "half_1048576",
     ("erdma", "erdma, CMA refused"), ("shm with CMA", SHM)),
    (MORE, "1 MiB fi_write", "GB/s", "write_1048576", ("erdma", "erdma"), (SHM, SHM)),
    (MORE, "1 MiB fi_read", "GB/s", "read_1048576", ("erdma", "erdma"), (SHM, SHM)),
]
WIDTH, LABEL, ROOM = 760, 220, 150  # of the picture, and of the space left and right of the bars
BAR, GAP = 14, 10
CHART, HEAT = "curve: ", "ratio: "  # groups of the file that are not bars
# title, key, peers, whether the value is a rate of messages, shown as GB/s
CURVES = [
    ("half round trip", "half", ["erdma", *bars.OTHERS], False),
    ("stream, 64 in flight", "stream", ["erdma", *bars.OTHERS], True),
    ("stream both ways", "both", ["erdma", *bars.OTHERS], True),
    ("half round trip of Open MPI", "half", [bars.OPEN_MPI, "Open MPI vader"], False),
]
COLOURS = {"erdma": "#1f6feb"}
OTHER = "#9aa4b1"


def machine():
    model, cores = "unknown processor", os.cpu_count()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{model}, {cores} processors, Linux {os.uname().release.split('-')[0]}"


def shown(value):
    return f"{value:.3g}"


def curve_lines(samples, place):
    """Lines of the file, from {(peer, key): {round: value}}."""
    lines = []
    for title, prefix, peers, rate in CURVES:
        for peer in peers:
            for size in bars.sizes([key for name, key in samples if name == peer], prefix):
                value = statistics.median(samples[peer, f"{prefix}_{size}"].values())
                lines.append(f"{CHART}{title}, {place}\t{size}\t{'GB/s' if rate else 'us'}\t{peer}\t"
                             f"{shown(value * size / 1e3 if rate else value)}")
    return lines


def heat_lines(rows):
    """From the rows of the table: time to the best peer's, so that a rate is turned over."""
    lines = []
    for row in rows:
        if not row.get("best") or not row["ratio"]:
            continue
        name, column = row["group"], row["name"]
        match = re.fullmatch(r"(?:(.*?),? )?(\d+ (?:B|KiB|MiB))(?:, (.*))?", column)
        words = [name, *(word for word in ((match[1], match[3]) if match else (column,)) if word)]
        name, column = ", ".join(words), match[2] if match else "-"  # "4 ranks, bcast" and "64 KiB"
        ratio = row["ratio"] if row["unit"] == "us" else 1 / row["ratio"]
        lines.append(f"{HEAT}{row['place']}\t{name}\tratio\t{column}\t{shown(ratio)}")
    return lines


def take(path, to, commit="unknown"):
    with open(path, encoding="utf-8") as source:
        run = json.load(source)
    places = table.places({(s["peer"], s["key"]): {int(turn): value for turn, value in s["rounds"].items()}
                           for s in run["samples"]})
    samples = {at: list(rounds.values()) for at, rounds in next(iter(places.values())).items()}
    lines = ["# The figures of README.md: medians, within one host.",
             f"# date: {datetime.date.today()}", f"# machine: {machine()}", f"# commit: {commit}",
             f"# run: {run['caption']}", f"# bars: {next(iter(places))}", "# group\twhat\tunit\tbar\tvalue"]
    for group, what, unit, key, *named in ROWS:
        for bar, peer in named:
            if not samples.get((peer, key)):
                continue
            value = statistics.median(samples[peer, key])
            if unit == "GB/s":  # bytes per us are MB/s
                value = int(key.rsplit("_", 1)[1]) / value / 1e3
            lines.append(f"{group}\t{what}\t{unit}\t{bar}\t{shown(value)}")
    for place, some in places.items():
        lines += curve_lines(some, place)
    lines += heat_lines(run["rows"])
    with open(to, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


def read(path):
    """What the comments say, and {(group, what, unit): [(bar, value)]} in the order of the file."""
    about, rows = {}, {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#"):
                name, _, value = line[1:].partition(":")
                about[name.strip()] = value.strip()
                continue
            group, what, unit, bar, value = line.rstrip("\n").split("\t")
            rows.setdefault((group, what, unit), []).append((bar, value))
    return about, rows


def draw_row(y, what, unit, values):
    most = max(float(value) for _, value in values)
    out = [text(LABEL - 10, y + len(values) * BAR / 2 + 4, what, text_anchor="end")]
    for bar, value in values:
        width = max(1, round((WIDTH - LABEL - ROOM) * float(value) / most))
        colour = COLOURS.get(bar, OTHER)
        out.append(f'<rect x="{LABEL}" y="{y}" width="{width}" height="{BAR - 2}" fill="{colour}"/>')
        out.append(text(LABEL + width + 6, y + BAR - 4, f"{value} {unit}  {bar}", font_size=11))
        y += BAR
    return out, y


def draw_curves(y, rows):
    """What follows the bars: a chart or a heat map for each of the other groups."""
    groups, out = {}, []
    for (group, what, unit), values in rows.items():
        if group.startswith((CHART, HEAT)):
            groups.setdefault((group, unit), []).extend((what, name, float(value)) for name, value in values)
    begun = 0  # height of a chart that another one may stand beside
    for (group, unit), points in groups.items():
        if group.startswith(CHART):
            series = {}
            for size, name, value in points:
                series.setdefault(name, []).append((int(size), value))
            more, height = charts.chart(y, group[len(CHART):], unit, series, charts.WIDTH if begun else 0)
            out += more
            y += max(begun, height) if begun else 0
            begun = 0 if begun else height
            continue
        y += begun
        begun = 0
        title = f"Time to the best peer's, {group[len(HEAT):]} (green: erdma is faster)"
        more, height = charts.heat(y, title, {(name, column): value for name, column, value in points})
        out += more
        y += height
    return out, y + begun


def draw(path, to):
    about, rows = read(path)
    out, y, last = [], 10, None
    for (group, what, unit), bars_of in rows.items():
        if group.startswith((CHART, HEAT)):
            continue
        if group != last:
            out.append(text(LABEL, y + 14, group, font_weight="bold"))
            y += 26
            last = group
        row, y = draw_row(y, what, unit, bars_of)
        out += row
        y += GAP
    more, y = draw_curves(y, rows)
    out += more
    where = f"; bars of {about['bars']}" if "bars" in about else ""
    out.append(text(10, y + 10, f"Two processes of one host; {about.get('date')}; {about.get('machine')}{where}",
                    font_size=11, fill="#57606a"))
    y += 24
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
           f'viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="13" fill="#24292f">',
           f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>', *out, "</svg>"]
    with open(to, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    {"take": take, "draw": draw}[sys.argv[1]](*sys.argv[2:])
