# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The figures of earlier runs, so that a release can be compared with the one before.

history.py record BENCH.JSON HISTORY.TSV COMMIT: appends the figures of a run.
history.py compare BENCH.JSON HISTORY.TSV [COMMIT]: what differs from that record, else from the newest.

Ratios to the best peer are compared between any machines; what has none (memory), as it is."""
import datetime
import json
import os
import sys

from figures import machine

SLACK = 0.1  # a smaller difference is noise
COLUMNS = ["commit", "date", "machine", "place", "group", "name", "unit", "erdma", "ratio"]


def read(path):
    """{commit: {(place, group, name): record}} in the order of the file."""
    records = {}
    if not os.path.exists(path):
        return records
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.startswith("#") or not line.strip():
                continue
            fields = line.rstrip("\n").split("\t")
            if len(fields) != len(COLUMNS):
                raise SystemExit(f"{path}:{number}: {len(fields)} fields, not {len(COLUMNS)}")
            one = dict(zip(COLUMNS, fields))
            records.setdefault(one["commit"], {})[one["place"], one["group"], one["name"]] = one
    return records


def figures_of(run):
    """{(place, group, name): (unit, erdma, ratio or None)}"""
    return {(r["place"], r["group"], r["name"]): (r["unit"], r["erdma"], r["ratio"])
            for r in run["rows"] if r.get("erdma") is not None}


def record(run, path, commit, date, where):
    if commit in read(path):
        raise SystemExit(f"{path} has a record of {commit} already")
    fresh = not os.path.exists(path)
    with open(path, "a", encoding="utf-8") as out:
        if fresh:
            out.write("# " + "\t".join(COLUMNS) + "\n")
        for (place, group, name), (unit, erdma, ratio) in figures_of(run).items():
            fields = [commit, date, where, place, group, name, unit, f"{erdma:.5g}", f"{ratio:.4g}" if ratio else ""]
            out.write("\t".join(fields) + "\n")


def change(unit, now, before):
    """How much worse, as a factor: above 1 is worse. Without a ratio on both sides, by the value."""
    rate = unit in ("M/s", "GB/s")
    if now[1] and before["ratio"]:
        factor, rate = now[1] / float(before["ratio"]), rate
    elif float(before["erdma"]) > 0 and now[0] > 0:
        factor = now[0] / float(before["erdma"])
    else:
        return None
    return 1 / factor if rate else factor


def compare(run, records, commit=None):
    """(lines, whether anything got worse)"""
    commit = commit or (list(records)[-1] if records else None)
    if commit not in records:
        raise SystemExit(f"there is no record of {commit}" if commit else "there is no record yet")
    before, now = records[commit], figures_of(run)
    worse, better, gone = [], [], [at for at in before if at not in now]
    for at, (unit, erdma, ratio) in now.items():
        factor = at in before and change(unit, (erdma, ratio), before[at])
        if not factor:
            continue
        line = f"  {factor:5.2f}  {', '.join(at[1:])} ({at[0]})"
        if factor > 1 + SLACK:
            worse.append((-factor, line))
        elif factor < 1 / (1 + SLACK):
            better.append((factor, line))
    lines = [f"Beside {commit}, as times (above 1 is worse):"]
    for name, found in (("Worse", worse), ("Better", better)):
        lines.append(f"{name}: {len(found)}")
        lines += [line for _, line in sorted(found)]
    if gone:
        lines.append(f"Not in this run: {len(gone)}")
    return lines, bool(worse)


def main(how, bench, path, commit=None):
    if not os.path.exists(bench):
        raise SystemExit(f"there is no {bench}: make bench writes it")
    with open(bench, encoding="utf-8") as source:
        run = json.load(source)
    if how == "record":
        record(run, path, commit or "unknown", str(datetime.date.today()), machine())
        return 0
    lines, worse = compare(run, read(path), commit)
    print("\n".join(lines))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
