# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What run.sh compares, and the bars: rows of table.py, for the sizes and rank counts that a run has."""
import collections
import re

OTHERS = ["shm", "psm3", "UCX posix", "UCX posix+cma"]
REFUSED_OTHERS = ["shm, CMA refused", "psm3, CMA refused", "UCX posix"]
REFUSED = "erdma, CMA refused"
OPEN_MPI, MPI_OTHERS = "Open MPI erdma", ["Open MPI vader", "Open MPI UCX"]
COLLECTIVES = ["bcast", "allreduce", "alltoall", "allgather", "reduce_scatter", "barrier"]
# name in the table, prefix of the keys
PATTERNS = [
    ("burst of 32 after computing", "burst"), ("unexpected messages", "late"),
    ("exchange while both compute", "compute"), ("any source and tag", "any"),
    ("2 senders", "senders2"), ("8 senders", "senders8"), ("32 senders", "senders32"),
]
TIMES = {"burst", "late", "compute"}  # the other patterns are rates
MOST_BARRED = 4 << 20  # longer messages are for information
KIB, MIB = 1 << 10, 1 << 20

LONG = 4 << 10  # rates of messages from here on are shown as GB/s

# group and what are the row's name. A row compares `ours` with the best of `peers` by `key`. `limit`, if
# any, limits the ratio ours / theirs: a maximum for times, a minimum for rates.
Row = collections.namedtuple("Row", "group what key unit ours peers limit")


def size_name(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def sizes(keys, prefix):
    found = (re.fullmatch(rf"{prefix}_(\d+)", key) for key in keys)
    return sorted({int(match[1]) for match in found if match})


def rate_unit(size):
    return "GB/s" if size >= LONG else "M/s"


def barred(size, limit):
    return limit if size <= MOST_BARRED else None


def half_limit(size):
    return 0.9 if size <= 256 else 1.0


def stream_limit(size):
    return 1.3 if size == 8 else 1.5 if size >= MIB else 1.0


def message_rows(keys):
    rows = [Row("half round trip", size_name(n), f"half_{n}", "us", "erdma", OTHERS, barred(n, half_limit(n)))
            for n in sizes(keys, "half")]
    for group, prefix in (("stream", "stream"), ("stream, both ways", "both")):
        rows += [Row(group, size_name(n), f"{prefix}_{n}", rate_unit(n), "erdma", OTHERS,
                     barred(n, stream_limit(n)))
                 for n in sizes(keys, prefix)]
    return rows + [Row("stream", "8 B, window acked", "rate_acked", "M/s", "erdma", OTHERS, None)]


def refused_rows(keys):
    rows = []
    for group, peers, share in (("CMA refused, to peers without", REFUSED_OTHERS, 1.0),
                                ("CMA refused, to peers with", OTHERS, 0.9)):
        for name, prefix, unit in (("half", "half", "us"), ("stream", "stream", "GB/s")):
            limit = round(1 / share, 2) if unit == "us" else share
            rows += [Row(group, f"{name}, {size_name(n)}", f"{prefix}_{n}", unit, REFUSED, peers, barred(n, limit))
                     for n in sizes(keys, prefix) if n >= 64 * KIB]
    return rows


def one_sided_rows(keys):
    rows = [Row(f"fi_{name}", size_name(n), f"{name}_{n}", "us", "erdma", ["shm"], 1.0)
            for name in ("write", "read") for n in sizes(keys, name)]
    rows += [Row(f"fi_{name}", "8 B, target silent", f"silent_{name}_8", "us", "erdma", ["shm"], 0.8)
             for name in ("write", "read")]
    return rows + [Row("fetch-add", "8 B", "fetch_add", "us", "erdma", ["shm"], 1.0),
                   Row("fetch-add", "8 B, rate", "fetch_add_rate", "M/s", "erdma", ["shm"], 1.0)]


def pattern_rows(keys):
    rows = []
    for name, prefix in PATTERNS:
        unit, limit = ("us", 1.1) if prefix in TIMES else ("M/s", 0.91)
        rows += [Row(name, size_name(n), f"{prefix}_{n}", unit, "erdma", OTHERS, limit) for n in sizes(keys, prefix)]
    return rows + [Row("mixed sizes", "up to 256 KiB", "mixed", "M/s", "erdma", OTHERS, 0.91)]


def mpi_rows(keys):
    rows = [Row("Open MPI half", size_name(n), f"half_{n}", "us", OPEN_MPI, ["Open MPI vader"], barred(n, 1.0))
            for n in sizes(keys, "half") if n <= MOST_BARRED]
    rows.append(Row("Open MPI", "8 B, window acked", "rate_acked", "M/s", OPEN_MPI, ["Open MPI vader"], None))
    found = (re.fullmatch(rf"({'|'.join(COLLECTIVES)})_(\d+)_(\d+)", key) for key in keys)
    points = {(int(m[2]), COLLECTIVES.index(m[1]), int(m[3])) for m in found if m}
    for ranks, number, size in sorted(points):
        name = COLLECTIVES[number]
        what = name if name == "barrier" else f"{name} {size_name(size)}"
        rows.append(Row(f"{ranks} ranks", what, f"{name}_{ranks}_{size}", "us", OPEN_MPI, MPI_OTHERS, 1.05))
    return rows


def rows_of(samples):
    """Rows for which erdma was measured: what a run left out is not in its table."""
    keys = {key for _, key in samples}
    every = [*message_rows(keys), *refused_rows(keys), *one_sided_rows(keys), *pattern_rows(keys), *mpi_rows(keys)]
    measured = lambda row: any(samples.get((peer, row.key)) for peer in (row.ours, *row.peers))
    return [row for row in every if measured(row)]
