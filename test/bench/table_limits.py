# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""table_limits.py SAMPLES: what zero copy loses where the host limits it, from lines "round peer key value" of
nic.sh --limits. Ratios are taken within each round, then the median of the rounds. Exit status 1: one is below the bar."""
import statistics
import sys

from table import read_samples

BAR = 0.95
WHAT = [("1 MiB messages", "bandwidth_1048576"), ("1 MiB fi_write", "write_bandwidth")]
LIMITS = ["no copy-on-fork", "no userfaultfd", "neither"]


def ratio(samples, limit, key):
    """None: not measured."""
    some, whole = samples.get((limit, key), {}), samples.get(("both", key), {})
    rounds = [turn for turn in some if turn in whole]
    return statistics.median(some[turn] / whole[turn] for turn in rounds) if rounds else None


def lines(samples):
    """(text, whether the bar is met)"""
    for what, key in WHAT:
        for limit in LIMITS:
            found = ratio(samples, limit, key)
            if found is None:
                yield f"{what}, {limit}: not measured", False
            else:
                yield f"{what}, {limit}: {found:.3f} of the speed with both (bar {BAR})", found >= BAR


if __name__ == "__main__":
    met = True
    for text, good in lines(read_samples(sys.argv[1])):
        print(text if good else text + " MISSED")
        met = met and good
    sys.exit(not met)
