# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""table.py SAMPLES FOLDER CAPTION: the table of run.sh from lines "round peer key value".

A ratio is taken within each round and then the median of the rounds, because all of a round is
measured within minutes. Rounds on near and on far cores are told apart by the time of a cache line,
and get a table each. Writes bench.txt and bench.json to FOLDER."""
import collections
import json
import os
import statistics
import sys

import bars

NEAR = 0.08  # us: a cache line takes less between cores that share a cache
MEMORY = [
    ("idle endpoint", "memory_endpoint", 512),
    ("peer, address known", "memory_inserted", 1),
    ("peer, connected and silent, beyond the first", "memory_silent", 2),
    ("peer, busy", "memory_busy", 1080),
]
MATCHING = [("10,000 posted, to 10", "posted"), ("10,000 unexpected, to 10", "unexpected")]
COLUMNS = ["what", "erdma", "best peer", "ratio", "bar", "met"]


def read_samples(path):
    """{(peer, key): {round: value}}"""
    samples = collections.defaultdict(dict)
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                turn, peer, key, value = line.rstrip("\n").split("\t")
                samples[peer, key][int(turn)] = float(value)
            except ValueError as error:
                raise SystemExit(f"{path}:{number}: not 'round peer key value': {line.rstrip()}") from error
    return samples


def places(samples):
    """{place: the samples of its rounds}; what was measured once, in round 0, belongs to each."""
    line = samples.get(("machine", "line"), {})
    turns = {turn for rounds in samples.values() for turn in rounds if turn}
    found = collections.defaultdict(set)
    for turn in turns:
        time = line.get(turn)
        found["cores of unknown distance" if time is None else "near cores" if time < NEAR else "far cores"].add(turn)
    out = {}
    for place in sorted(found, reverse=True):
        some = {at: {t: v for t, v in rounds.items() if t in found[place] or t == 0} for at, rounds in samples.items()}
        out[place] = {at: rounds for at, rounds in some.items() if rounds}
    return out or {"cores of unknown distance": samples}


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def shown(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def with_spread(values, unit):
    low, high = quartiles(values)
    return f"{shown(statistics.median(values))} {unit} [{shown(low)}..{shown(high)}]"


def row(what, ours, peer="", ratio=None, bar="-", met=None, **details):
    cells = [what, ours, peer, "" if ratio is None else f"{ratio:.2f}", bar,
             {True: "yes", False: "NO", None: "-"}[met]]
    return {"cells": cells, "ratio": ratio, "met": met, **details}


def best_of(found, smaller):
    """The peer with the best median."""
    return (min if smaller else max)(found, key=lambda peer: statistics.median(found[peer].values()))


def in_unit(rounds, spec):
    """Millions of messages a second become GB/s."""
    if spec.unit != "GB/s":
        return rounds
    size = int(spec.key.rsplit("_", 1)[1])
    return {turn: value * size / 1e3 for turn, value in rounds.items()}


def ratio_row(samples, spec):
    about = {"group": spec.group, "name": spec.what, "key": spec.key, "unit": spec.unit}
    what, smaller = f"{spec.group}, {spec.what}", spec.unit == "us"
    bar = "-" if spec.limit is None else f"{'<=' if smaller else '>='} {spec.limit}"
    missed = None if spec.limit is None else False
    mine = in_unit(samples.get((spec.ours, spec.key), {}), spec)
    if not mine:  # a peer can do what erdma did not finish
        return row(what, "not measured", bar=bar, met=missed, **about)
    about["erdma"] = statistics.median(mine.values())
    text = with_spread(list(mine.values()), spec.unit)
    found = {peer: in_unit(samples[peer, spec.key], spec) for peer in spec.peers if samples.get((peer, spec.key))}
    if not found:
        return row(what, text, "no peer here", bar=bar, **about)
    best = best_of(found, smaller)
    ratios = [mine[turn] / found[best][turn] for turn in mine if found[best].get(turn)]
    if not ratios:
        return row(what, text, "never in one round", bar=bar, **about)
    ratio = statistics.median(ratios)
    met = None if spec.limit is None else ratio <= spec.limit if smaller else ratio >= spec.limit
    peer = f"{with_spread(list(found[best].values()), spec.unit)} ({best})"
    return row(what, text, peer, ratio, bar, met, best=best, ratio_spread=quartiles(ratios), **about)


def memory_row(samples, what, key, bar):
    about = {"group": "memory", "name": what, "key": key, "unit": "KiB"}
    mine, other = samples.get(("erdma", key)), samples.get(("shm", key))
    if not mine:
        return row(f"memory, {what}", "not measured", bar=f"<= {bar} KiB", met=False, **about)
    value = statistics.median(mine.values())
    peer = f"{shown(statistics.median(other.values()))} KiB (shm)" if other else ""
    return row(f"memory, {what}", f"{shown(value)} KiB", peer, None, f"<= {bar} KiB", value <= bar, erdma=value,
               **about)


def matching_row(samples, what, kind):
    few, many = samples.get(("erdma", f"{kind}_10")), samples.get(("erdma", f"{kind}_10000"))
    rounds = [turn for turn in many or {} if turn in (few or {})]
    if not rounds:
        return []
    ratio = statistics.median(many[turn] / few[turn] for turn in rounds)
    return [row(what, with_spread(list(many.values()), "ns"), f"{with_spread(list(few.values()), 'ns')} (erdma, 10)",
                ratio, "<= 2.0", ratio <= 2, group="matching", name=what, key=f"{kind}_10000", unit="ns",
                erdma=statistics.median(many.values()))]


def machine(samples):
    """The physical limits, and how near erdma comes to them."""
    values = {key: statistics.median(rounds.values()) for (peer, key), rounds in samples.items() if peer == "machine"}
    if "line" not in values:
        return values, ""
    text = f"cache line {values['line']:.3f} us one way"
    for name, prefix in (("copy", "copy"), ("CMA", "cma")):
        of_sizes = [f"{values[f'{prefix}_{n}']:.1f} ({bars.size_name(n)})" for n in bars.sizes(values, prefix)]
        text += f"; {name} {', '.join(of_sizes)} GB/s" if of_sizes else f"; {name} refused"
    for key, form in (("half_8", "8 B takes {:.1f} lines"), ("stream_1048576", "1 MiB streams at {:.1f} GB/s")):
        rounds = samples.get(("erdma", key))
        if rounds:
            mine = statistics.median(rounds.values())
            text += "; " + form.format(mine / values["line"] if key == "half_8" else mine * 1048576 / 1e3)
    return values, text


def table(rows):
    lines = [COLUMNS] + [r["cells"] for r in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    text = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in lines]
    text.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(text)


def rows_at(samples):
    rows = [ratio_row(samples, spec) for spec in bars.rows_of(samples)]
    rows += [memory_row(samples, *spec) for spec in MEMORY]
    return rows + [r for spec in MATCHING for r in matching_row(samples, *spec)]


def tally(rows):
    """Bars met and missed, by group."""
    groups = collections.defaultdict(collections.Counter)
    for r in rows:
        if r["met"] is not None:
            groups[r["group"]][r["met"]] += 1
    lines = [f"  {group}: {count[True]} met, {count[False]} missed" for group, count in groups.items()]
    met, missed = (sum(count[how] for count in groups.values()) for how in (True, False))
    return "\n".join([*lines, f"Bars met: {met}, missed: {missed}"])


def main(path, folder, caption):
    samples = read_samples(path)
    text, every, limits = "", [], {}
    for place, some in places(samples).items():
        rows = rows_at(some)
        limits[place], words = machine(some)
        text += f"{place.capitalize()}: {words}\n\n{table(rows)}\n\n{tally(rows)}\n\n"
        every += [{**r, "place": place, "cells": dict(zip(COLUMNS, r["cells"]))} for r in rows]
    text += f"Median [quartiles] of {caption}. Ratios: erdma to the best peer, median over rounds.\n"
    print(text, end="")
    with open(os.path.join(folder, "bench.txt"), "w", encoding="utf-8") as out:
        out.write(text)
    raw = [{"peer": peer, "key": key, "rounds": rounds} for (peer, key), rounds in samples.items()]
    with open(os.path.join(folder, "bench.json"), "w", encoding="utf-8") as out:
        json.dump({"caption": caption, "machine": limits, "rows": every, "samples": raw}, out, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:4])
