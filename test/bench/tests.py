# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Tests of what reads, compares and draws the samples of a run; none of them measures anything."""
import contextlib
import io
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree as xml

import bars
import charts
import figures
import history
import table
import table_limits
import table_nic


def samples_of(*lines):
    """Lines "round peer key value"; the peer may have spaces."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples")
        with open(path, "w", encoding="utf-8") as out:
            out.writelines("\t".join(line) + "\n" for line in lines)
        return table.read_samples(path)


def sample(turn, peer, key, value):
    return str(turn), peer, key, str(value)


def bar(key, limit, unit="us", peers=("shm", "psm3")):
    return bars.Row("group", "what", key, unit, "erdma", list(peers), limit)


def run_of(*lines):
    """bench.json of these samples."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = os.path.join(folder, "samples")
        with open(path, "w", encoding="utf-8") as out:
            out.writelines("\t".join(line) + "\n" for line in lines)
        table.main(path, folder, "a run")
        with open(os.path.join(folder, "bench.json"), encoding="utf-8") as source:
            return json.load(source)


class Samples(unittest.TestCase):
    def test_lines_become_rounds_of_a_peer_and_key(self):
        samples = samples_of(sample(1, "Open MPI vader", "half_8", 0.5), sample(2, "Open MPI vader", "half_8", 0.7))
        self.assertEqual(samples, {("Open MPI vader", "half_8"): {1: 0.5, 2: 0.7}})

    def test_a_line_of_another_form_is_told_with_its_place(self):
        for broken in (("1", "shm", "half_8"), ("x", "shm", "half_8", "1"), ("1", "shm", "half_8", "fast")):
            with self.assertRaisesRegex(SystemExit, ":2: not 'round peer key value'"):
                samples_of(sample(1, "shm", "half_8", 1), broken)

    def test_rounds_on_near_and_far_cores_are_told_apart_by_the_cache_line(self):
        samples = samples_of(*(sample(turn, "machine", "line", line) for turn, line in ((1, 0.05), (2, 0.2), (3, 0.06))),
                             *(sample(turn, "erdma", "half_8", turn) for turn in (1, 2, 3)),
                             sample(0, "erdma", "memory_silent", 2))
        found = table.places(samples)
        self.assertEqual(list(found), ["near cores", "far cores"])
        self.assertEqual(found["near cores"]["erdma", "half_8"], {1: 1, 3: 3})
        self.assertEqual(found["far cores"]["erdma", "half_8"], {2: 2})
        for some in found.values():
            self.assertEqual(some["erdma", "memory_silent"], {0: 2})

    def test_a_run_without_the_time_of_a_line_has_one_table(self):
        self.assertEqual(list(table.places(samples_of(sample(1, "erdma", "half_8", 1)))), ["cores of unknown distance"])


class Statistics(unittest.TestCase):
    def test_quartiles_of_one_value_are_the_value(self):
        self.assertEqual(table.quartiles([3]), (3, 3))

    def test_quartiles_lie_between_the_values(self):
        self.assertEqual(table.quartiles([4, 1, 3, 2, 5]), (2, 4))

    def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds(self):
        lines = [sample(t, "erdma", "k_8", ours) for t, ours in ((1, 1), (2, 10), (3, 4))]
        lines += [sample(t, "shm", "k_8", theirs) for t, theirs in ((1, 2), (2, 5), (3, 4))]
        self.assertEqual(table.ratio_row(samples_of(*lines), bar("k_8", None))["ratio"], 1.0)

    def test_a_round_that_one_side_missed_does_not_count(self):
        samples = samples_of(sample(1, "erdma", "k_8", 9), sample(2, "erdma", "k_8", 3), sample(2, "shm", "k_8", 2))
        self.assertEqual(table.ratio_row(samples, bar("k_8", None))["ratio"], 1.5)

    def test_rates_of_long_messages_are_shown_as_bytes(self):
        samples = samples_of(sample(1, "erdma", "stream_1000", 0.006), sample(1, "shm", "stream_1000", 0.003))
        found = table.ratio_row(samples, bar("stream_1000", 1.0, "GB/s"))
        self.assertEqual((found["erdma"], found["ratio"], found["met"]), (0.006, 2.0, True))
        self.assertEqual([bars.rate_unit(size) for size in (8, 4095, 4096)], ["M/s", "M/s", "GB/s"])

    def test_the_best_peer_has_the_least_time_or_the_highest_rate(self):
        samples = samples_of(sample(1, "erdma", "k_8", 2), sample(1, "shm", "k_8", 1), sample(1, "psm3", "k_8", 4))
        self.assertEqual(table.ratio_row(samples, bar("k_8", 1.0))["best"], "shm")
        self.assertEqual(table.ratio_row(samples, bar("k_8", 1.0, "M/s"))["best"], "psm3")


class Bars(unittest.TestCase):
    def met(self, ours, unit, limit):
        samples = samples_of(sample(1, "erdma", "k_8", ours), sample(1, "shm", "k_8", 10))
        return table.ratio_row(samples, bar("k_8", limit, unit))["met"]

    def test_a_time_may_be_at_most_the_limit(self):
        self.assertIs(self.met(9, "us", 0.9), True)
        self.assertIs(self.met(9.1, "us", 0.9), False)

    def test_a_rate_must_be_at_least_the_limit(self):
        self.assertIs(self.met(13, "M/s", 1.3), True)
        self.assertIs(self.met(12.9, "M/s", 1.3), False)

    def test_a_row_without_a_limit_or_a_peer_is_neither_met_nor_missed(self):
        self.assertIsNone(self.met(9, "us", None))
        self.assertIsNone(table.ratio_row(samples_of(sample(1, "erdma", "k_8", 1)), bar("k_8", 1.0))["met"])

    def test_what_a_peer_did_and_erdma_did_not_is_missed(self):
        self.assertIs(table.ratio_row(samples_of(sample(1, "shm", "k_8", 1)), bar("k_8", 1.0))["met"], False)

    def limits(self, *keys):
        return {(row.group, row.what): row.limit for row in bars.rows_of(
            {(peer, key): {1: 1.0} for peer in ("erdma", bars.REFUSED, bars.OPEN_MPI) for key in keys})}

    def test_half_round_trips(self):
        limits = self.limits("half_8", "half_256", "half_512", "half_4194304", "half_8388608")
        of = lambda what: limits["half round trip", what]
        self.assertEqual([of("8 B"), of("256 B"), of("512 B"), of("4 MiB"), of("8 MiB")], [0.9, 0.9, 1.0, 1.0, None])
        self.assertEqual(limits["Open MPI half", "4 MiB"], 1.0)
        self.assertNotIn(("Open MPI half", "8 MiB"), limits)

    def test_streams(self):
        for prefix, group in (("stream", "stream"), ("both", "stream, both ways")):
            limits = self.limits(*(f"{prefix}_{n}" for n in (8, 16, 524288, 1048576)))
            self.assertEqual([limits[group, what] for what in ("8 B", "16 B", "512 KiB", "1 MiB")], [1.3, 1.0, 1.0, 1.5])

    def test_without_cma_from_64_kib(self):
        limits = self.limits("half_32768", "half_65536", "stream_65536")
        groups = ("CMA refused, to peers without", "CMA refused, to peers with")
        self.assertEqual([limits[group, "half, 64 KiB"] for group in groups], [1.0, 1.11])
        self.assertEqual([limits[group, "stream, 64 KiB"] for group in groups], [1.0, 0.9])
        self.assertNotIn((groups[0], "half, 32 KiB"), limits)

    def test_one_sided_patterns_and_collectives(self):
        limits = self.limits("write_8", "silent_read_8", "late_1024", "senders32_8", "mixed", "bcast_16_65536",
                             "barrier_2_0", "reduce_scatter_4_8")
        self.assertEqual(limits, {
            ("fi_write", "8 B"): 1.0, ("fi_read", "8 B, target silent"): 0.8, ("unexpected messages", "1 KiB"): 1.1,
            ("32 senders", "8 B"): 0.91, ("mixed sizes", "up to 256 KiB"): 0.91, ("16 ranks", "bcast 64 KiB"): 1.05,
            ("2 ranks", "barrier"): 1.05, ("4 ranks", "reduce_scatter 8 B"): 1.05})

    def test_a_silent_peer_may_cost_two_kib(self):
        for kib, met in ((2.0, True), (2.1, False)):
            rows = table.rows_at(samples_of(sample(0, "erdma", "memory_silent", kib)))
            self.assertEqual([r["met"] for r in rows if r["key"] == "memory_silent"], [met])

    def test_the_tally_counts_by_group(self):
        rows = [{"group": "a", "met": True}, {"group": "a", "met": False}, {"group": "b", "met": None}]
        self.assertEqual(table.tally(rows), "  a: 1 met, 1 missed\nBars met: 1, missed: 1")


class Adapter(unittest.TestCase):
    def met(self, ours, raw, unit, how):
        samples = samples_of(sample(1, "erdma", "k_8", ours), sample(1, "raw", "k_8", raw))
        return table_nic.speed_row(samples, "what", "k_8", unit, how)["met"]

    def test_a_bar_is_a_difference_or_a_ratio_to_the_bare_loop(self):
        self.assertIs(self.met(0.54, 0.5, "us", ("+", 0.05)), True)
        self.assertIs(self.met(0.56, 0.5, "us", ("+", 0.05)), False)
        self.assertIs(self.met(1.1, 1.0, "us", ("<=", 1.1)), True)
        self.assertIs(self.met(1.2, 1.0, "us", ("<=", 1.1)), False)
        self.assertIs(self.met(0.9, 1.0, "M/s", (">=", 0.9)), True)
        self.assertIs(self.met(0.8, 1.0, "M/s", (">=", 0.9)), False)


class Limits(unittest.TestCase):
    def test_each_limit_is_compared_within_its_rounds(self):
        samples = samples_of(*(sample(turn, "both", "write_bandwidth", value) for turn, value in ((1, 10), (2, 20), (3, 10))),
                             *(sample(turn, "neither", "write_bandwidth", value) for turn, value in ((1, 9), (2, 19.2))))
        self.assertAlmostEqual(table_limits.ratio(samples, "neither", "write_bandwidth"), 0.93)
        lines = dict(table_limits.lines(samples))
        self.assertIs(lines["1 MiB fi_write, neither: 0.930 of the speed with both (bar 0.95)"], False)
        self.assertIs(lines["1 MiB messages, neither: not measured"], False)


class Report(unittest.TestCase):
    def test_the_limits_of_the_machine_stand_beside(self):
        samples = samples_of(sample(1, "machine", "line", 0.05), sample(1, "machine", "copy_1048576", 12),
                             sample(1, "erdma", "half_8", 0.15), sample(1, "erdma", "stream_1048576", 0.01))
        self.assertEqual(table.machine(samples)[1],
                         "cache line 0.050 us one way; copy 12.0 (1 MiB) GB/s; CMA refused; 8 B takes 3.0 lines; "
                         "1 MiB streams at 10.5 GB/s")

    def test_each_place_has_its_rows(self):
        run = run_of(sample(1, "machine", "line", 0.05), sample(2, "machine", "line", 0.15),
                     *(sample(t, peer, "half_8", v) for t in (1, 2) for peer, v in (("erdma", t), ("shm", 2))))
        ratios = {r["place"]: r["ratio"] for r in run["rows"] if r["key"] == "half_8" and r["ratio"]}
        self.assertEqual(ratios, {"near cores": 0.5, "far cores": 1.0})


class Picture(unittest.TestCase):
    lines = [sample(1, peer, key, value) for peer, value in (("erdma", 2), ("shm", 4))
             for key in ("half_8", "half_64", "stream_64", "late_8", "silent_write_8")]
    lines += [sample(1, "Open MPI erdma", "barrier_2_0", 1), sample(1, "Open MPI vader", "barrier_2_0", 2)]
    lines += [sample(1, "Open MPI erdma", "bcast_4_8", 3), sample(1, "Open MPI vader", "bcast_4_8", 2)]

    def drawn(self, *more):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("run", "tsv", "svg")]
            with open(paths[0], "w", encoding="utf-8") as out:
                json.dump(run_of(*self.lines, *more), out)
            figures.take(paths[0], paths[1], "1234")
            figures.draw(*paths[1:])
            with open(paths[1], encoding="utf-8") as tsv, open(paths[2], encoding="utf-8") as svg:
                return tsv.read(), svg.read()

    def test_the_file_has_curves_and_ratios_as_times(self):
        tsv, _ = self.drawn()
        self.assertIn("\ncurve: half round trip, cores of unknown distance\t64\tus\tshm\t4\n", tsv)
        self.assertIn("64 in flight, cores of unknown distance\t64\tGB/s\terdma\t0.128\n", tsv)
        self.assertIn("\tstream\tratio\t64 B\t2\n", tsv)
        self.assertIn("\t4 ranks, bcast\tratio\t8 B\t1.5\n", tsv)
        self.assertIn("\tfi_write, target silent\tratio\t8 B\t0.5\n", tsv)
        self.assertIn("\t2 ranks, barrier\tratio\t-\t0.5\n", tsv)

    def test_the_picture_is_well_formed_and_has_each_part(self):
        _, svg = self.drawn()
        names = [element.tag.rpartition("}")[2] for element in xml.fromstring(svg)]
        self.assertEqual(names.count("polyline"), 2 + 2)
        self.assertIn("Time to the best peer", svg)

    def test_near_and_far_cores_have_curves_of_their_own_and_bars_are_of_near_ones(self):
        tsv, _ = self.drawn(sample(1, "machine", "line", 0.2), sample(2, "machine", "line", 0.05),
                            sample(2, "erdma", "half_8", 9))
        self.assertIn("half round trip, near cores\t8\tus\terdma\t9\n", tsv)
        self.assertIn("half round trip, far cores\t8\tus\terdma\t2\n", tsv)
        self.assertIn("8 B message, half round trip\tus\terdma\t9\n", tsv)

    def test_colours_tell_faster_from_slower(self):
        self.assertEqual(charts.colour(1.0), "#ffffff")
        parts = lambda ratio: [int(charts.colour(ratio)[i:i + 2], 16) for i in (1, 3)]
        self.assertGreater(parts(0.5)[1], parts(0.5)[0])
        self.assertGreater(parts(2.0)[0], parts(2.0)[1])
        self.assertEqual(charts.colour(2.0), charts.colour(50))

    def test_columns_are_in_the_order_of_sizes(self):
        names = ["-", "1 KiB", "64 B", "4 MiB", "8 B"]
        self.assertEqual(sorted(names, key=charts.order), ["8 B", "64 B", "1 KiB", "4 MiB", "-"])

    def test_nothing_is_drawn_of_nothing(self):
        self.assertEqual(charts.chart(0, "title", "us", {"erdma": []}), ([], 0))
        self.assertEqual(charts.heat(0, "title", {}), ([], 0))

    def test_a_curve_of_one_point_is_drawn(self):
        out, height = charts.chart(0, "title", "us", {"erdma": [(8, 1.0)]})
        self.assertGreater(height, 0)
        self.assertTrue(any("polyline" in element for element in out))


class History(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "history.tsv")

    def run_with(self, ours, memory=1.0):
        return run_of(sample(1, "erdma", "half_8", ours), sample(1, "shm", "half_8", 2),
                      sample(1, "erdma", "stream_8", ours), sample(1, "shm", "stream_8", 2),
                      sample(0, "erdma", "memory_silent", memory))

    def recorded(self, *runs):
        for number, run in enumerate(runs):
            history.record(run, self.path, f"v{number}", "a day", "a machine")
        return history.read(self.path)

    def test_a_run_beside_itself_is_the_same(self):
        lines, worse = history.compare(self.run_with(1), self.recorded(self.run_with(1)))
        self.assertFalse(worse)
        self.assertEqual(lines[1:], ["Worse: 0", "Better: 0"])

    def test_a_time_that_grew_is_worse_and_a_rate_that_grew_is_better(self):
        lines, worse = history.compare(self.run_with(2), self.recorded(self.run_with(1)))
        self.assertTrue(worse)
        self.assertEqual([line.strip() for line in lines[1:]],
                         ["Worse: 1", "2.00  half round trip, 8 B (cores of unknown distance)", "Better: 1",
                          "0.50  stream, 8 B (cores of unknown distance)"])

    def test_a_small_difference_is_noise(self):
        self.assertFalse(history.compare(self.run_with(1.09), self.recorded(self.run_with(1)))[1])

    def test_memory_is_compared_as_it_is(self):
        lines, worse = history.compare(self.run_with(1, 3.0), self.recorded(self.run_with(1)))
        self.assertTrue(worse)
        self.assertIn("3.00  memory, peer, connected and silent", "\n".join(lines))

    def test_the_newest_record_is_meant_unless_one_is_named(self):
        records = self.recorded(self.run_with(1), self.run_with(2))
        self.assertFalse(history.compare(self.run_with(2), records)[1])
        self.assertTrue(history.compare(self.run_with(2), records, "v0")[1])

    def test_a_commit_is_recorded_once(self):
        self.recorded(self.run_with(1))
        with self.assertRaisesRegex(SystemExit, "has a record of v0 already"):
            self.recorded(self.run_with(1))

    def test_what_is_not_there_is_told(self):
        with self.assertRaisesRegex(SystemExit, "no record yet"):
            history.compare(self.run_with(1), history.read(self.path))
        with self.assertRaisesRegex(SystemExit, "no record of v9"):
            history.compare(self.run_with(1), self.recorded(self.run_with(1)), "v9")

    def test_a_broken_line_is_told_with_its_place(self):
        with open(self.path, "w", encoding="utf-8") as out:
            out.write("# head\nv0\ta day\n")
        with self.assertRaisesRegex(SystemExit, ":2: 2 fields, not 9"):
            history.read(self.path)

    def test_what_the_run_left_out_is_counted(self):
        lines, _ = history.compare(run_of(sample(1, "erdma", "half_8", 1), sample(1, "shm", "half_8", 2)),
                                   self.recorded(self.run_with(1)))
        self.assertEqual(lines[-1], "Not in this run: 2")


if __name__ == "__main__":
    unittest.main()
