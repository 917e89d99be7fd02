# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""table.py SAMPLES FOLDER CAPTION: the table of run.sh from lines "round peer key value".

A ratio is taken within each round and then the median of the rounds, because all of a round is
measured within seconds. Writes bench.txt and bench.json to FOLDER."""
import collections
import json
import os
import statistics
import sys

OTHERS = ["shm", "psm3", "UCX posix", "UCX posix+cma", "Open MPI vader"]
# With CMA refused, the bar is what libfabric's and UCX's ways reach with it.
WITH_CMA = ["shm", "UCX posix+cma"]
SIZES = [("64 KiB", 65536), ("1 MiB", 1 << 20), ("4 MiB", 4 << 20)]
REFUSED = "erdma, CMA refused"
OPEN_MPI = "Open MPI erdma"

# what, key, unit, ours, peers, bar (None: for information)
RATIOS = [
    ("8 B half round trip, to shm", "half_8", "us", "erdma", ["shm"], 0.75),
    ("8 B half round trip, to UCX", "half_8", "us", "erdma", ["UCX posix"], 1.0),
    ("8 B half round trip, to all", "half_8", "us", "erdma", OTHERS, None),
    ("8 B message rate", "stream_8", "M/s", "erdma", ["UCX posix"], 1.0),
    ("8 B message rate, to shm", "stream_8", "M/s", "erdma", ["shm"], None),
    ("8 B rate, window acked", "rate_acked", "M/s", "erdma", ["shm", "Open MPI vader"], None),
    ("4 KiB half round trip", "half_4096", "us", "erdma", OTHERS, 0.9),
    *((f"{name} bandwidth", f"half_{size}", "GB/s", "erdma", OTHERS, 1.3) for name, size in SIZES),
    *((f"{name}, CMA refused", f"half_{size}", "GB/s", REFUSED, WITH_CMA, 1.0)
      for name, size in SIZES),
    ("8 B, CMA refused", "half_8", "us", REFUSED, ["shm", "UCX posix+cma"], None),
    ("8 B fi_write", "write_8", "us", "erdma", ["shm"], 1.0),
    ("8 B fi_read", "read_8", "us", "erdma", ["shm"], 1.0),
    ("1 MiB fi_write", "write_1048576", "GB/s", "erdma", ["shm"], 1.3),
    ("1 MiB fi_read", "read_1048576", "GB/s", "erdma", ["shm"], 1.3),
    ("8 B fetch-add", "fetch_add", "us", "erdma", ["shm"], 1.0),
    ("8 B fetch-add rate", "fetch_add_rate", "M/s", "erdma", ["shm"], None),
    ("Open MPI, 8 B", "half_8", "us", OPEN_MPI, ["Open MPI vader"], 1.3),
    ("Open MPI, 4 KiB", "half_4096", "us", OPEN_MPI, ["Open MPI vader"], None),
    *((f"Open MPI, {name}", f"half_{size}", "GB/s", OPEN_MPI, ["Open MPI vader"], None)
      for name, size in SIZES),
]
MEMORY = [
    ("idle endpoint", "memory_endpoint", 512),
    ("peer, address known", "memory_inserted", 1),
    ("peer, connected and silent, beyond the first", "memory_silent", 1),
    ("peer, busy", "memory_busy", 80),
]
MATCHING = [("10,000 posted, to 10", "posted"), ("10,000 unexpected, to 10", "unexpected")]
COLUMNS = ["what", "erdma", "best peer", "ratio", "bar", "met"]


def read_samples(path):
    """{(peer, key): {round: value}}"""
    samples = collections.defaultdict(dict)
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            turn, peer, key, value = line.rstrip("\n").split("\t")
            samples[peer, key][int(turn)] = float(value)
    return samples


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def in_unit(rounds, key, unit):
    """Times become bandwidths: bytes per us are MB/s."""
    if unit != "GB/s":
        return rounds
    size = int(key.rsplit("_", 1)[1])
    return {turn: size / time / 1e3 for turn, time in rounds.items()}


def shown(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def with_spread(values, unit):
    low, high = quartiles(values)
    return f"{shown(statistics.median(values))} {unit} [{shown(low)}..{shown(high)}]"


def row(what, erdma, peer="", ratio=None, bar="-", met=None, **details):
    cells = [what, erdma, peer, "" if ratio is None else f"{ratio:.2f}", bar,
             {True: "yes", False: "NO", None: "-"}[met]]
    return {"cells": cells, "ratio": ratio, "met": met, **details}


def ratio_row(samples, what, key, unit, ours, peers, bar):
    mine = in_unit(samples.get((ours, key), {}), key, unit)
    if not mine:
        return row(what, "not measured")
    smaller = unit == "us"
    sign = "<=" if smaller else ">="
    found = {p: in_unit(samples[p, key], key, unit) for p in peers if samples.get((p, key))}
    text = with_spread(list(mine.values()), unit)
    wanted = f"{sign} {bar}" if bar else "-"
    if not found:
        return row(what, text, "no peer here", bar=wanted)
    best = (min if smaller else max)(found, key=lambda p: statistics.median(found[p].values()))
    ratios = [mine[turn] / found[best][turn] for turn in mine if turn in found[best]]
    if not ratios:
        return row(what, text, "never in one round", bar=wanted)
    ratio = statistics.median(ratios)
    met = None if bar is None else ratio <= bar if smaller else ratio >= bar
    peer = f"{with_spread(list(found[best].values()), unit)} ({best})"
    return row(what, text, peer, ratio, wanted, met, best=best, ratio_spread=quartiles(ratios))


def memory_row(samples, what, key, bar):
    mine, other = samples.get(("erdma", key)), samples.get(("shm", key))
    if not mine:
        return row(f"memory, {what}", "not measured", bar=f"<= {bar} KiB")
    value = statistics.median(mine.values())
    peer = f"{shown(statistics.median(other.values()))} KiB (shm)" if other else ""
    return row(f"memory, {what}", f"{shown(value)} KiB", peer, None, f"<= {bar} KiB", value <= bar)


def matching_row(samples, what, kind):
    few, many = samples.get(("erdma", f"{kind}_10")), samples.get(("erdma", f"{kind}_10000"))
    if not few or not many:
        return row(what, "not measured", bar="<= 2.0")
    ratio = statistics.median(many[turn] / few[turn] for turn in many if turn in few)
    text = f"{with_spread(list(many.values()), 'ns')}"
    return row(what, text, f"{with_spread(list(few.values()), 'ns')} (erdma, 10)", ratio, "<= 2.0",
               ratio <= 2)


def table(rows):
    lines = [COLUMNS] + [r["cells"] for r in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    text = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in lines]
    text.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(text)


def main(path, folder, caption):
    samples = read_samples(path)
    rows = [ratio_row(samples, *spec) for spec in RATIOS]
    rows += [memory_row(samples, *spec) for spec in MEMORY]
    rows += [matching_row(samples, *spec) for spec in MATCHING]
    missed = sum(r["met"] is False for r in rows)
    text = (f"{table(rows)}\n\nMedian [quartiles] of {caption}. Ratios: erdma to the best peer, "
            f"median over rounds.\nBars met: {sum(r['met'] is True for r in rows)}, "
            f"missed: {missed}\n")
    print(text, end="")
    with open(os.path.join(folder, "bench.txt"), "w", encoding="utf-8") as out:
        out.write(text)
    raw = [{"peer": peer, "key": key, "rounds": rounds} for (peer, key), rounds in samples.items()]
    with open(os.path.join(folder, "bench.json"), "w", encoding="utf-8") as out:
        json.dump({"caption": caption, "rows": [
            {**r, "cells": dict(zip(COLUMNS, r["cells"]))} for r in rows], "samples": raw}, out,
            indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:4])
