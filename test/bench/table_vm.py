# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""table_vm.py SAMPLES FILE CAPTION: the table of vm.sh from lines "round peer key value". Ratios are
taken within each round, then the median of the rounds."""
import statistics
import sys

from table import read_samples, row, table, with_spread

# what, key, unit, program beside, bar as (how, number)
ROWS = [
    ("8 B half round trip", "half_8", "us", "ib_send_lat", ("<=", 1.15)),
    ("1 MiB bandwidth", "bandwidth_1048576", "GB/s", "ib_write_bw", (">=", 0.9)),
]
KINDS = ["siw", "rxe"]


def ratio_row(samples, kind, what, key, unit, beside, bar):
    mine, raw = (samples.get((f"{kind} {peer}", key), {}) for peer in ("erdma", "perftest"))
    rounds = [turn for turn in mine if turn in raw]
    if not rounds:
        return row(f"{what}, {kind}", "not measured")
    ratio = statistics.median(mine[turn] / raw[turn] for turn in rounds)
    how, limit = bar
    return row(f"{what}, {kind}", with_spread(list(mine.values()), unit),
               f"{with_spread(list(raw.values()), unit)} ({beside})", ratio, f"{how} {limit}",
               ratio <= limit if how == "<=" else ratio >= limit)


def main(path, file, caption):
    samples = read_samples(path)
    rows = [ratio_row(samples, kind, *spec) for kind in KINDS for spec in ROWS]
    missed = sum(r["met"] is False for r in rows)
    text = (f"{table(rows)}\n\nMedian [quartiles] of {caption}.\n"
            f"Bars met: {sum(r['met'] is True for r in rows)}, missed: {missed}\n")
    print(text, end="")
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:4])
