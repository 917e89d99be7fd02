# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""table_nic.py SAMPLES FILE CAPTION: the table of nic.sh from lines "round peer key value". Ratios and
differences are taken within each round, then the median of the rounds."""
import statistics
import sys

from table import read_samples, row, shown, table, with_spread

# what, key, unit, bar as (how, number)
SPEED = [
    ("8 B half round trip", "half_8", "us", ("+", 0.05)),
    *((f"{size} KiB half round trip", f"half_{size << 10}", "us", ("<=", 1.1)) for size in (1, 4, 16, 64)),
    ("8 B message rate", "rate", "M/s", (">=", 0.9)),
    ("1 MiB bandwidth, to raw RDMA WRITE", "bandwidth_1048576", "GB/s", (">=", 0.95)),
    ("8 B fi_write", "write_8", "us", ("+", 0.1)),
    ("8 B fi_read", "read_8", "us", ("+", 0.1)),
    ("8 B fi_read from oneself (flush)", "local_read_8", "us", ("+", 0.1)),
    ("1 MiB fi_write", "write_bandwidth", "GB/s", (">=", 0.95)),
    ("1 MiB fi_read", "read_bandwidth", "GB/s", (">=", 0.95)),
    ("8 B fetch-add", "fetch_add", "us", None),
    ("8 B fetch-add rate", "fetch_add_rate", "M/s", None),
]
# what, key, unit, bar
SCALE = [
    ("first contacts", "free_setup", "/s", (">=", 2000)),
    ("memory per connected peer, this side", "free_memory", "KiB", ("<=", 32)),
    ("answers, 64 connections at a time", "limited_messages", "/s", None),
    ("memory of it all, 64 connections", "limited_end", "KiB", None),
]
RAW = "raw"
RXM = "verbs;ofi_rxm"


def speed_row(samples, what, key, unit, bar):
    mine, raw = samples.get(("erdma", key), {}), samples.get((RAW, key), {})
    if not mine:
        return row(what, "not measured")
    text, peer = with_spread(list(mine.values()), unit), ""
    if raw:
        peer = with_spread(list(raw.values()), unit) + " (raw)"
    rounds = [turn for turn in mine if turn in raw]
    if not rounds:
        return row(what, text, peer or "no peer here")
    ratio = statistics.median(mine[turn] / raw[turn] for turn in rounds)
    if not bar:
        return row(what, text, peer, ratio)
    how, limit = bar
    if how == "+":
        more = statistics.median(mine[turn] - raw[turn] for turn in rounds)
        return row(what, text, peer, ratio, f"raw + {limit} us", more <= limit, difference=more)
    return row(what, text, peer, ratio, f"{how} {limit}", ratio >= limit if how == ">=" else ratio <= limit)


def rxm_row(samples):
    """How much each library adds to the raw half round trip."""
    mine, rxm, raw = (samples.get((peer, "half_8"), {}) for peer in ("erdma", RXM, RAW))
    rounds = [turn for turn in mine if turn in raw and turn in rxm]
    if not rounds:
        return []
    ours = [mine[turn] - raw[turn] for turn in rounds]
    theirs = [rxm[turn] - raw[turn] for turn in rounds]
    ratio = statistics.median(o / t for o, t in zip(ours, theirs))
    return [row("8 B, what it adds to raw", with_spread(ours, "us"),
                f"{with_spread(theirs, 'us')} ({RXM})", ratio, "<= 0.5", ratio <= 0.5)]


def scale_row(samples, what, key, unit, bar):
    values = samples.get(("erdma", key))
    if not values:
        return row(what, "not measured")
    value = statistics.median(values.values())
    met = None
    if bar:
        met = value >= bar[1] if bar[0] == ">=" else value <= bar[1]
    return row(what, f"{shown(value)} {unit}", "", None, f"{bar[0]} {bar[1]}" if bar else "-", met)


def main(path, file, caption):
    samples = read_samples(path)
    rows = [speed_row(samples, *spec) for spec in SPEED] + rxm_row(samples)
    rows += [scale_row(samples, *spec) for spec in SCALE]
    missed = sum(r["met"] is False for r in rows)
    text = (f"{table(rows)}\n\nMedian [quartiles] of {caption}.\n"
            f"Bars met: {sum(r['met'] is True for r in rows)}, missed: {missed}\n")
    print(text, end="")
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:4])
