# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""program.py SOURCE BUILD [TEST...]: the program fi_erdma as a user meets it, with processes that really have an
endpoint. What it prints as JSON keeps to prov/fi_erdma/fi_erdma.schema.json."""
import contextlib
import ctypes
import errno
import glob
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SOURCE, BUILD = sys.argv[1:3]
PROGRAM = os.path.join(BUILD, "prov/fi_erdma/fi_erdma")
COMPLETION = os.path.join(SOURCE, "prov/fi_erdma/completion/fi_erdma")
CLEAN = {k: v for k, v in os.environ.items() if not re.match(r"FI_|PMI|OMPI_|SLURM_|TORCHELASTIC_", k)}
CLEAN["SYSFS_PATH"] = "/nowhere"  # no device of this host
KIB = 1024
WITH_PROVIDER = {"FI_PROVIDER_PATH": os.path.join(BUILD, ".libs"), "FI_ERDMA_DEVICE": "shm"}

with open(os.path.join(SOURCE, "prov/fi_erdma/fi_erdma.schema.json"), encoding="utf-8") as file:
    SCHEMA = json.load(file)
try:
    import jsonschema
except ImportError:
    jsonschema = None


def run(*arguments, before=None, **environment):
    return subprocess.run([PROGRAM, *map(str, arguments)], env={**CLEAN, **environment}, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False,
                          preexec_fn=before)  # pylint: disable=subprocess-popen-preexec-fn


def parsed(test, done):
    """What a program printed as JSON. It prints nothing if it fails by itself."""
    test.assertNotEqual(done.stdout, "", done.stderr)
    return json.loads(done.stdout)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def say_and_end(connection, words):
    """The other side may end the connection as soon as it has read enough to refuse the words."""
    connection.sendall(words)
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def end(process):
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        stream.close()


def serve(test, *arguments, before=None, **environment):
    """A side that waits for the other one, to the end of the test at most."""
    server = subprocess.Popen([PROGRAM, *arguments], env={**CLEAN, **environment}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=before)  # pylint: disable=subprocess-popen-preexec-fn
    test.addCleanup(end, server)
    test.assertIn("waiting for the other side", server.stderr.readline())
    return server


@contextlib.contextmanager
def nic_only():
    """The environment of processes that reach each other through the simulated adapter alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield {"LD_PRELOAD": os.path.join(os.path.abspath(BUILD), ".libs/libsofterdma.so"),
               "SOFTERDMA_DIR": folder, "FI_ERDMA_DEVICE": "erdma_0", "FI_ERDMA_SHM": "off"}


class Shown:
    """A process with an endpoint."""

    def __init__(self, stderr=None, before=None, **environment):
        self.process = subprocess.Popen([os.path.join(BUILD, "test/fi_erdma/shown_endpoint")],
                                        env={**CLEAN, **environment}, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=stderr, text=True,
                                        preexec_fn=before)  # pylint: disable=subprocess-popen-preexec-fn
        self.pid = self.process.pid

    def __enter__(self):
        said = self.process.stdout.readline()
        if said != "ready\n":
            # Nobody else ends it, and it may use folders that are removed now.
            self.process.kill()
            self.process.communicate()
            raise AssertionError(f"the process with an endpoint said {said!r}")
        return self

    def __exit__(self, *_):
        # Also after a failure, when it may be stopped, or poll.
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGUSR1)
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(60) == 0

    def transfer(self, size, count):
        self.process.stdin.write(f"{size} {count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def open_more(self, count):
        self.process.stdin.write(f"more {count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def reopen(self, polls=0):
        self.process.stdin.write(f"reopen {polls}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)


class Program(unittest.TestCase):
    def document(self, done, name):
        document = parsed(self, done)
        self.assertEqual(document["schema"], f"fi_erdma.{name}/1")
        if jsonschema:
            jsonschema.Draft202012Validator(SCHEMA).validate(document)
        return document

    def process(self, name, shown, status=0):
        done = run(name, "--json", *self.SOON[name], shown.pid)
        self.assertEqual(done.returncode, status, done.stderr)
        (process,) = self.document(done, name)["processes"]
        self.assertEqual(process["pid"], shown.pid)
        return process

    # None of these processes does within a second what it does not do at once.
    SOON = {"hang": ["-i", "0.2"], "stat": []}
    NO_PIDS = ["99999999999999999999", "4294967297", "1.5", "1e0", "0.5", "0", "0x1", "1,2", "+1", ""]

    def test_version_and_help_are_printed_and_wrong_options_refused(self):
        self.assertRegex(run("--version").stdout, r"^fi_erdma \d+\.\d+")
        self.assertIn("stat", run("--help").stdout)
        for arguments in ([], ["no-such-command"], ["stat", "--no-such-option"], ["stat", "-1"], ["stat", "x"], ["stat", "-p", "x"],
                          ["doctor", "-j", "--job"], ["stat", "-"], ["info", "-v"], ["stat", "--by", "rank", "-j"],
                          ["stat", "--by", "path", "--prometheus"], ["stat", "-j", "--prometheus"],
                          ["stat", "-v", "--prometheus"], ["stat", "--sysfs", "/"], ["stat", "-l", "-j", "--sysfs", "/"],
                          ["stat", "-l", "--prometheus", "--sysfs", "/"],
                          *(["doctor", "--job", option, "1"] for option in ("--sysfs", "-P", "-T")),
                          *([command, "-P", "9228"] for command in ("doctor", "bench", "test")),
                          ["doctor", "--serve", "--sysfs", "/"], ["doctor", "--peer", "localhost", "--sysfs", "/"],
                          ["stat", "-i", "nan"], ["hang", "-i", "NaN"], ["doctor", "-T", "nan"], ["doctor", "--for", "nccl", "--job"],
                          ["doctor", "--for", "nccl", "--peer", "localhost"], ["doctor", "--serve", "--for", "nccl"],
                          ["bench", "--share", "50"], ["bench", "--expect", "shm", "--share", "nan"],
                          ["test", "--limit-ms", "nan"], *([name, pid] for name in ["hang", "stat", "info"]
                                                                      for pid in self.NO_PIDS)):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (64, ""), arguments)
            self.assertNotEqual(done.stderr, "", arguments)

    def test_stat_shows_rank_and_endpoint_of_a_process(self):
        with Shown(OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="16", PMIX_NAMESPACE="job.1") as shown:
            process = self.process("stat", shown)
            self.assertEqual([process["process"][x] for x in ["rank", "ranks", "job"]], [3, 16, "job.1"])
            (endpoint,) = process["endpoints"]
            self.assertEqual((endpoint["device"], endpoint["enabled"], endpoint["speed"]), ("shm", 1, None))
            text = run("stat", shown.pid).stdout
            for word in [str(shown.pid), endpoint["address"], "shown_endpoint"]:
                self.assertIn(word, text)
            # Tests beside this one show pages that lack fields of the schema.
            self.assertIn(shown.pid, [p["pid"] for p in parsed(self, run("stat", "-j"))["processes"]])
            self.assertIn("shared memory", run("stat", "-v", shown.pid).stdout)

    def test_stat_counts_the_bytes_that_a_program_moved(self):
        for environment, short, long in self.ways():
            with self.subTest(environment), Shown(**environment) as shown:
                def counted(names):
                    return sum(e["counters"][name] for e in self.process("stat", shown)["endpoints"] for name in names)

                moved = 0
                for size in [1, 8, 88]:
                    shown.transfer(size, 3)
                    moved += 3 * size
                    self.assertEqual((counted(short), counted(long)), (moved, 0))
                announced, moved = 0, 0
                # Longer than any message that goes through a ring.
                for size in [640 * KIB, 1024 * KIB]:
                    shown.transfer(size, 3)
                    moved += 3 * size
                    self.assertEqual(counted(long), moved)
                    announced += 3
                self.assertLessEqual(counted(short), 3 * (1 + 8 + 88) + 128 * announced)

    def ways(self):
        """Environments, with the counters of which each byte is in one: of short messages, and of long ones, which
        are announced by a packet."""
        copied = ["shm_copied_in_bytes"]
        yield {}, ["shm_ring_bytes"], ["shm_cma_read_bytes", "shm_cma_write_bytes", *copied]
        yield {"FI_ERDMA_CMA": "off"}, ["shm_ring_bytes"], copied
        with nic_only() as environment:
            yield environment, ["nic_packet_bytes"], ["nic_read_bytes", "nic_write_bytes"]

    def counters(self, shown, kind):
        """The sums over all blocks of a kind."""
        sums = {}
        for block in self.process("stat", shown)[kind]:
            for name, number in block["counters"].items():
                sums[name] = sums.get(name, 0) + number
        return sums

    def test_stat_tells_what_the_nic_takes_inline_from_what_it_fetches(self):
        with nic_only() as environment, Shown(**environment) as shown:
            shown.transfer(8, 3)
            self.assertNotIn("fetched", run("stat", shown.pid).stdout)
            shown.transfer(100, 3)
            counters = self.counters(shown, "endpoints")
            self.assertEqual((counters["nic_packet_bytes"], counters["nic_fetched_bytes"]), (324, 300))
            self.assertRegex(run("stat", shown.pid).stdout, r"NIC packet .* 324 B +-\n +of it: fetched .* 300 B +-\n")
            self.assertIn("erdma_nic_fetched_bytes_total", run("stat", "--prometheus", "-i", "0.05", shown.pid).stdout)
            self.assertEqual(self.counters(shown, "peers")["nic_connects"], 1)

    def test_stat_tells_slots_of_a_ring_from_its_byte_ring(self):
        with Shown() as shown:
            shown.transfer(8, 1000)
            self.assertEqual(self.counters(shown, "endpoints")["shm_byte_ring_bytes"], 0)
            self.assertEqual(self.counters(shown, "peers")["shm_connects"], 1)
            # The peer gives the ring of a busy sender room for long packets.
            while not self.counters(shown, "endpoints")["shm_byte_ring_bytes"]:
                shown.transfer(1000, 100)
            counters = self.counters(shown, "endpoints")
            self.assertGreaterEqual(counters["shm_ring_bytes"], counters["shm_byte_ring_bytes"] + 8 * 1000)
            self.assertRegex(run("stat", shown.pid).stdout, r"shm ring .*\n +of it: byte ring .*\n")
            self.assertIn("erdma_shm_byte_ring_bytes_total", run("stat", "--prometheus", "-i", "0.05", shown.pid).stdout)

    def test_the_end_of_a_run_tells_what_went_which_way(self):
        for log, lines in [("info", 1), ("warn", 0)]:
            with tempfile.TemporaryFile("w+") as said:
                with Shown(stderr=said, FI_ERDMA_LOG=log) as shown:
                    shown.transfer(8, 4)
                said.seek(0)
                found = re.findall(r"all endpoints of this process: inside the host (\d+) bytes by ring, (\d+) by CMA, "
                                   r"(\d+) copied; by NIC (\d+) in packets", said.read())
                self.assertEqual(found, [("32", "0", "0", "0")] * lines)
        with tempfile.TemporaryFile("w+") as said:
            with Shown(stderr=said, FI_ERDMA_LOG="info", FI_ERDMA_CMA="off") as shown:
                shown.transfer(1024 * KIB, 8)
            said.seek(0)
            self.assertRegex(said.read(), rf"0 by CMA, {2 * 8 * 1024 * KIB} copied \(about [\d.e-]+ s of a processor\); by NIC 0 ")

    def costs(self, before=None, **environment):
        """Of 8 messages of 1 MiB: what stat says while their process runs, and its line at the end."""
        with tempfile.TemporaryFile("w+") as said:
            with Shown(stderr=said, before=before, FI_ERDMA_LOG="info", **environment) as shown:
                shown.transfer(1024 * KIB, 8)
                costs = re.findall(r"(?m)^ +SLOWER  (.*)$", run("stat", shown.pid).stdout)
                info = self.document(run("info", "-j", shown.pid), "info")["processes"][0]
                self.assertEqual([cost for endpoint in info["endpoints"] for cost in endpoint["slower"]], costs)
                self.assertEqual(re.findall(r"(?m)^  slower {7}(.*)$", run("info", shown.pid).stdout), costs)
            said.seek(0)
            return costs, re.search("all endpoints of this process: .*", said.read())[0]

    def test_what_is_slower_is_told_with_its_cost_and_code(self):
        size = 8 * 1024 * KIB
        costs, end = self.costs(before=lambda: (refused("process_vm_readv")(), refused("process_vm_writev")()))
        self.assertEqual(costs, ["CMA is refused with 1 of 1 peers: 8.00 MiB copied [W401]; fi_erdma doctor tells the remedy"] * 2)
        self.assertRegex(end, rf" 0 by CMA, {2 * size} copied \(about .* processor\), of these {2 * size} as CMA was refused \[W401\]; ")
        # Who switches CMA off knows it.
        costs, end = self.costs(FI_ERDMA_CMA="off")
        self.assertEqual(costs, [])
        self.assertNotIn("W401", end)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            costs, end = self.costs(LD_PRELOAD=os.path.join(os.path.abspath(BUILD), ".libs/libsofterdma.so"),
                                    SOFTERDMA_DIR=folder, FI_ERDMA_DEVICE="erdma_0", FI_ERDMA_SHM="off", FI_ERDMA_MR_CACHE="off")
        self.assertEqual(set(costs), {"8.00 MiB copied for the NIC: RDMA of copies [W203] (FI_ERDMA_MR_CACHE=off)"})
        self.assertRegex(end, r"by RDMA WRITE, of these \d+ copied \(about .* of a processor\) \[W203\]")

    def test_rates_are_what_was_moved_by_the_time(self):
        with Shown() as shown:
            shown.transfer(8, 1)
            before = self.process("stat", shown)["endpoints"]
            with subprocess.Popen([PROGRAM, "stat", "-j", "-i", "0.5", str(shown.pid)], env=CLEAN, text=True,
                                  stdout=subprocess.PIPE) as looking:
                moved = 8
                while looking.poll() is None:
                    shown.transfer(1 * KIB, 10)
                    moved += 10 * KIB
                document = json.loads(looking.stdout.read())
            if jsonschema:
                jsonschema.Draft202012Validator(SCHEMA).validate(document)
            (process,) = document["processes"]
            sender = max(process["endpoints"], key=lambda e: e["counters"]["shm_ring_bytes"])
            rate = sender["rates"]["shm_ring_bytes"]
            self.assertGreater(rate, 0)
            self.assertLessEqual(rate * document["interval"], sender["counters"]["shm_ring_bytes"])
            self.assertLessEqual(sender["counters"]["shm_ring_bytes"], moved)
            self.assertEqual(max(e["counters"]["shm_ring_bytes"] for e in before), 8)
            idle = min(process["endpoints"], key=lambda e: e["counters"]["shm_ring_bytes"])
            self.assertEqual(idle["rates"]["shm_ring_bytes"], 0)

    def test_intervals_that_are_counted_last_a_second(self):
        with Shown() as shown:
            document = self.document(run("stat", "-j", "-n", "1", shown.pid), "stat")
            self.assertGreaterEqual(document["interval"], 1)

    def test_rows_are_by_path_or_by_rank(self):
        with Shown(PMI_RANK="5") as shown:
            shown.transfer(8, 4)
            self.assertRegex(run("stat", shown.pid).stdout, r"\n +shm ring +- +- +32 B +-\n")
            self.assertRegex(run("stat", "-i", "0.1", shown.pid).stdout, r"\n +shm ring +0 B/s +- +32 B +-\n")
            text = run("stat", "--by", "rank", shown.pid).stdout
            self.assertRegex(text, rf"(?m)^ *{shown.pid} +5 . shown_endpoint +- +- +32 B +0 B$")
            peers = run("stat", "--by", "peer", shown.pid).stdout
            (sender,) = [e["address"] for e in self.process("stat", shown)["endpoints"] if e["counters"]["shm_ring_bytes"]]
            self.assertRegex(peers, rf"(?m)^ *{shown.pid} +5  \S+ +5  shm +\S+ +- +- +32 B +0 B$")
            self.assertNotRegex(peers, rf"{sender} .*32 B")
            self.assertIn("shm_ring_bytes  32 bytes", run("stat", "-v", shown.pid).stdout)
            self.assertEqual(run("stat", "-p", shown.pid).stdout.splitlines()[1].split()[0], str(shown.pid))

    def test_the_connection_to_a_peer_is_shown_of_a_process_that_answers(self):
        with Shown() as shown:
            shown.transfer(8, 4)
            link = rf"(?m)^ *{shown.pid} +-  \S+ +-  shm +(\S+) +- +- "
            self.assertEqual(set(re.findall(link, run("stat", "--by", "peer", shown.pid).stdout)), {"-"})  # it sleeps
            shown.process.stdin.write("poll\n")
            shown.process.stdin.flush()
            self.assertEqual(shown.process.stdout.readline(), "polls\n")
            latest, links = time.monotonic() + 60, ""
            while "up" not in re.findall(link, links):  # it may get no processor for a second
                self.assertLess(time.monotonic(), latest, links)
                links = run("stat", "--by", "peer", shown.pid).stdout
            shown.process.send_signal(signal.SIGUSR1)

    def test_one_device_is_shown_alone_in_each_form(self):
        forms = [[], ["--by", "peer"], ["--by", "rank"], ["--json"], ["--json", "-i", "0.05"], ["-i", "0.05"]]
        with Shown() as shown:
            shown.transfer(8, 4)
            for form in forms:
                here, elsewhere = (run("stat", *form, "-d", device, shown.pid) for device in ["shm", "elsewhere"])
                self.assertIn(str(shown.pid), here.stdout, form)
                self.assertNotIn(str(shown.pid), elsewhere.stdout, form)
                self.assertEqual((here.returncode, elsewhere.returncode), (0, 0))
            self.assertRegex(run("stat", "--by", "rank", "-d", "shm", shown.pid).stdout, r" 32 B +0 B\n")
            (process,) = self.document(run("stat", "-j", "-d", "shm", shown.pid), "stat")["processes"]
            self.assertIsNone(process["process"]["counters"]["shm_ring_bytes"])  # those of closed endpoints
            done = run("stat", "--prometheus", "-d", "shm", shown.pid)
            self.assertEqual((done.returncode, done.stdout), (64, ""))
            self.assertIn("--device", done.stderr)
            self.assertIn("no process shows an endpoint on elsewhere", run("stat", "-d", "elsewhere", shown.pid).stderr)

    def as_nobody(self, *arguments):
        """The program as another user, with a copy that this user can run."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            copy = shutil.copy(PROGRAM, os.path.join(folder, "fi_erdma"))
            return subprocess.run([copy, *arguments], env=CLEAN, text=True, capture_output=True, check=False, timeout=300,
                                  preexec_fn=lambda: (os.setgid(65534), os.setuid(65534)))  # pylint: disable=subprocess-popen-preexec-fn

    def test_processes_that_were_not_looked_at_are_counted(self):
        if os.geteuid() != 0:
            self.skipTest("only root can run as another user")
        refused = r"(?m)^fi_erdma: [1-9]\d* process(es were| was) not looked at: other users run them"
        with Shown() as shown:
            for arguments in [["stat"], ["stat", "--by", "rank"], ["stat", "--prometheus", "-i", "0.05"], ["hang", "-i", "0.05"]]:
                done = self.as_nobody(*arguments)
                self.assertNotIn(str(shown.pid), done.stdout)
                self.assertRegex(done.stderr, refused)
                self.assertNotRegex(run(*arguments, shown.pid).stderr, "not looked at")
            for name in ["stat", "hang"]:
                self.assertGreater(self.document(self.as_nobody(name, "-j", *self.SOON[name]), name)["refused"], 0)
                self.assertEqual(self.document(run(name, "-j", *self.SOON[name], shown.pid), name)["refused"], 0)
            document = self.as_nobody("hang", "-j", "-i", "0.05").stdout
            done = subprocess.run([PROGRAM, "hang", "-"], env=CLEAN, input=document + document, text=True,
                                  capture_output=True, timeout=300, check=False)
            self.assertRegex(done.stderr, refused)

    def test_endpoints_without_room_in_the_page_are_told_and_nothing_is_claimed_of_them(self):
        hidden = "2 open endpoints are not shown"
        with Shown() as shown:
            shown.open_more(257)
            done = run("stat", shown.pid)
            self.assertIn(hidden, done.stderr)
            process = self.process("stat", shown)
            self.assertEqual((len(process["endpoints"]), process["process"]["gauges"]["hidden_endpoints"]), (256, 2))
            # It waits for its input.
            done = run("hang", "-i", "0.2", shown.pid)
            self.assertIn(hidden, done.stderr)
            self.assertIn("does not answer; it may use endpoints that are not shown", done.stdout)
            self.assertNotIn("DOES NOT CALL", done.stdout)

    def test_prometheus_gets_each_path_with_labels(self):
        with Shown(PMI_RANK="5", SLURM_JOB_ID='a"b') as shown:
            shown.transfer(8, 4)
            rows = run("stat", "--prometheus", "-i", "0.05", shown.pid).stdout.splitlines()
            self.assertIn("# TYPE erdma_bytes_total counter", rows)
            labels = rf'pid="{shown.pid}",rank="5",job="a\"b",command="shown_endpoint"'
            self.assertIn(f'erdma_bytes_total{{{labels},path="shm ring",direction="out"}} 32', rows)
            self.assertIn(f'erdma_nic_copied_bytes_total{{{labels}}} 0', rows)
            self.assertNotIn('path="NIC copied"', str(rows))
            # It waits for its input.
            self.assertIn(f'erdma_calls_libfabric{{{labels}}} 0', rows)
            for row in rows:
                self.assertRegex(row, r'^(# (HELP|TYPE) |\w+\{(\w+="([^"\\]|\\.)*",?)+\} \d+(\.\d+)?$)')

    def test_the_dashboard_asks_for_metrics_that_there_are(self):
        with open(os.path.join(SOURCE, "examples/grafana.json"), encoding="utf-8") as file:
            panels = json.load(file)["panels"]
        with Shown(PMI_RANK="5") as shown:
            rows = run("stat", "--prometheus", "-i", "0.05", shown.pid).stdout
        labels = {"instance", *re.findall(r'[{,](\w+)="', rows)}
        # Waits and copies have rows only if there are some.
        labels |= {"reason", "waits_for", "kind"}
        types = dict(re.findall(r"(?m)^# TYPE (\w+) (\w+)$", rows))
        expressions = [target["expr"] for panel in panels for target in panel["targets"]]
        self.assertGreater(len(expressions), 4)
        for expression in expressions:
            names = re.findall(r"erdma_\w+", expression)
            self.assertTrue(names)
            for name in names:
                self.assertEqual(types.get(name), "counter" if "rate(" in expression else "gauge", expression)
            for group in re.findall(r" by \(([^)]*)\)", expression):
                self.assertLessEqual(set(group.split(", ")), labels)

    def test_a_process_that_is_named_twice_is_shown_once(self):
        with Shown() as shown:
            rows = run("stat", "--prometheus", "-i", "0.05", shown.pid, shown.pid, "-p", shown.pid).stdout.splitlines()
            labels = [row.rsplit(" ", 1)[0] for row in rows if not row.startswith("#")]
            self.assertGreater(len(labels), 10)
            self.assertEqual(len(labels), len(set(labels)))
            for name, options in [("hang", ["-i", "0.2"]), ("info", [])]:
                (process,) = self.document(run(name, "-j", *options, shown.pid, shown.pid), name)["processes"]
                self.assertEqual(process["pid"], shown.pid)

    def copied(self, size, before=None, **environment):
        """Bytes of eight messages that were copied, by the code of the reason."""
        with Shown(before=before, **environment) as shown:
            shown.transfer(size, 8)
            text = run("stat", "--prometheus", "-i", "0.05", shown.pid).stdout
        found = re.findall(r'(?m)^erdma_copied_bytes_total\{.*,reason="(W\d+)"\} (\d+)$', text)
        self.assertEqual(len(found), 5)
        return {reason: int(count) for reason, count in found if count != "0"}

    def test_prometheus_gets_copied_bytes_by_the_code_of_the_reason(self):
        mib = 1024 * KIB
        self.assertEqual(self.copied(mib), {})
        # Two endpoints of one process, one of which counts what it sends, and one what it receives.
        self.assertEqual(self.copied(mib, before=lambda: (refused("process_vm_readv")(), refused("process_vm_writev")())),
                         {"W401": 2 * 8 * mib})
        with nic_only() as nic:
            self.assertEqual(self.copied(mib, **nic), {})
            # One endpoint asks for memory that the other could not register.
            self.assertEqual(self.copied(mib, **nic, FI_ERDMA_MR_CACHE="off"), {"W203": 8 * mib})

    def test_prometheus_gets_bytes_copied_for_want_of_userfaultfd(self):
        if os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
            self.skipTest("the provider watches memory by /dev/userfaultfd, which a filter of system calls does not refuse")
        with nic_only() as nic:
            self.assertEqual(self.copied(200 * KIB, **nic, before=refused("userfaultfd")), {"W404": 8 * 200 * KIB})

    def test_live_ends_with_what_the_kernel_counted_of_devices(self):
        with tempfile.TemporaryDirectory() as folder:
            def count(path, number):
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="ascii") as file:
                    file.write(f"{number}\n")

            count("erdma_0/ports/1/hw_counters/hw_tx_bytes_cnt", 2048)
            count("erdma_0/ports/1/hw_counters/hw_rx_bytes_cnt", 3 * 1024 * KIB)
            count("erdma_0/ports/1/hw_counters/hw_tx_packets_cnt", 17)
            count("mlx5_0/ports/1/counters/port_xmit_data", 256)
            count("siw0/ports/1/state", 4)
            done = run("stat", "-l", "-i", "0.05", "-n", "2", "--sysfs", folder)
            blocks = dict(re.findall(r"\n (\w+) / traffic statistics\n(.*?minutes)", done.stdout, flags=re.S))
            self.assertEqual(set(blocks), {"erdma_0", "mlx5_0", "siw0"})
            self.assertRegex(blocks["erdma_0"], r"bytes +3.00 MiB \| +2.00 KiB\n packets +- \| +17\n")
            for word in ["now", "max", "average", "min"]:
                self.assertRegex(blocks["erdma_0"], rf"\n {word} +0 B/s \| +0 B/s\n")
            self.assertRegex(blocks["mlx5_0"], r"bytes +- \| +1.00 KiB\n")
            self.assertRegex(blocks["siw0"], r"bytes +- \| +-\n")
            only = run("stat", "-l", "-i", "0.05", "-n", "1", "-d", "mlx5_0", "--sysfs", folder).stdout
            self.assertIn("mlx5_0 / traffic", only)
            self.assertNotIn("erdma_0", only)
            with subprocess.Popen([PROGRAM, "stat", "-l", "-i", "0.05", "--sysfs", folder], env=CLEAN, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as looking:
                with Shown():
                    self.assertTrue(any("shown_endpoint" in line for line in looking.stdout))
                    looking.send_signal(signal.SIGINT)
                self.assertIn("erdma_0 / traffic", looking.stdout.read())
            self.assertEqual(looking.returncode, 0)

    @contextlib.contextmanager
    def growing(self, path):
        """A counter that is larger each time it is read."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkfifo(path)
        ended = threading.Event()

        def feed():
            for number in range(1, 1 << 30):
                with contextlib.suppress(BrokenPipeError), open(path, "w", encoding="ascii") as file:
                    file.write(f"{number * 1024 * KIB}\n")
                if ended.is_set():
                    return

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            thread.join()
            os.close(reader)

    def live(self, output, source, *arguments):
        """What `stat -l` writes to `output` while a process transfers; `source` is the end to read it from."""
        with Shown() as shown:
            shown.transfer(8, 1)
            with subprocess.Popen([PROGRAM, "stat", "-l", *arguments, str(shown.pid)], env={**CLEAN, "LC_ALL": "C.UTF-8"},
                                  stdout=output) as looking:
                os.close(output)
                text = b""
                while True:
                    shown.transfer(1 * KIB, 10)
                    if not select.select([source], [], [], 0)[0]:
                        continue
                    try:
                        part = os.read(source, 65536)
                    except OSError:  # of a terminal that nobody writes to any more
                        part = b""
                    if not part:
                        break
                    text += part
            self.assertEqual(looking.returncode, 0)
        os.close(source)
        return text.decode().replace("\r\n", "\n")

    def test_live_tells_what_a_process_and_a_device_move(self):
        clear, letters = "\x1b[H\x1b[J", ".:=+*#-"
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as counters:
            for name in ["hw_rx_bytes_cnt", "hw_tx_bytes_cnt"]:
                counters.enter_context(self.growing(os.path.join(folder, "erdma_0/ports/1/hw_counters", name)))
            for ends, clears, bars in [(pty.openpty, 3, letters + "\u2581-\u2588"), (os.pipe, 0, letters)]:
                source, output = ends()
                text = self.live(output, source, "-i", "0.3", "-n", "3", "--sysfs", folder)
                self.assertEqual((text.count(clear), text.count("\x1b")), (clears, 2 * clears))
                text = text.replace(clear, "")
                self.assertEqual(len(re.findall("(?m)^ +PID +RANK ", text)), 3)
                self.assertRegex(text, rf"shm ring +[1-9][\d.]* \w*B/s +- +[\d.]+ \w*B +-  [{bars}]+\n")
                summary = text[text.index("erdma_0 / traffic statistics"):]
                for word in ["now", "max", "average", "min"]:
                    self.assertRegex(summary, rf"\n {word} +[1-9][\d.]* \w+/s \| +[1-9][\d.]* \w+/s\n")

    def test_what_cannot_be_written_is_an_error(self):
        with Shown() as shown, open("/dev/full", "w", encoding="ascii") as full:
            for arguments in [["stat", shown.pid], ["stat", "--prometheus", "-i", "0.05", shown.pid], ["info", shown.pid],
                              ["hang", "-i", "0.05", shown.pid], ["stat", "-l", "-i", "0.01", shown.pid],
                              ["bench", "-S", "8"], ["bench", "-j", "-S", "8"], ["test", "local-read", "-S", "8"],
                              ["test", "local-read", "-S", "8", "-j"]]:
                done = subprocess.run([PROGRAM, *map(str, arguments)], env={**CLEAN, **WITH_PROVIDER}, stdout=full,
                                      stderr=subprocess.PIPE, timeout=300, check=False)
                self.assertEqual(done.returncode, 70, arguments)

    def test_a_signal_ends_it_though_nobody_reads_what_it_writes(self):
        ends = os.pipe()
        for each in ends:
            self.addCleanup(os.close, each)
        os.set_blocking(ends[1], False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(ends[1], b"x" * 4096)
        os.set_blocking(ends[1], True)
        with Shown() as shown:
            looking = subprocess.Popen(  # pylint: disable=consider-using-with
                [PROGRAM, "stat", "-l", "-i", "0.01", str(shown.pid)], env=CLEAN, stdout=ends[1], stderr=subprocess.DEVNULL)
            self.addCleanup(looking.wait)
            self.addCleanup(looking.kill)
            self.await_write(looking)
            looking.send_signal(signal.SIGINT)
            self.assertEqual(looking.wait(timeout=60), 70)

    def test_a_signal_ends_it_though_nobody_reads_what_it_would_write(self):
        """It waits for its next look, and there is room for less than the summary."""
        with tempfile.TemporaryDirectory() as folder, Shown() as shown:
            os.makedirs(os.path.join(folder, "erdma_0/ports/1"))
            ends = os.pipe()
            for each in ends:
                self.addCleanup(os.close, each)
            looking = subprocess.Popen(  # pylint: disable=consider-using-with
                [PROGRAM, "stat", "-l", "-i", "3600", "--sysfs", folder, str(shown.pid)], env=CLEAN, stdout=ends[1],
                stderr=subprocess.DEVNULL)
            self.addCleanup(looking.wait)
            self.addCleanup(looking.kill)
            self.await_call(looking, "rt_sigtimedwait")
            os.set_blocking(ends[1], False)
            with self.assertRaises(BlockingIOError):
                while True:
                    os.write(ends[1], b"x" * 4096)
            os.set_blocking(ends[1], True)
            looking.send_signal(signal.SIGINT)
            self.assertEqual(looking.wait(timeout=60), 70)

    def await_write(self, process):
        """Until it sleeps in a write to its standard output."""
        self.await_call(process, "write", " 0x1")

    def await_call(self, process, name, arguments=""):
        """Until it sleeps in a system call."""
        begins = f"{SYSTEM_CALLS[name]}{arguments} "
        latest = time.monotonic() + 60
        call = ""
        while not call.startswith(begins) and process.poll() is None and time.monotonic() < latest:
            with open(f"/proc/{process.pid}/syscall", encoding="ascii") as file:
                call = file.read()
            os.sched_yield()
        self.assertEqual(call[:len(begins)], begins)

    def test_a_stopped_process_is_shown_and_is_a_hang(self):
        with Shown() as shown:
            self.assertEqual(self.process("hang", shown)["verdict"], "silent")
            shown.stop()
            self.assertEqual(self.process("stat", shown)["state"], "T")
            self.assertEqual(self.process("hang", shown, 2)["verdict"], "stopped")
            self.assertIn("IS STOPPED", run("hang", "-i", "0.2", shown.pid).stdout)

    def test_a_process_that_stands_or_has_ended_is_a_hang_also_without_a_page(self):
        asleep = subprocess.Popen(["sleep", "600"])  # pylint: disable=consider-using-with
        self.addCleanup(asleep.wait)
        self.addCleanup(asleep.kill)
        self.assertEqual(self.process("hang", asleep, 1)["verdict"], "unknown")
        asleep.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, asleep.pid, os.WSTOPPED | os.WNOWAIT)
        self.assertEqual(self.process("hang", asleep, 2)["verdict"], "stopped")
        asleep.kill()
        os.waitid(os.P_PID, asleep.pid, os.WEXITED | os.WNOWAIT)
        self.assertEqual(self.process("hang", asleep, 2)["verdict"], "ended")
        self.assertIn("HAS ENDED", run("hang", "-i", "0.2", asleep.pid).stdout)

    def test_a_page_that_cannot_be_read_is_no_hang_of_others(self):
        strange = "import os, sys; os.memfd_create('erdma-stat'); print(flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", strange], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
            stranger.stdout.readline()
            self.assertIn("not sealed", self.process("hang", stranger, 1)["fault"])
            stranger.stdin.close()

    def test_a_page_that_cannot_be_read_is_no_hang_without_a_pid(self):
        # All of the user are asked: in a namespace, those of this test alone.
        apart = ["unshare", "-rpf", "--mount-proc"]
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
            self.skipTest("no PID namespace is permitted")
        script = ("import os, subprocess, sys; os.memfd_create('erdma-stat'); "
                  "done = subprocess.run([sys.argv[1], 'hang', '-i', '0.1'], capture_output=True, text=True, timeout=300); "
                  "print(os.getpid(), done.returncode, done.stderr)")
        done = subprocess.run([*apart, sys.executable, "-c", script, PROGRAM], env=CLEAN, text=True, capture_output=True,
                              timeout=300, check=False)
        self.assertRegex(done.stdout, r"^(\d+) 0 fi_erdma: \1: the file is not sealed", done.stderr)

    def test_hang_tells_who_moves_bytes_who_polls_and_who_sleeps(self):
        with Shown() as moving, Shown() as sleeping, Shown() as running:
            moving.transfer(8, 1)
            # It polls for a message that nobody sends.
            running.process.stdin.write("poll\n")
            running.process.stdin.flush()
            self.assertEqual(running.process.stdout.readline(), "polls\n")
            pids = [str(p.pid) for p in (moving, sleeping, running)]
            with subprocess.Popen([PROGRAM, "hang", "-j", "-i", "1", *pids], env=CLEAN, text=True,
                                  stdout=subprocess.PIPE) as looking:
                while looking.poll() is None:
                    moving.transfer(1 * KIB, 10)
                document = json.loads(looking.stdout.read())
            running.process.send_signal(signal.SIGUSR1)  # else it never ends, were a verdict wrong
            verdicts = [process["verdict"] for process in document["processes"]]
            self.assertEqual(verdicts, ["moves", "silent", "idle"])
            self.assertEqual([process["calls"] for process in document["processes"]][1:], [False, True])

    def test_a_process_that_opens_and_closes_endpoints_calls_libfabric(self):
        with Shown() as shown:
            with subprocess.Popen([PROGRAM, "hang", "-j", "-i", "1", str(shown.pid)], env=CLEAN, text=True,
                                  stdout=subprocess.PIPE) as looking:
                while looking.poll() is None:
                    shown.reopen()
                document = json.loads(looking.stdout.read())
            self.check_reopening(document)

    def test_what_waits_in_an_endpoint_that_never_answers_is_not_known_from_a_younger_one(self):
        """As a rule the first question is over before the younger endpoint is polled."""
        with Shown() as shown:
            with subprocess.Popen([PROGRAM, "hang", "-j", "-i", "1", str(shown.pid)], env=CLEAN, text=True,
                                  stdout=subprocess.PIPE) as looking:
                begin = time.monotonic()
                while looking.poll() is None:
                    shown.reopen(polls=100_000 if time.monotonic() > begin + 1.3 else 0)
                document = json.loads(looking.stdout.read())
            self.check_reopening(document)

    def check_reopening(self, document):
        """A younger endpoint may answer in any call, the one that closes it too, and be seen before it is closed."""
        (process,) = document["processes"]
        self.assertEqual((process["verdict"], process["calls"]), ("unknown", True))
        self.assertIn(process["says"], ["opened or closed an endpoint just now",
                                        "calls libfabric, and waits for nothing in the endpoints that answered both times"])

    def test_a_process_without_a_page_is_named_with_the_reason(self):
        with Shown(FI_ERDMA_STAT="off") as shown:
            for name in ["stat", "hang"]:
                self.assertIn("no statistics", self.process(name, shown, 1)["fault"])
            for name, options in [*self.SOON.items(), ("info", [])]:
                done = run(name, *options, shown.pid)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(f"{shown.pid}: it shows no statistics", done.stderr)
            done = run("stat", "--prometheus", "-i", "0.05", shown.pid)
            self.assertEqual(done.returncode, 1)
            self.assertNotIn(f'"{shown.pid}"', done.stdout)
            self.assertEqual(done.stderr.count(f"{shown.pid}: it shows no statistics"), 1)
            done = run("info", "-j", shown.pid)
            self.assertIn("fault", self.document(done, "info")["processes"][0])

    def test_info_of_a_process_has_its_settings(self):
        with Shown(FI_ERDMA_CMA="off", FI_ERDMA_JOB_KEY="secret of the job") as shown:
            done = run("info", "-j", shown.pid)
            settings = self.document(done, "info")["processes"][0]["endpoints"][0]["settings"]
            self.assertEqual(settings["FI_ERDMA_CMA"], {"value": "off", "changed": True})
            self.assertEqual(settings["FI_ERDMA_SHM"], {"value": "auto", "changed": False})
            self.assertEqual(settings["FI_ERDMA_JOB_KEY"], {"value": "(not shown)", "changed": True})
            text = run("info", shown.pid).stdout
            self.assertRegex(text, r"FI_ERDMA_CMA +off\n")
            self.assertRegex(text, r"FI_ERDMA_SHM +auto  \(default\)\n")
            self.assertNotIn("secret", done.stdout + text + run("stat", "-v", shown.pid).stdout)

    def test_info_of_a_process_is_a_table_of_sizes_and_paths(self):
        with Shown(PMI_RANK="3", PMI_SIZE="16", FI_ERDMA_SHM_EAGER_SIZE="4096") as shown:
            (process,) = self.document(run("info", "-j", shown.pid), "info")["processes"]
            here = [{"where": "this host", "from": 0, "to": 4096, "path": "ring of shared memory"},
                    {"where": "this host", "from": 4097, "to": None, "path": "CMA where the kernel permits, else copied"}]
            self.assertEqual(process["endpoints"][0]["sizes"], here)
            text = run("info", shown.pid).stdout
            self.assertRegex(text, rf"^pid {shown.pid}  rank 3 of 16  shown_endpoint  erdma [\d.]+  libfabric [\d.]+\n")
            self.assertRegex(text, r"\n  this host +0\.\.4096 +ring .*\n  this host +4097\.\. +CMA")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, Shown(
                LD_PRELOAD=os.path.join(os.path.abspath(BUILD), ".libs/libsofterdma.so"), SOFTERDMA_DIR=folder,
                FI_ERDMA_DEVICE="erdma_0", FI_ERDMA_MR_CACHE="off") as shown:
            (process,) = self.document(run("info", "-j", shown.pid), "info")["processes"]
            self.assertEqual([[size["from"], size["path"]] for size in process["endpoints"][0]["sizes"][2:]],
                             [[0, "packet of the NIC"], [8193, "RDMA WRITE, of copies"]])

    def test_info_tries_what_a_program_gets_here(self):
        done = run("info", "-j", **WITH_PROVIDER, FI_ERDMA_TX_SIZE="64")
        document = self.document(done, "info")
        self.assertEqual((done.returncode, document["unknown"]), (0, []), done.stdout)
        self.assertTrue(document["provider"].endswith("/liberdma-fi.so"))
        self.assertRegex(document["provider_version"], r"^\d+\.\d+$")
        (endpoint,) = document["endpoints"]
        self.assertEqual(endpoint["device"], "shm")
        self.assertEqual(endpoint["settings"]["FI_ERDMA_TX_SIZE"], {"value": "64", "changed": True})
        self.assertRegex(run("info", **WITH_PROVIDER).stdout, r"^libfabric \d+\.\d+  /\S+\nprovider \d+\.\d+  /\S+/liberdma-fi\.so\n")

    def test_info_names_the_variable_that_was_meant(self):
        variables = {**WITH_PROVIDER, "FI_ERDMA_DEVCE": "secret", "FI_ERDMA_XYZ": "1"}
        done = run("info", "-j", **variables)
        unknown = self.document(done, "info")["unknown"]
        self.assertEqual(done.returncode, 1)
        self.assertCountEqual(unknown, [{"name": "FI_ERDMA_DEVCE", "meant": "FI_ERDMA_DEVICE"},
                                        {"name": "FI_ERDMA_XYZ", "meant": None}])
        text = run("info", **variables).stdout
        self.assertIn("FI_ERDMA_DEVCE does not exist in this version. Did you mean FI_ERDMA_DEVICE?", text)
        self.assertNotIn("secret", text)

    def test_info_says_what_is_missing(self):
        for variables in [{**WITH_PROVIDER, "FI_PROVIDER_PATH": "/nowhere"},
                          {**WITH_PROVIDER, "FI_ERDMA_DEVICE": "no_such_device"}]:
            done = run("info", "-j", **variables)
            self.assertEqual(done.returncode, 1)
            self.assertIn("fault", self.document(done, "info"))
            self.assertIn("fi_erdma: ", run("info", **variables).stderr)
        document = self.document(run("info", "-j", **WITH_PROVIDER, FI_ERDMA_STAT="off"), "info")
        self.assertEqual(document["endpoints"], [])
        self.assertIn("no statistics", document["page"])

    def test_nothing_but_text_is_printed(self):
        with Shown() as shown:
            for arguments in [["stat", "-v"], ["hang", "-i", "0.2"], ["info", shown.pid]]:
                self.assertNotRegex(run(*arguments, TERM="xterm-256color").stdout, r"[^\n -~]")

    def test_the_program_needs_no_libfabric(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        self.assertNotRegex(libraries, "libfabric|ibverbs|sodium")
        with tempfile.TemporaryDirectory() as folder, Shown() as shown:
            with open(os.path.join(folder, "libfabric.so.1"), "w", encoding="ascii") as file:
                file.write("no library")
            self.assertIn("can't be loaded", run("doctor", "--for", "nccl", LD_LIBRARY_PATH=folder).stdout)
            self.assertIn("shown_endpoint", run("stat", shown.pid, LD_LIBRARY_PATH=folder).stdout)
            self.assertIn("DOES NOT CALL", run("hang", "-i", "0.2", shown.pid, LD_LIBRARY_PATH=folder).stdout)

    def completed(self, *words):
        script = '. "$0"; COMP_WORDS=(fi_erdma "$@") COMP_CWORD=$#; _fi_erdma; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", script, COMPLETION, *words], capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_completion_offers_commands_options_and_processes(self):
        self.assertEqual(self.completed("st"), ["stat"])
        self.assertEqual(self.completed("stat", "--js"), ["--json"])
        self.assertEqual(self.completed("stat", "--p"), ["--pid", "--prometheus"])
        with Shown() as shown:
            self.assertIn(str(shown.pid), self.completed("stat", ""))

    def test_completion_offers_no_option_that_another_one_excludes(self):
        for device in [["-d", "shm"], ["--device", "shm"], ["--device=shm"], ["--device", "=", "shm"], ["-j"], ["-v"], ["--by", "peer"]]:
            self.assertEqual(self.completed("stat", *device, "--p"), ["--pid"])
        self.assertEqual(self.completed("stat", "--prometheus", "--d"), [])
        self.assertCountEqual(self.completed("doctor", "--job", "--"), ["--help", "--job"])
        self.assertEqual(self.completed("doctor", "-T", "3", "--jo"), [])
        self.assertCountEqual(self.completed("doctor", "--for", "nccl", "--"), ["--json", "--help", "--for", "--sysfs", "--limit"])
        # What the program refuses is what is not offered.
        values = {"--by": "peer", "--for": "nccl", "--pid": "1", "--device": "shm", "--peer": "h", "--sysfs": "/", "--port": "9"}
        for command in ["stat", "doctor"]:
            text = run(command, "--help").stdout
            for first in self.options(command):
                offered = self.completed(command, first, *([values[first]] if first in values else []), "--")
                for second in {*self.options(command)} - {first, "--help"}:
                    refused = re.search(rf"(?m)^ +(?:-\w,)?{first}\b.* Excludes:.* {second}\b", text)
                    self.assertEqual(second in offered, not refused, (command, first, second))

    def test_completion_offers_files_that_doctor_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ["doctor.a", "doctor.b", "other"]:
                with open(os.path.join(folder, name), "w", encoding="ascii"):
                    pass
            files = [os.path.join(folder, name) for name in ["doctor.a", "doctor.b"]]
            self.assertCountEqual(self.completed("doctor", "--job", os.path.join(folder, "doc")), files)
            self.assertEqual(self.completed("doctor", os.path.join(folder, "doc")), [])

    def values(self, command, option):
        """Those that the help of a command lists for an option."""
        found = re.search(rf"(?m)^ +(?:-\w,)?{option} \S+:{{([^}}]+)}}", run(command, "--help").stdout)
        return found[1].split(",") if found else []

    def test_completion_offers_the_values_of_an_option(self):
        choices = 0
        for command in self.commands():
            for option in self.options(command):
                values = self.values(command, option)
                if option == "--refuse":
                    values = ["readv", "writev", "readv,writev", "none"]  # one of them has a comma
                if values:
                    choices += 1
                    self.assertCountEqual(self.completed(command, option, ""), values, (command, option))
                    self.assertCountEqual(self.completed(command, option, "=", ""), values, (command, option))
                    self.assertEqual(self.completed(command, option, "=", values[0]), [v for v in values if v.startswith(values[0])])
                    self.assertCountEqual(self.completed(command, option, "="), values)
        self.assertGreaterEqual(choices, 10)
        self.assertEqual(self.completed("stat", "--by", "p"), ["path", "peer"])
        self.assertIn("shm", self.completed("stat", "-d", ""))
        self.assertIn("shm", self.completed("bench", "-d", "s"))
        self.assertEqual(self.completed("test", "refused-cma", ""), ["refused-cma", "local-read", "peer-death"])

    def commands(self):
        commands = re.findall(r"^  (\w+) {2,}", run("--help").stdout.split("Subcommands:")[1], flags=re.M)
        self.assertGreaterEqual(set(commands), {"stat", "hang", "info"})
        return commands

    def options(self, command):
        options = re.findall(r"(?m)^ +(?:-\w,)?(--[a-z]+(?:-[a-z]+)*)", run(command, "--help").stdout)
        self.assertIn("--json", options)
        return options

    def test_the_manual_page_and_the_completion_have_every_command_and_option(self):
        with open(os.path.join(SOURCE, "man/fi_erdma.1.md"), encoding="utf-8") as page:
            manual = page.read().replace("\\", "")
        self.assertCountEqual(self.completed(""), [*self.commands(), "--help", "--version"])
        for command in self.commands():
            self.assertIn(f"**{command}**", manual)
            for option in self.options(command):
                self.assertIn(f"**{option}**", manual)
            self.assertCountEqual(self.completed(command, "--"), self.options(command), command)


class Pair(unittest.TestCase):
    """bench and test: what test/clients and test/nic run besides."""

    def document(self, done, name, status=0):
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        document = parsed(self, done)
        self.assertEqual(document["schema"], f"fi_erdma.{name}/1")
        if jsonschema:
            jsonschema.Draft202012Validator(SCHEMA).validate(document)
        return document

    def test_bench_tells_bytes_by_path_and_speed(self):
        document = self.document(run("bench", "-j", "-S", "8,64K", **WITH_PROVIDER, FI_ERDMA_CMA="off"), "bench")
        self.assertEqual([size["bytes"] for size in document["sizes"]], [8, 64 * KIB])
        for size in document["sizes"]:
            self.assertGreater(size["bytes_per_second"], 0)
        self.assertGreaterEqual(sum(document["paths"].values()), document["payload"])
        text = run("bench", "-S", "1M", **WITH_PROVIDER).stdout
        self.assertRegex(text, r"1\.00 MiB +\d\S* \w*iB/s\n")

    def test_the_screens_of_the_documents_have_the_columns_of_today(self):
        """docs/capture-screens renews them. The screen of `hang` has sentences and no columns, so it is not compared."""
        with open(os.path.join(SOURCE, "docs/statistics.md"), encoding="utf-8") as file:
            page = file.read()
        screens = dict(re.findall(r"<!-- screen: ([^>]+) -->\n```\n(.*?)^```$", page, flags=re.S | re.M))
        self.assertEqual(set(screens), {"stat -l", "info", "hang", "bench"})
        with Shown() as shown:
            shown.transfer(8, 1)
            texts = {"stat -l": run("stat", "-i", "0.1", shown.pid).stdout, "info": run("info", shown.pid).stdout,
                     "bench": run("bench", "-S", "8", **WITH_PROVIDER).stdout}
        for name, text in texts.items():
            # Words in capitals are names of columns and of settings.
            head = re.compile(r"(?m)^ +(?=PID|PATH|SIZE|FI_ERDMA_\w+ )([A-Z_/ ]+)(?:$|(?<= )[^A-Z])")
            todays, documented = ({" ".join(line.split()) for line in head.findall(each)} for each in (text, screens[name]))
            self.assertEqual(todays - documented, set(), name)
            self.assertTrue(todays, name)

    def test_bench_fails_where_bytes_go_another_way_or_are_wrong(self):
        document = self.document(run("bench", "-j", "-S", "8", "--expect", "nic", **WITH_PROVIDER), "bench", 2)
        self.assertIn("nic carried 0 of", document["fault"])
        self.assertEqual([size["bytes"] for size in document["sizes"]], [8])
        self.assertGreaterEqual(document["paths"]["shm_ring_bytes"], document["payload"])
        spoilt = run("bench", "-j", "-S", "0,8", "--spoil", **WITH_PROVIDER)
        document = self.document(spoilt, "bench", 2)
        # The side that finds it first says it, and is gone for the other one.
        self.assertIn("is wrong", document["fault"] + spoilt.stderr)
        self.assertEqual([size["bytes"] for size in document["sizes"]], [0])
        self.assertEqual(run("bench", "-p", "none", **WITH_PROVIDER).returncode, 1)
        self.assertEqual(run("bench", "--expect", "shm", "-S", "8", **WITH_PROVIDER, FI_ERDMA_STAT="off").returncode, 1)

    def test_bench_tells_which_signal_ended_a_side(self):
        plant = refused("process_vm_readv", KILL)
        done = run("bench", "-j", "-S", "8,1M", "--operation", "read", **WITH_PROVIDER, before=plant)
        document = self.document(done, "bench", 2)
        self.assertEqual(document["fault"], "a side died: Bad system call")
        self.assertIn([size["bytes"] for size in document.get("sizes", [])], [[], [8]])
        self.assertIn("a side died: Bad system call", done.stderr)
        port = free_port()
        serve(self, "bench", "--serve", "-P", port, "-S", "8,1M", "--operation", "read", **WITH_PROVIDER)
        done = run("bench", "-j", "--peer", "127.0.0.1", "-P", port, "-S", "8,1M", "--operation", "read", **WITH_PROVIDER,
                   before=plant)
        self.assertEqual(self.document(done, "bench", 2)["fault"], "a side died: Bad system call")
        done = run("bench", "-S", "1M", "--operation", "read", **WITH_PROVIDER, before=plant)
        self.assertEqual(done.returncode, 2)
        self.assertIn("a side died: Bad system call", done.stderr)

    def test_sides_find_each_other_once_and_end(self):
        port = free_port()
        server = serve(self, "bench", "--serve", "-P", port, "-S", "8", **WITH_PROVIDER)
        client = run("bench", "--peer", "127.0.0.1", "-P", port, "-S", "8", **WITH_PROVIDER)
        self.assertEqual(client.returncode, 0, client.stderr)
        self.assertEqual(server.communicate(timeout=60)[0], "")
        self.assertEqual(server.returncode, 0)
        alone = run("bench", "--serve", "-P", port, "-T", "0.1", **WITH_PROVIDER)
        self.assertEqual(alone.returncode, 1)
        self.assertIn("nobody came within 0.1 s", alone.stderr)
        client = run("bench", "-j", "--peer", "127.0.0.1", "-P", port, "-T", "0.1", **WITH_PROVIDER)
        self.assertIn("connect to 127.0.0.1", self.document(client, "bench", 2)["fault"])

    def sides(self, *options, **environment):
        """Both, in text; the client's is the first."""
        port = free_port()
        with subprocess.Popen([PROGRAM, *options, "--serve", "-P", port], env={**CLEAN, **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            client = run(*options, "--peer", "127.0.0.1", "-P", port, **environment)
            said = server.communicate(timeout=300)
        return client, subprocess.CompletedProcess([], server.returncode, *said)

    def test_each_test_of_two_sides_is_a_process_of_its_own(self):
        for options, grade, status in [([], "ok  ", 0), (["--spoil"], "NO  ", 2)]:
            for side in self.sides("test", "-S", "8,1M", "-I", "2", *options, **WITH_PROVIDER):
                self.assertEqual(side.returncode, status, side.stdout + side.stderr)
                for name in ["refused-cma", "peer-death"]:
                    self.assertIn(f"  {grade}  {name}\n", side.stdout)

    def test_a_side_that_lacks_something_for_a_test_goes_on_with_the_next(self):
        port = free_port()
        # It may not have the kernel refuse anything to it.
        server = serve(self, "test", "--serve", "-P", port, "-S", "8", "-I", "1", **WITH_PROVIDER, before=refused("prctl"))
        client = run("test", "--peer", "127.0.0.1", "-P", port, "-S", "8", "-I", "1", **WITH_PROVIDER)
        self.assertIn("  ok    peer-death\n", client.stdout, client.stderr)
        said = server.communicate(timeout=300)
        self.assertEqual((server.returncode, said[0]), (1, "  SKIP  refused-cma\n  ok    peer-death\n"), said[1])

    def test_a_side_that_nobody_meets_tries_no_more(self):
        for side in [["--serve"], ["--peer", "127.0.0.1"]]:
            done = run("test", *side, "-P", free_port(), "-T", "0.1", **WITH_PROVIDER)
            self.assertEqual(done.stdout.count("\n"), 1, done.stdout)

    def test_a_parent_that_ignores_the_end_of_children(self):
        def ignore():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for arguments in [["bench", "-S", "8"], ["test", "local-read", "-S", "8"]]:
            self.assertEqual(run(*arguments, **WITH_PROVIDER, before=ignore).returncode, 0, arguments)

    def test_an_address_of_another_length_is_not_given_to_the_provider(self):
        """As a process of another provider has, or one that is no fi_erdma at all."""
        port = free_port()
        with subprocess.Popen([PROGRAM, "bench", "--serve", "-P", port, "-S", "8"], env={**CLEAN, **WITH_PROVIDER},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            self.assertIn("waiting for the other side", server.stderr.readline())
            with socket.create_connection(("127.0.0.1", int(port))) as other:
                def receive():
                    head = other.recv(4, socket.MSG_WAITALL)
                    if len(head) < 4:
                        self.fail(server.communicate(timeout=60)[1])
                    (length,) = struct.unpack("I", head)
                    return other.recv(length, socket.MSG_WAITALL)

                def send(message):
                    other.sendall(struct.pack("I", len(message)) + message)

                send(receive())  # it was asked the same
                name = receive()
                send(name[:1])
                text = server.communicate(timeout=60)[1]
        self.assertEqual(server.returncode, 2, text)
        self.assertIn(f"the address of the other side has 1 byte, not {len(name)}", text)

    def test_tests_are_run_all_or_by_name(self):
        document = self.document(run("test", "-j", **WITH_PROVIDER), "test")
        self.assertEqual([(test["name"], test["grade"]) for test in document["tests"]],
                         [("refused-cma", "ok"), ("local-read", "ok"), ("peer-death", "ok")])
        document = self.document(run("test", "local-read", "-j", "--spoil", **WITH_PROVIDER), "test", 2)
        self.assertEqual([(test["name"], test["grade"]) for test in document["tests"]], [("local-read", "NO")])
        self.assertIn("is wrong", " ".join(document["tests"][0]["said"]))
        self.assertRegex(run("test", "local-read", **WITH_PROVIDER).stdout, r"\n  ok    local-read\n$")
        self.assertEqual(run("test", "-j", "-p", "none", **WITH_PROVIDER).returncode, 1)
        for options in [["local", "-j"], ["-S", "x"], ["--serve", "--peer", "h"], ["local-read", "--peer", "h"],
                        ["-S", "1025G"], ["-S", "17179869184G"], ["-S", "0x10"], ["--burst", "-1"], ["--burst", "1000001"],
                        ["--port", "0"], ["--port", "65536"], ["--port", "1.5"], ["--port", "http"]]:
            self.assertEqual(run("test", *options, **WITH_PROVIDER).returncode, 64, options)
        self.assertEqual(run("bench", "--serve", "-j", **WITH_PROVIDER).returncode, 64)


# --- planted troubles ---------------------------------------------------------------------------------

SYSTEM_CALLS = {"x86_64": {"write": 1, "rt_sigtimedwait": 128, "userfaultfd": 323, "process_vm_readv": 310, "process_vm_writev": 311,
                           "eventfd2": 290, "prctl": 157},
                "aarch64": {"write": 64, "rt_sigtimedwait": 137, "userfaultfd": 282, "process_vm_readv": 270, "process_vm_writev": 271,
                            "eventfd2": 19, "prctl": 167}}[os.uname().machine]
CAP_IPC_LOCK, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 14, 24, 38, 22


REFUSE, KILL = 0x00050000 | 1, 0x80000000  # SECCOMP_RET_ERRNO with EPERM, SECCOMP_RET_KILL_PROCESS


def refused(name, answer=REFUSE):
    """Has a process refused a system call with EPERM, as a sandbox does."""
    rows = [(0x20, 0, 0, 0), (0x15, 0, 1, SYSTEM_CALLS[name]), (0x06, 0, 0, answer), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *row) for row in rows)

    def plant():
        libc = ctypes.CDLL(None, use_errno=True)
        memory = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(memory))
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    return plant


def limited(limit, number):
    def plant():
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(limit, (number, number))
    return plant


class Doctor(unittest.TestCase):
    """Each trouble is planted, and found by its code."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "nic"))
        self.nic = {"FI_PROVIDER_PATH": WITH_PROVIDER["FI_PROVIDER_PATH"], "SOFTERDMA_DIR": os.path.join(self.folder, "nic"),
                    "LD_PRELOAD": os.path.join(os.path.abspath(BUILD), ".libs/libsofterdma.so")}

    def codes(self, *arguments, **environment):
        arguments = arguments or ("--for", "nccl")  # one client, for time
        sysfs = [] if "--peer" in arguments else ["--sysfs", os.path.join(self.folder, "sys")]
        done = run("doctor", "-j", *sysfs, *arguments, **environment)
        document = parsed(self, done)
        if jsonschema:
            jsonschema.Draft202012Validator(SCHEMA).validate(document)
        self.findings = document["findings"]
        grades = {f["grade"] for f in self.findings}
        self.assertEqual(done.returncode, 2 if "NO" in grades else 1 if "SLOW" in grades else 0, done.stdout)
        return {f["code"] for f in self.findings if f["code"]}

    def sysfs(self, path, text):
        path = os.path.join(self.folder, "sys", path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    def test_a_sound_host_has_no_trouble(self):
        self.assertEqual(self.codes(**WITH_PROVIDER), set())
        done = run("doctor", **WITH_PROVIDER)  # all clients
        self.assertIn("No trouble was found.", done.stdout)
        for client in ["nccl SENDRECV", "openmpi 4.1 mtl/ofi", "openmpi 4.1 btl/ofi", "openmpi 5.0 mtl/ofi", "openmpi 5.0 btl/ofi",
                       "mpich 5.0", "oneccl 2021.14", "shmem 1.5.3"]:
            self.assertIn(f"{client}: fi_getinfo offers shm\n", done.stdout)
        self.assertNotIn("nccl RDMA", done.stdout)  # there is no GPU
        rates = r"\S+ .iB/s of \S+ .iB/s"
        self.assertRegex(done.stdout, rf"\n  ok    copied: {rates} for messages and {rates} for RMA of 1 MiB between two processes\n")

    def test_what_differs_between_hosts_is_shown(self):
        def document(host, *texts):
            return json.dumps({"schema": "fi_erdma.doctor/1", "host": host, "findings": [
                {"grade": grade, "group": "bytes", "code": code, "text": text, "more": []} for grade, code, text in texts]})

        def job(text):
            return subprocess.run([PROGRAM, "doctor", "--job"], env=CLEAN, input=text, text=True, capture_output=True,
                                  timeout=300, check=False)

        good, other, slow = ("ok", None, "good"), ("ok", None, "other"), ("SLOW", "W401", "slow")
        done = job(document("a", good) + document("b", good))
        self.assertEqual((done.returncode, done.stdout), (0, "2 hosts: no trouble was found, and nothing differs\n"))
        done = job(document("a", good, slow) + document("b", good, slow, other))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"SLOW  bytes: slow  \[W401\]\n +all hosts\n")
        self.assertRegex(done.stdout, r"ok    bytes: other\n +b\n")
        self.assertNotIn("good", done.stdout)
        self.assertRegex(job(document("a", good)).stdout, "^1 host: no trouble")
        # Why something fails, and its remedy.
        fails = "messages between two processes of this host fail, copied: "
        done = job(document("a", ("NO", "E201", fails + "one")) + document("b", ("NO", "E201", fails + "two")).replace(
            '"more": []', r'"more": ["mend\u001b it"]'))
        self.assertRegex(done.stdout, rf"NO    bytes: {fails}one  \[E201\]\n +a\n  NO    bytes: {fails}two  \[E201\]\n +b\n +mend\? it\n")
        done = job(document("a", good) + document("b", good)[:-1] + ', "fault": "memfd_create"}')
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, r"NO    doctor: it broke off: memfd_create\n +b\n")
        # Containers: each kernel has numbers of its own for network namespaces.
        container, like_it = (("ok", None, "namespaces of its own, as containers have: net; ranks share memory inside one "
                               f"network namespace only, here net:[{number}]") for number in [4026532008, 4026532570])
        self.assertEqual(job(document("a", container) + document("b", like_it)).stdout,
                         "2 hosts: no trouble was found, and nothing differs\n")
        for text in ["[]", ""]:
            self.assertEqual(job(text).returncode, 70)
        files = {"a": document("a", good), "b": document("b", good), "killed": "", "cut": document("d", good)[:-9]}
        for name, text in files.items():
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        paths = {name: os.path.join(self.folder, name) for name in files}
        done = run("doctor", "--job", paths["a"], paths["b"])
        self.assertEqual((done.returncode, done.stdout), (0, "2 hosts: no trouble was found, and nothing differs\n"))
        done = run("doctor", "--job", *paths.values())
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, rf"^  NO    doctor: no whole result .*\n +{paths['cut']}, {paths['killed']}\n4 hosts\n$")
        wrong = {"text": "no trouble was found\n", "other": '{"schema": "fi_erdma.stat/1"}'}
        for name, text in wrong.items():
            paths[name] = os.path.join(self.folder, name)
            with open(paths[name], "w", encoding="utf-8") as file:
                file.write(text)
        done = run("doctor", "--job", paths["a"], "/proc/self/mem", *(paths[name] for name in wrong))
        self.assertEqual(done.returncode, 2)
        is_not = "what came is not the output of fi_erdma doctor --json: it is"
        self.assertEqual(done.stdout, f"  NO    doctor: what came cannot be read\n          /proc/self/mem\n"
                         f"  NO    doctor: {is_not} no JSON\n          {paths['text']}\n"
                         f"  NO    doctor: {is_not} other JSON\n          {paths['other']}\n1 host\n")
        # What holds of all hosts that are known.
        with open(paths["a"], "w", encoding="utf-8") as file:
            file.write(document("a", good, slow))
        self.assertRegex(run("doctor", "--job", paths["a"]).stdout, r"SLOW  bytes: slow  \[W401\]\n +all hosts\n")
        for name in ["killed", "text"]:
            self.assertRegex(run("doctor", "--job", paths["a"], paths[name]).stdout, r"SLOW  bytes: slow  \[W401\]\n +a\n  NO ")
        self.assertEqual(run("doctor", "--job", paths["a"] + "x").returncode, 64)
        self.assertEqual(run("doctor", paths["a"]).returncode, 64)
        self.codes(**WITH_PROVIDER)
        both = json.dumps({"schema": "fi_erdma.doctor/1", "host": "a", "findings": self.findings})
        self.assertRegex(both, r"[\d.]+ .iB/s")
        self.assertEqual(job(both + re.sub(r"[\d.]+ .iB/s", "7.00 MiB/s", both.replace('"a"', '"b"'))).stdout,
                         "2 hosts: no trouble was found, and nothing differs\n")

    def test_the_interface_of_a_device_is_named_with_its_mtu(self):
        self.sysfs("../devices/here/infiniband/erdma_0/ports/1/state", "4: ACTIVE\n")
        self.sysfs("../devices/here/infiniband/erdma_0/ports/1/gid_attrs/ndevs/0", "eth1\n")
        os.makedirs(os.path.join(self.folder, "class/infiniband"))
        os.symlink("../../devices/here/infiniband/erdma_0", os.path.join(self.folder, "class/infiniband/erdma_0"))
        self.sysfs("../class/net/eth1/mtu", "8500\n")
        sysfs = os.path.join(self.folder, "class/infiniband")
        done = run("doctor", "--for", "nccl", "--sysfs", sysfs, **{**WITH_PROVIDER, "FI_ERDMA_DEVICE": ""})
        self.assertIn("erdma_0: port 1 is active, eth1 has MTU 8500", done.stdout)

    def test_a_sound_nic_moves_bytes(self):
        # What a host does not permit to this user is no trouble of the NIC.
        self.assertLessEqual(self.codes(**self.nic), {"W203", "W402", "W404"})
        self.assertTrue([f for f in self.findings if re.match(r"erdma_0 \(\S+, MTU \d+\): messages", f["text"])])
        self.assertIn("erdma_0: 64 queue pairs and regions can be made", str(self.findings))
        self.assertRegex(str(self.findings), r"provider \d+\.\d+  /\S+/liberdma-fi\.so")
        self.assertRegex(str(self.findings), r"erdma_0 .* arrive.*; RDMA(, zero copy| of copies)")

    def test_a_trial_finds_its_page_in_a_namespace_with_other_pids(self):
        # A PID namespace of its own, with the /proc of another.
        probe = subprocess.run(["unshare", "-rpf", "true"], capture_output=True, check=False)
        if probe.returncode:
            self.skipTest("no PID namespace is permitted")
        done = subprocess.run(["unshare", "-rpf", PROGRAM, "doctor", "--for", "nccl", "--sysfs", "/nowhere"],
                              env={**CLEAN, **self.nic}, text=True, capture_output=True, timeout=300, check=False)
        self.assertRegex(done.stdout,
                         r"messages and RMA arrive \(1 MiB: \S+ .iB/s; a copy by this processor: \S+ .iB/s\); shared memory")
        self.assertRegex(done.stdout, "erdma_0.*: .*(all by RDMA WRITE|RDMA READ arrive|long ones are copied)")

    def test_a_parent_that_ignores_the_end_of_children(self):
        def ignore():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            refused("process_vm_readv")()
        self.assertEqual(self.codes(**WITH_PROVIDER, before=ignore), {"W401"})

    def test_no_libfabric(self):
        with open(os.path.join(self.folder, "libfabric.so.1"), "w", encoding="ascii") as file:
            file.write("no library" * 1000)
        self.assertIn("E101", self.codes(**WITH_PROVIDER, LD_LIBRARY_PATH=self.folder))

    def test_no_provider(self):
        self.assertIn("E102", self.codes(**{**WITH_PROVIDER, "FI_PROVIDER_PATH": "/nowhere"}))
        self.assertIn("FI_PROVIDER_PATH is /nowhere: libfabric searches only there", str(self.findings))

    def test_a_provider_that_the_loader_refuses(self):
        with open(os.path.join(self.folder, "liberdma-fi.so"), "w", encoding="ascii") as file:
            file.write("no library" * 1000)
        for form in ["{}", "@{}", "/nowhere:{}"]:  # libfabric 2 has the second
            self.assertIn("E102", self.codes(**{**WITH_PROVIDER, "FI_PROVIDER_PATH": form.format(self.folder)}))
            self.assertIn(f"the loader refuses it: {self.folder}/liberdma-fi.so: invalid ELF header", str(self.findings))

    def test_another_provider_is_asked_for(self):
        self.assertIn("E103", self.codes(**WITH_PROVIDER, FI_PROVIDER="tcp"))

        self.assertIn("E103", self.codes(**WITH_PROVIDER, FI_PROVIDER="^erdma"))
        self.assertNotIn("E103", self.codes(**WITH_PROVIDER, FI_PROVIDER="^tcp"))

    def test_variables_that_leave_no_way(self):
        self.assertIn("E104", self.codes(**WITH_PROVIDER, FI_ERDMA_SHM="off"))
        self.assertIn("FI_ERDMA_SHM=off shared memory", str(self.findings))

    def test_a_trouble_of_doctor_itself_loses_no_report(self):
        for arguments in [["-j"], []]:
            done = run("doctor", *arguments, "--for", "nccl", **WITH_PROVIDER, before=limited(resource.RLIMIT_NOFILE, 4))
            self.assertEqual(done.returncode, 70)
            self.assertIn("memfd_create: Too many open files", done.stderr)
            if arguments:
                document = parsed(self, done)
                if jsonschema:
                    jsonschema.Draft202012Validator(SCHEMA).validate(document)
                self.assertEqual((document["findings"], document["fault"]), ([], "memfd_create: Too many open files"))

    def test_a_device_that_is_not_there(self):
        self.assertIn("E104", self.codes(**{**WITH_PROVIDER, "FI_ERDMA_DEVICE": "no_such_device"}))

    def test_a_misspelt_variable(self):
        self.assertEqual(self.codes(**WITH_PROVIDER, FI_ERDMA_DEVCE="secret"), {"E105"})
        self.assertIn("Did you mean FI_ERDMA_DEVICE?", str(self.findings))
        self.assertNotIn("secret", str(self.findings))

    def test_a_sandbox_refuses_what_endpoints_need(self):
        self.assertIn("E201", self.codes(**WITH_PROVIDER, before=refused("eventfd2")))

    def test_a_nic_whose_peers_refuse(self):
        self.assertIn("E202", self.codes("--for", "nccl", "-T", "3", **self.nic, SOFTERDMA_FAULT="connect refuse times=1000000"))

    def test_messages_arrive_after_a_fork(self):
        self.assertNotIn("E217", self.codes(**self.nic))
        texts = [f["text"] for f in self.findings]
        self.assertIn("inside this host: messages arrive after a fork", texts)
        self.assertIn("erdma_0: messages arrive after a fork", texts)
        self.assertNotIn("E217", self.codes(**self.nic, SOFTERDMA_COPY_ON_FORK="0"))
        self.assertIn("erdma_0: messages arrive after a fork", str(self.findings))

    def test_a_fork_takes_the_memory_of_a_nic_away(self):
        self.assertIn("E217", self.codes(**self.nic, SOFTERDMA_COPY_ON_FORK="0", FI_ERDMA_FORK="unsafe"))
        (finding,) = [f for f in self.findings if f["code"] == "E217"]
        self.assertRegex(finding["text"], "^erdma_0: messages fail after a fork: ")
        self.assertIn("FI_ERDMA_FORK=unsafe is for processes that never fork: unset it", finding["more"])

    def test_a_nic_that_knows_old_memory_only(self):
        if not os.access("/dev/userfaultfd", os.R_OK | os.W_OK) and "W404" in self.codes(**self.nic):
            self.skipTest("no memory stays registered without userfaultfd")
        sound = "erdma_0: fresh bytes arrive from memory that is used again, and from other memory at its address"
        stale = os.path.join(os.path.abspath(BUILD), "test/fi_erdma/.libs/libstalenic.so")
        self.assertIn("E218", self.codes(**{**self.nic, "LD_PRELOAD": f"{stale}:{self.nic['LD_PRELOAD']}"}))
        self.assertIn("erdma_0: messages from memory that was mapped anew are wrong: Input/output error",
                      [f["text"] for f in self.findings if f["code"] == "E218"])
        self.assertNotIn("E218", self.codes(**self.nic))
        self.assertIn(sound, [f["text"] for f in self.findings])

    def test_a_nic_that_refuses_requests(self):
        self.assertIn("E202", self.codes(**self.nic, SOFTERDMA_FAULT="wr n=1 times=1000000 status=rem_access"))

    def test_a_nic_that_registers_nothing(self):
        self.assertLessEqual({"W203"}, self.codes(**self.nic, FI_ERDMA_MR_CACHE="off"))

    def test_shared_memory_is_switched_off(self):
        self.assertIn("W204", self.codes(**self.nic, FI_ERDMA_SHM="off"))

    def test_hints_of_a_client_that_give_nothing(self):
        provider = os.path.join(os.path.abspath(BUILD), ".libs/liberdma-fi.so")
        demanding = {**WITH_PROVIDER, "FI_PROVIDER_PATH": os.path.join(BUILD, "test/fi_erdma/.libs"), "DEMANDED_PROVIDER": provider}
        self.assertEqual(self.codes("--for", "nccl", "mpich", **demanding), {"E301"})
        (finding,) = [finding for finding in self.findings if finding["code"]]
        self.assertEqual(finding["text"], "nccl SENDRECV: fi_getinfo offers nothing: No data available")
        self.assertRegex(str(finding["more"]), r"hints ask tx_attr->inject_size 1048576, offered is \d+")
        self.assertIn("mpich 5.0: fi_getinfo offers shm", [finding["text"] for finding in self.findings])

    def test_settings_of_open_mpi(self):
        """All that they may be is in doctor_openmpi_test.cc."""
        os.mkdir(os.path.join(self.folder, ".openmpi"))
        with open(os.path.join(self.folder, ".openmpi/mca-params.conf"), "w", encoding="ascii") as file:
            file.write("mtl = ^psm,ofi\n")
        # A later file may set pml, as Debian's does.
        variables = {**WITH_PROVIDER, "HOME": self.folder, "OMPI_MCA_pml": "cm"}
        self.assertEqual(self.codes("--for", "openmpi", **variables), {"E302"})
        self.assertIn("mtl = ^psm,ofi", str(self.findings))
        self.assertEqual(self.codes("--for", "openmpi", **variables, OMPI_MCA_mtl="ofi"), set())
        self.assertIn("openmpi: its settings permit libfabric", [f["text"] for f in self.findings])
        self.assertEqual(self.codes("--for", "nccl", **variables), set())

    def test_a_sandbox_refuses_cma(self):
        self.assertEqual(self.codes(**WITH_PROVIDER, before=refused("process_vm_readv")), {"W401"})
        self.assertIn("process_vm_readv: Operation not permitted", str(self.findings))
        self.assertIn("a seccomp filter is active", str(self.findings))
        self.assertIn("a seccomp filter may refuse it", str(self.findings))

        def refuse_both():
            for name in ["process_vm_readv", "process_vm_writev"]:
                refused(name)()
        self.assertEqual(self.codes(**WITH_PROVIDER, before=refuse_both), {"W401"})
        self.assertRegex(str(self.findings), r"copied: [\d.]+ .iB/s for messages and [\d.]+ .iB/s for RMA of 1 MiB between two processes; "
                         "the speed by CMA could not be measured")

    def faulty(self, fault):
        """The environment of a program on a host with this fault."""
        library = os.path.join(os.path.abspath(BUILD), "test/fi_erdma/.libs/libfaultyhost.so")
        return {**WITH_PROVIDER, "LD_PRELOAD": library, "FAULTY_HOST": fault}

    def broken(self, fault, **environment):
        """The texts of what does not work on a host with this fault."""
        self.codes("--for", "nccl", "-T", "6", **self.faulty(fault), **environment)
        return [(f["code"], f["text"]) for f in self.findings if f["grade"] == "NO"]

    def broken_between_processes(self, fault):
        """The path on which messages between two processes fail, and the error."""
        broken, words = self.broken(fault), "messages between two processes of this host fail, "
        self.assertEqual([(code, text[:len(words)]) for code, text in broken], [("E201", words)])
        return broken[0][1][len(words):]

    def test_wrong_bytes_by_cma_between_processes(self):
        self.assertRegex(self.broken_between_processes("cma"), "^by CMA: .*byte 17 is wrong$")
        # No process uses it.
        self.assertEqual(self.broken("cma", FI_ERDMA_CMA="off"), [])
        (found,) = [f["text"] for f in self.findings if f["code"] == "W405"]
        self.assertRegex(found, "; by CMA they fail: .*byte 17 is wrong$")

    def test_two_processes_that_cannot_connect(self):
        self.assertRegex(self.broken_between_processes("passing"), "^copied: .")
        self.assertNotIn("copied: ", str([f for f in self.findings if f["grade"] != "NO"]))

    def test_memory_that_was_mapped_anew_inside_a_host(self):
        self.assertEqual(self.broken("stale", FI_ERDMA_CMA="on"),
                         [("E201", "messages inside this host fail from memory that was mapped anew: Input/output error")])

    def test_cma_is_switched_off(self):
        self.assertEqual(self.codes(**WITH_PROVIDER, FI_ERDMA_CMA="off"), {"W405"})
        self.assertRegex(str(self.findings), "copied: .* of .* for messages")
        self.codes(**self.nic, FI_ERDMA_SHM="off", FI_ERDMA_CMA="off")
        self.assertNotIn("copied: ", str(self.findings))

    def test_what_may_refuse_system_calls_is_always_told(self):
        with open("/proc/self/status", encoding="ascii") as file:
            mode = re.search(r"^Seccomp:\t(\d)$", file.read(), flags=re.M)
        filtered = {None: "no seccomp filter is shown", "2": "a seccomp filter is active"}.get(
            mode and mode[1], "no seccomp filter is active")
        try:
            with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
                scope = f"ptrace_scope is {file.read().strip()}"
        except FileNotFoundError:
            scope = "there is no ptrace_scope (Yama)"
        self.codes(**WITH_PROVIDER)
        self.assertIn(f"{filtered}; {scope}", [f["text"] for f in self.findings if f["grade"] == "ok"])

    def test_namespaces_of_its_own_are_named_and_decide_on_shared_memory(self):
        def told(*options):
            done = subprocess.run(["unshare", *options, PROGRAM, "doctor", "--for", "nccl", "--sysfs", "/nowhere"],
                                  env={**CLEAN, **WITH_PROVIDER}, text=True, capture_output=True, timeout=300, check=False)
            line = r"(?m)^  ok    (.*namespaces.*)$"
            self.assertRegex(done.stdout, line, done.stderr)
            return re.search(line, done.stdout)[1]

        if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
            self.skipTest("no network namespace is permitted")
        initial = {"pid": 0xEFFFFFFC, "ipc": 0xEFFFFFFF}
        of_the_test = "".join(f", {name}" for name, number in initial.items() if os.stat(f"/proc/self/ns/{name}").st_ino != number)
        # A test may ask for the version, to see that the trial of the program agrees.
        fixed = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 18)
        self.assertRegex(told("-rn"), "of its own, as containers have: user" + of_the_test + (", net" if fixed else "(, net)?") +
                         r"; ranks share memory inside one network namespace only, here net:\[\d+\]$")
        self.assertRegex(told("-r"), f"of its own, as containers have: user{of_the_test}(;|$)")
        own = os.stat("/proc/self/ns/net").st_ino
        if own == 0xEFFFFFF9 and fixed:
            self.assertNotIn("net:[", told("-r"))
        elif not fixed:
            self.assertIn(f"here net:[{own}]", told("-r"))

    def test_too_little_locked_memory(self):
        self.assertIn("W402", self.codes(**self.nic, before=limited(resource.RLIMIT_MEMLOCK, 65536)))
        self.assertIn("64 KiB", str(self.findings))

    def test_too_few_descriptors(self):
        self.assertIn("W403", self.codes(**WITH_PROVIDER, before=limited(resource.RLIMIT_NOFILE, 256)))
        self.assertIn("256", str(self.findings))

    def peer(self, limit="30", **environment):
        """The codes of a doctor whose peer is the doctor of this host."""
        port = free_port()
        server = serve(self, "doctor", "--serve", "-P", port, "-T", limit, **environment)
        codes = self.codes("--peer", "127.0.0.1", "-P", port, "-T", limit, **environment)
        self.served = server.communicate(timeout=100)
        self.served_status = server.returncode
        self.texts = " ".join(finding["text"] for finding in self.findings)
        return codes

    def test_a_peer_is_tried_with_bytes_both_ways(self):
        self.assertEqual(self.peer(**WITH_PROVIDER), set())
        for what in ["messages", "RMA writes", "RMA reads"]:
            self.assertRegex(self.texts, rf"{what} arrive both ways \(1 MiB: \S+ \w*iB/s\), by shm ring")
        self.assertEqual((self.served[0], self.served_status), ("  ok    messages\n  ok    RMA writes\n  ok    RMA reads\n", 0))
        self.assertEqual({f["group"] for f in self.findings}, {"libfabric", "peer 127.0.0.1"})
        self.assertNotIn("MTU", self.texts)

    def test_a_local_peer_that_is_met_by_the_nic(self):
        self.assertEqual(self.peer(**self.nic, FI_ERDMA_SHM="off"), {"W205"})
        self.assertRegex(self.texts, "by NIC packets.*: the other side is a process of this host")
        self.assertRegex(self.texts, r"erdma_0.* here, erdma_0.* there")

    def test_a_peer_that_does_not_answer(self):
        self.assertEqual(self.codes("--peer", "127.0.0.1", "-P", free_port(), "-T", "0.1", **WITH_PROVIDER), {"E208"})
        done = run("doctor", "--serve", "-P", free_port(), "-T", "0.1", **WITH_PROVIDER)
        self.assertEqual((done.returncode, done.stdout), (1, "  -     messages\n"))
        for options in [["--serve", "--peer", "h"], ["--serve", "--job"], ["--serve", "-j"]]:
            self.assertEqual(run("doctor", *options).returncode, 64, options)

    def test_a_peer_whose_host_does_not_answer(self):
        # The kernel drops what comes to a queue that is full, as a firewall does.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            queued = [socket.socket() for _ in range(4)]
            for one in queued:
                one.setblocking(one is queued[0])  # it fills the queue, and is there when the call returns
                one.connect_ex(full.getsockname())
            port = full.getsockname()[1]
            self.assertEqual(self.codes("--peer", "127.0.0.1", "-P", port, "-T", "0.1", **WITH_PROVIDER), {"E212"})
            for one in queued:
                one.close()

    def answered(self, words, *options):
        """The codes of a doctor to which something else says these words, and then ends; None: it says nothing."""
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            with subprocess.Popen([PROGRAM, "doctor", "-j", "--peer", "127.0.0.1", "-P", port, *options], text=True,
                                  env={**CLEAN, **WITH_PROVIDER}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as doctor:
                with other.accept()[0] as connection:
                    if words is not None:
                        say_and_end(connection, words)
                    said = doctor.communicate(timeout=300)
        self.findings = parsed(self, subprocess.CompletedProcess([], doctor.returncode, *said))["findings"]
        return {f["code"] for f in self.findings if f["code"]}

    def test_a_peer_that_says_nothing(self):
        self.assertEqual(self.answered(None, "-T", "0.1"), {"E212"})

    def test_a_peer_that_is_something_else(self):
        for words in [b"", b"220 mail.example ESMTP\r\n", struct.pack("I", 5) + b"words"]:
            self.assertEqual(self.answered(words), {"E213"})

    def test_a_peer_of_another_version(self):
        words = b"fi_erdma 0.0.1 doctor: messages"
        self.assertEqual(self.answered(struct.pack("I", len(words)) + words), {"E213"})
        self.assertIn("0.0.1", str(self.findings))

    def test_a_peer_that_falls_silent(self):
        """As one whose host stands still: the doctor ends all the same, and says how far it came."""
        port = free_port()
        server = serve(self, "doctor", "--serve", "-P", port, "-T", "60", before=os.setsid, **WITH_PROVIDER)
        self.addCleanup(os.killpg, server.pid, signal.SIGKILL)
        with subprocess.Popen([PROGRAM, "doctor", "-j", "--peer", "127.0.0.1", "-P", port, "-T", "10"], text=True,
                              env={**CLEAN, **WITH_PROVIDER}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as doctor:
            self.assertEqual(server.stdout.readline(), "  ok    messages\n")
            os.killpg(server.pid, signal.SIGSTOP)
            said = doctor.communicate(timeout=300)
        self.findings = parsed(self, subprocess.CompletedProcess([], doctor.returncode, *said))["findings"]
        self.assertEqual(doctor.returncode, 2)
        self.assertEqual(self.findings[-1]["code"], "E212")
        self.assertIn("127.0.0.1 does not answer any more: ", self.findings[-1]["text"])
        self.assertRegex(str(self.findings), "messages arrive both ways")
        # It may have begun with the next trial.
        self.assertLessEqual({f["code"] for f in self.findings if f["code"]}, {"E210", "E211", "E212"})

    # Commands of two hosts, joined by a cable: each has a network of its own, and a kernel by its name.
    TWO_HOSTS = """
        exec 3< <(exec unshare -nm sh -c 'echo $$; exec sleep infinity')
        read -r there <&3
        trap 'kill $there' EXIT
        on_b() { nsenter -t $there -n -m "$@"; }
        ip link add a0 type veth peer name b0 netns $there || exit 77
        ip address add 10.8.0.1/24 dev a0 && ip link set a0 up && ip link set lo up
        on_b ip address add 10.8.0.2/24 dev b0 && on_b ip link set b0 mtu $MTU_OF_B up && on_b ip link set lo up
        cat /proc/sys/kernel/random/uuid >"$SOFTERDMA_DIR/boot_id"
        on_b mount --bind "$SOFTERDMA_DIR/boot_id" /proc/sys/kernel/random/boot_id || exit 77
        export LD_PRELOAD=$SOFTERDMA
        SOFTERDMA_DEVICES=erdma_0,ip=10.8.0.1 "$0" doctor --serve -T 60 >&2 & server=$!
        SOFTERDMA_DEVICES=erdma_0,ip=10.8.0.2 on_b "$0" doctor -j -T 60 --peer 10.8.0.1
        status=$?
        wait $server || status=70
        exit $status"""

    def peer_on_another_host(self, mtu):
        """The exit status and findings of a doctor whose peer is on the other of two hosts; `mtu` is its own."""
        apart = ["unshare", "-Urnm"]
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode or not shutil.which("ip"):
            self.skipTest("no namespaces are permitted, or there is no ip")
        environment = {**CLEAN, **self.nic, "SOFTERDMA": self.nic["LD_PRELOAD"], "MTU_OF_B": str(mtu),
                       "FI_PROVIDER_PATH": os.path.abspath(WITH_PROVIDER["FI_PROVIDER_PATH"])}
        del environment["LD_PRELOAD"]
        done = subprocess.run([*apart, "bash", "-c", self.TWO_HOSTS, os.path.abspath(PROGRAM)], env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        self.assertIn(done.returncode, [0, 1, 2], done.stderr)
        return done.returncode, parsed(self, done)["findings"]

    def test_a_peer_on_another_host(self):
        status, findings = self.peer_on_another_host(1500)
        # What a host does not permit to this user is no trouble of the way between them.
        self.assertLessEqual({f["code"] for f in findings if f["code"]}, {"W203"}, findings)
        texts = " ".join(f["text"] for f in findings)
        self.assertIn("erdma_0 (b0, MTU 1500) here, erdma_0 (a0, MTU 1500) there", texts)
        for what in ["messages", "RMA writes", "RMA reads"]:
            self.assertRegex(texts, rf"{what} arrive both ways \(1 MiB: \S+ \w*iB/s\), by NIC packets")
        self.assertIn(status, [0, 1])

    def test_a_peer_whose_mtu_differs(self):
        status, findings = self.peer_on_another_host(1400)
        self.assertIn("W215", [f["code"] for f in findings], findings)
        (found,) = [f for f in findings if f["code"] == "W215"]
        self.assertEqual(found["text"], "the MTU differs: erdma_0 (b0, MTU 1400) here, erdma_0 (a0, MTU 1500) there")
        self.assertLessEqual({f["code"] for f in findings if f["code"]}, {"W203", "W215"}, findings)
        self.assertEqual(status, 1)

    def test_strangers_keep_no_doctor_from_its_peer(self):
        port = free_port()
        server = serve(self, "doctor", "--serve", "-P", port, "-T", "30", **WITH_PROVIDER)
        for words in [b"", b"GET / HTTP/1.0\r\n\r\n"]:
            with socket.create_connection(("127.0.0.1", int(port))) as stranger:
                say_and_end(stranger, words)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(512):
                        continue
        self.assertEqual(self.codes("--peer", "127.0.0.1", "-P", port, "-T", "30", **WITH_PROVIDER), set())
        said = server.communicate(timeout=100)
        self.assertEqual(server.returncode, 0)
        self.assertEqual(said[1].count("127.0.0.1 came, and is not the other side: "), 2, said[1])

    def test_a_peer_whose_connection_is_refused(self):
        codes = self.peer("9", **self.nic, FI_ERDMA_SHM="off", SOFTERDMA_FAULT="connect refuse times=100000")
        self.assertEqual(codes, {"E209", "E210", "E211"})
        self.assertEqual(self.served_status, 2)

    def test_a_peer_whose_nic_refuses_one_operation(self):
        plain = {**self.nic, "FI_ERDMA_SHM": "off"}
        codes = self.peer(**plain, FI_ERDMA_RENDEZVOUS="write", SOFTERDMA_FAULT="wr op=read status=rem_access times=100000")
        # A write that is complete when it is delivered ends with a READ.
        self.assertEqual(codes, {"W205", "E210", "E211"})
        codes = self.peer(**plain, FI_ERDMA_RENDEZVOUS="read", SOFTERDMA_FAULT="wr op=write status=rem_access times=100000")
        self.assertEqual(codes, {"W205", "E210"})

    def test_a_sandbox_refuses_userfaultfd(self):
        codes = self.codes(**self.nic, before=refused("userfaultfd"))
        permitted = os.access("/dev/userfaultfd", os.R_OK | os.W_OK)  # another way to the same
        self.assertEqual(codes & {"W404", "W203"}, set() if permitted else {"W404", "W203"})
        self.assertEqual("zero copy is limited" in str(self.findings), not permitted)

    def test_a_port_that_is_down(self):
        self.sysfs("erdma_0/ports/1/state", "1: DOWN\n")
        self.assertIn("E501", self.codes(**{**WITH_PROVIDER, "FI_ERDMA_DEVICE": ""}))
        self.assertIn("E501", self.codes(**{**WITH_PROVIDER, "FI_ERDMA_DEVICE": "erdma_0"}))
        # Containers of jobs without a NIC see those of the host as well.
        self.assertEqual(self.codes(**WITH_PROVIDER), set())
        self.assertIn("erdma_0: not one that FI_ERDMA_DEVICE names", str(self.findings))

    def test_a_port_of_another_driver_that_is_down(self):
        self.sysfs("mlx5_0/ports/1/state", "1: DOWN\n")
        os.makedirs(os.path.join(self.folder, "sys/mlx5_0/device"))
        os.symlink("../../drivers/mlx5_core", os.path.join(self.folder, "sys/mlx5_0/device/driver"))
        self.assertEqual(self.codes(**WITH_PROVIDER), set())
        self.assertIn("E501", self.codes(**{**WITH_PROVIDER, "FI_ERDMA_DEVICE": "mlx5_0"}))

    def test_a_device_whose_file_is_missing(self):
        self.sysfs("erdma_0/ports/1/state", "4: ACTIVE\n")
        without = {**WITH_PROVIDER, "FI_ERDMA_DEVICE": ""}
        self.assertNotIn("E502", self.codes(**without))
        self.sysfs("erdma_0/device/infiniband_verbs/uverbs_of_no_host/abi_version", "1\n")
        self.assertIn("E502", self.codes(**without))
        self.assertEqual(self.codes(**WITH_PROVIDER), set())

    def test_a_nic_that_has_few_queue_pairs_left(self):
        codes = self.codes(**self.nic, SOFTERDMA_DEVICES="erdma_0,max_qp=40")
        self.assertLessEqual(codes, {"W203", "W402", "W404", "W504"})
        self.assertIn("W504", codes)
        self.assertIn("erdma_0: 40 queue pairs are left of its 40", str(self.findings))

    def test_a_nic_that_has_few_regions_left(self):
        self.assertIn("W505", self.codes(**self.nic, SOFTERDMA_DEVICES="erdma_0,max_mr=40"))
        self.assertRegex(str(self.findings), "erdma_0: [0-9]+ regions .* of its 40")

    def test_no_nic(self):
        self.assertIn("W503", self.codes(**{**self.nic, "SOFTERDMA_DEVICES": "none"}))

    def test_a_cuda_that_does_not_begin(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        os.symlink(re.search(r"libgcc_s\S+ => (\S+)", libraries)[1], os.path.join(self.folder, "libcuda.so.1"))
        self.assertEqual(self.codes(**WITH_PROVIDER, LD_LIBRARY_PATH=self.folder), {"E601"})

    def test_a_cuda_without_a_gpu(self):
        variables = {**WITH_PROVIDER, "LD_LIBRARY_PATH": os.path.join(os.path.abspath(BUILD), "test/softcuda/.libs")}
        for gpus in ["0", "2"]:
            self.assertNotIn("E601", self.codes(**variables, SOFTCUDA_DEVICES=gpus))
            self.assertIn(f"{gpus} GPUs", str(self.findings))
            self.assertEqual("by CUDA IPC" in str(self.findings), gpus == "2")
            rdma = [f["text"] for f in self.findings if f["text"].startswith("nccl RDMA: ")]
            self.assertEqual(len(rdma), int(gpus == "2"))
            for text in rdma:
                self.assertIn(text, ("nccl RDMA: not on shm, which has no PCI address", "nccl RDMA: it needs a later libfabric"))

    def gpu(self):
        return {**self.nic, "LD_LIBRARY_PATH": os.path.join(os.path.abspath(BUILD), "test/softcuda/.libs")}

    def test_a_gpu_is_tried_with_bytes(self):
        self.assertLessEqual(self.codes(**self.gpu()), {"W203", "W402", "W404"})
        clients = [f["text"] for f in self.findings if f["group"] == "applications"]
        # Without API 1.18 of libfabric, aws-ofi-nccl asks for GPU memory in vain.
        self.assertRegex(" ".join(clients), "^nccl SENDRECV: fi_getinfo offers erdma_0, with GPU memory nccl RDMA: "
                         "fi_getinfo offers erdma_0, with GPU memory$|^nccl SENDRECV: fi_getinfo offers erdma_0 "
                         "nccl RDMA: it needs a later libfabric$")
        self.assertIn("erdma_0: GPU memory also works without calls of CUDA", str(self.findings))
        texts = [f["text"] for f in self.findings if f["group"] == "gpu"]
        self.assertRegex(texts[1], r"^inside this host: messages of GPU memory arrive \(1 MiB: .*\), by CUDA IPC$")
        self.assertRegex(texts[2], r"^erdma_0: messages of GPU memory arrive \(1 MiB: .*\), by GPUDirect$")

    def test_a_gpu_whose_memory_is_copied(self):
        self.assertIn("W602", self.codes(**self.gpu(), FI_ERDMA_CUDA_IPC="off"))
        self.assertIn("inside this host: messages of GPU memory arrive", str(self.findings))
        self.codes(**self.gpu(), FI_ERDMA_MR_CACHE="off")
        self.assertEqual([f["text"].split(":")[0] for f in self.findings if f["code"] == "W602"], ["erdma_0"])

    def test_a_gpu_that_the_nic_does_not_reach(self):
        self.assertIn("W604", self.codes(**self.gpu(), SOFTERDMA_PEERMEM="0", SOFTERDMA_DMABUF="0"))
        (finding,) = [f for f in self.findings if f["code"] == "W604"]
        self.assertRegex(finding["text"], "^erdma_0: NCCL does without GPUDirect: .*: Operation not supported$")

    def test_a_gpu_that_is_not_offered(self):
        self.assertIn("E603", self.codes(**self.gpu(), FI_ERDMA_CUDA="off"))

    def test_each_code_is_a_heading_and_the_other_way_round(self):
        found = set()
        sources = os.path.join(SOURCE, "prov")
        for path in [*glob.glob(os.path.join(sources, "fi_erdma/doctor_*.cc")), os.path.join(sources, "erdma/util/notice.cc")]:
            with open(path, encoding="utf-8") as file:
                found |= set(re.findall(r'"([EW]\d{3})"', file.read()))
        with open(os.path.join(SOURCE, "docs/troubleshooting.md"), encoding="utf-8") as file:
            self.assertEqual(found, set(re.findall(r"^### ([EW]\d{3}): ", file.read(), flags=re.M)))


result = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False).result
if not result.wasSuccessful():
    sys.exit(1)
if not jsonschema:
    print("python3-jsonschema is not installed: JSON was not compared with its schema")
    sys.exit(77)
