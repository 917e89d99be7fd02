# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""hang.py SOURCE BUILD: fi_erdma hang names who waits for whom in jobs that stand still, made of real processes
(rank.cc). What it prints as JSON keeps to prov/fi_erdma/fi_erdma.schema.json. Troubles that only the ranks themselves tell are
planted, too."""
import faulthandler
import fcntl
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

SOURCE, BUILD = sys.argv[1:3]
PROGRAM = os.path.join(BUILD, "prov/fi_erdma/fi_erdma")
RANK = os.path.join(BUILD, "test/fi_erdma/rank")
CLEAN = {k: v for k, v in os.environ.items() if not re.match(r"FI_|PMI|OMPI_|SLURM_|TORCHELASTIC_", k)}
KIB, MIB = 1024, 1024 * 1024
INTERVALS = ["0.3", "1", "3", "10"]  # seconds: a rank without a processor answers late
PATIENCE = 120  # seconds, with one job
MOST_SECONDS = 900

# What a verdict is to people.
SAID = {"unmatched": "polls, and nothing matches", "idle": "calls libfabric, and waits for nothing in it",
        "silent": "DOES NOT CALL libfabric", "stopped": "IS STOPPED by a signal", "moves": "moves bytes",
        "lacks_room": "polls, and lacks room at its peer", "lacks_connection": "polls, and lacks a connection",
        "flushes": "waits for its NIC to flush",
        "unknown": ("began, or opened its page, just now", "calls libfabric, and waits for nothing in the endpoints")}

with open(os.path.join(SOURCE, "prov/fi_erdma/fi_erdma.schema.json"), encoding="utf-8") as file:
    SCHEMA = json.load(file)
try:
    import jsonschema
except ImportError:
    jsonschema = None


class Rank:
    def __init__(self, number, environment, stderr=None):
        self.number = number
        self.process = subprocess.Popen([RANK], env={**CLEAN, **environment, "PMI_RANK": str(number)}, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        self.pid = self.process.pid
        self.peers = {}

    def begin(self):
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, *command):
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()

    def do(self, *command):
        self.tell(*command)
        return self.process.stdout.readline().strip()

    def send(self, to, size, tag=1, count=1, memory="host"):
        assert self.do("send", self.peers[to.number], tag, size, count, memory) == "ok"

    def receive(self, source, size, tag=1, memory="host"):
        assert self.do("recv", "any" if source == "any" else self.peers[source.number], tag, size, memory) == "ok"

    def poll(self):
        assert self.do("poll") == "ok"

    def compute(self):
        assert self.do("compute") == "ok"

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


class Differs(AssertionError):
    """A verdict, or what is told with it, is another one, as of a rank that had no processor for a while."""


class Moves(Differs):
    """The job does not stand still yet."""


class Job(unittest.TestCase):
    def ranks(self, environments, stderr=None):
        """Ranks that know each other."""
        ranks = []
        for number, environment in enumerate(environments):
            ranks.append(Rank(number, environment, stderr))
            self.addCleanup(ranks[-1].end)
            ranks[-1].begin()
        names = [rank.do("name") for rank in ranks]
        for rank in ranks:
            rank.peers = {number: rank.do("peer", name) for number, name in enumerate(names)}
        return ranks

    def nic(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        return {"LD_PRELOAD": os.path.join(os.path.abspath(BUILD), ".libs/libsofterdma.so"),
                "SOFTERDMA_DIR": folder.name, "FI_ERDMA_DEVICE": "erdma_0", "FI_ERDMA_SHM": "off"}


class Hang(Job):
    def job(self, count, **environment):
        return self.ranks([{"FI_ERDMA_DEVICE": "shm", **environment}] * count)

    def hang(self, ranks, *options, status=0, text=None):
        done = subprocess.run([PROGRAM, "hang", *options, *(str(r.pid) for r in ranks)], env=CLEAN, text=True,
                              input=text, capture_output=True, timeout=300, check=False)
        if done.returncode != status and max(done.returncode, status) <= 2 and done.returncode >= 0:
            raise Differs(f"status {done.returncode} instead of {status}: {done.stdout}{done.stderr}")
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def document(self, ranks, *options, status=0):
        document = json.loads(self.hang(ranks, "-j", *options, status=status))
        self.assertEqual(document["schema"], "fi_erdma.hang/1")
        if jsonschema:
            jsonschema.Draft202012Validator(SCHEMA).validate(document)
        return document

    def patiently(self, look):
        """What look says of the shortest interval at which no verdict differs, once the job stands still."""
        latest = time.monotonic() + PATIENCE
        intervals = list(INTERVALS)
        while True:
            try:
                return look(intervals[0])
            except Differs as difference:
                longer = not isinstance(difference, Moves)
                if time.monotonic() > latest or (longer and len(intervals) == 1):
                    raise
                del intervals[:longer]

    def compare(self, verdicts, wanted, shown):
        if verdicts != wanted:
            moves = {"moves", "unknown"} & set(verdicts)
            raise (Moves if moves else Differs)(f"{verdicts} instead of {wanted}: {shown}")

    def standing(self, ranks, verdicts, *options, status=0):
        """A document in which the ranks have these verdicts."""
        document = self.document(ranks, *options, status=status)
        self.compare([process["verdict"] for process in document["processes"]], verdicts, document)
        return document

    def text(self, ranks, verdicts, *options, status=0):
        """The same to people."""
        text = self.hang(ranks, *options, status=status)
        said = re.findall(r"(?m)^  rank \d+  \S+ pid \d+  (.*)", text)
        self.compare([word for line in said for word, says in SAID.items() if line.startswith(says)], verdicts, text)
        return text

    def told(self, ranks, verdicts, *lines, status=0, options=()):
        def look(interval):
            self.standing(ranks, verdicts, "-i", interval, status=status)
            text = self.text(ranks, verdicts, "-i", interval, *options, status=status)
            for line in lines:
                if not re.search(line, text):
                    raise Differs(f"{line!r} is not in: {text}")
            return text
        return self.patiently(look)

    def says(self, text, *lines):
        for line in lines:
            self.assertRegex(text, line)

    def test_a_rank_that_computes_does_not_call_libfabric(self):
        ranks = self.job(3)
        ranks[0].receive(ranks[1], 8)
        ranks[1].receive(ranks[2], 8)
        for rank in ranks[:2]:
            rank.poll()
        ranks[2].compute()
        self.told(ranks, ["unmatched", "unmatched", "silent"],
                  rf"^2 of 3 processes wait; all wait in the end for rank 2 \(\S+ pid {ranks[2].pid}\)\.",
                  r"rank 0  \S+ pid \d+  polls, and nothing matches.*\n +1 receive of 8 B from rank 1, .*: nothing has come",
                  r"rank 2  .*DOES NOT CALL libfabric: it uses \d+ % of a processor")

    def test_a_rank_that_sleeps_outside_does_not_call_libfabric(self):
        ranks = self.job(2)
        ranks[0].receive(ranks[1], 8)
        ranks[0].poll()
        self.told(ranks, ["unmatched", "silent"],
                  r"in the end for rank 1", r"rank 1  .*DOES NOT CALL libfabric: it sleeps")

    def test_a_rank_that_called_libfabric_and_does_not_any_more(self):
        """It answers the first of the two questions, and what it showed then may long be over."""
        ranks = self.job(2)
        ranks[0].receive(ranks[1], 8)

        def answers():
            done = subprocess.run([PROGRAM, "stat", "-j", str(ranks[0].pid)], env=CLEAN, capture_output=True, timeout=300,
                                  check=True)
            return json.loads(done.stdout)["processes"][0]["endpoints"][0]["counters"]["answers"]

        def ends_to_call(interval):
            ranks[0].poll()
            before = answers()
            with subprocess.Popen([PROGRAM, "hang", "-j", "-i", interval, str(ranks[0].pid)], env=CLEAN, text=True,
                                  stdout=subprocess.PIPE) as looking:
                while answers() == before and looking.poll() is None:
                    continue
                ranks[0].signal(signal.SIGUSR1)
                self.assertEqual(ranks[0].process.stdout.readline(), "ok\n")
                (process,) = json.loads(looking.stdout.read())["processes"]
            seen = process["verdict"], process["calls"], process["says"]
            if seen != ("silent", True, "DOES NOT CALL libfabric any more: it sleeps"):
                raise Differs(seen)
        self.patiently(ends_to_call)

    def test_a_rank_that_sleeps_in_libfabric_answers(self):
        for environment in [{}, self.nic()]:
            with self.subTest(environment):
                ranks = self.job(2, **environment)
                ranks[0].receive(ranks[1], 8)
                self.assertEqual(ranks[0].do("wait"), "ok")
                ranks[1].poll()
                self.told(ranks, ["unmatched", "idle"])

    def two_endpoints_each(self):
        ranks = self.job(2)
        for rank in ranks:
            assert rank.do("use", 1) == "ok"
        names = [rank.do("name") for rank in ranks]
        for rank in ranks:
            rank.second = {number: rank.do("peer", name) for number, name in enumerate(names)}
            rank.first = rank.peers
        return ranks

    def use(self, rank, endpoint):
        assert rank.do("use", endpoint) == "ok"
        rank.peers = rank.second if endpoint else rank.first

    def test_an_endpoint_that_no_thread_polls_is_told_from_one_without_a_match(self):
        """Each polls the endpoint at which it waits, and not the one that its peer waits for."""
        ranks = self.two_endpoints_each()
        for number, rank in enumerate(ranks):
            self.use(rank, number)
            rank.send(ranks[1 - number], 4 * MIB)
            rank.poll()
        text = self.told(ranks, ["unmatched", "unmatched"],
                         r"these wait for each other: rank 0 -> rank 1 -> rank 0\.",
                         r"1 send of 4.00 MiB to rank 1, .*; no thread of rank 1 polls that endpoint",
                         r"1 send of 4.00 MiB to rank 0, .*; no thread of rank 0 polls that endpoint", status=2)
        self.assertNotIn("no receive that matches", text)

        document = self.patiently(lambda interval: self.standing(ranks, ["unmatched"] * 2, "-i", interval, status=2))
        calls = [[endpoint["calls"] for endpoint in process["endpoints"]] for process in document["processes"]]
        self.assertEqual(calls, [[True, False], [False, True]])

    def test_what_an_endpoint_showed_before_it_was_polled_no_more_is_not_told(self):
        ranks = self.two_endpoints_each()
        for rank in ranks:
            self.use(rank, 1)
        ranks[0].receive(ranks[1], 8)
        for rank in ranks:
            rank.poll()
        self.told(ranks, ["unmatched", "unknown"], r"1 receive of 8 B from rank 1, .*: nothing has come")
        for rank in ranks:
            rank.signal(signal.SIGUSR1)
            self.assertEqual(rank.process.stdout.readline(), "ok\n")
        ranks[1].send(ranks[0], 8)
        ranks[1].do("complete", 1)
        ranks[0].do("complete", 1)
        for rank in ranks:
            self.use(rank, 0)
            rank.poll()
        text = self.told(ranks, ["unknown", "unknown"],
                         r"calls libfabric, and waits for nothing in the endpoints that answered both times")
        self.assertNotIn("1 receive", text)

    def await_question(self, rank):
        """Until a byte lies in the pipe by which the rank is asked."""
        latest = time.monotonic() + PATIENCE
        while time.monotonic() < latest:
            for link in glob.glob(f"/proc/{rank.pid}/fd/*"):
                if int(os.path.basename(link)) > 2 and os.readlink(link).startswith("pipe:"):
                    with open(link, "rb", buffering=0, opener=lambda path, _: os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as pipe:
                        if any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
                            return
        self.fail("nobody asks")

    def test_what_waits_in_an_endpoint_that_answered_only_the_first_question_is_not_known(self):
        ranks = self.two_endpoints_each()
        for rank in ranks:
            self.use(rank, 1)
        ranks[0].receive(ranks[1], 8)
        ranks[0].poll()
        with subprocess.Popen([PROGRAM, "hang", "-j", "-i", "4", str(ranks[0].pid)], env=CLEAN, text=True,
                              stdout=subprocess.PIPE) as looking:
            self.await_question(ranks[0])
            ranks[0].signal(signal.SIGUSR1)
            self.assertEqual(ranks[0].process.stdout.readline(), "ok\n")
            self.use(ranks[0], 0)
            ranks[0].poll()
            document = json.loads(looking.stdout.read())
        self.assertEqual(document["processes"][0]["verdict"], "unknown")

    def test_a_rank_that_answers_late_is_not_taken_for_idle(self):
        """It waits for a message, and as a rule answers the second question alone."""
        ranks = self.job(2)
        ranks[0].receive(ranks[1], 8)
        ranks[0].compute()
        with subprocess.Popen([PROGRAM, "hang", "-j", "-i", "1", str(ranks[0].pid)], env=CLEAN, text=True,
                              stdout=subprocess.PIPE) as looking:
            self.await_question(ranks[0])
            time.sleep(1.3)
            ranks[0].signal(signal.SIGUSR1)
            self.assertEqual(ranks[0].process.stdout.readline(), "ok\n")
            ranks[0].poll()
            document = json.loads(looking.stdout.read())
        self.assertIn(document["processes"][0]["verdict"], ["unknown", "unmatched", "silent"])

    def test_a_stopped_rank_is_named(self):
        ranks = self.job(2)
        ranks[0].receive(ranks[1], 8)
        ranks[0].poll()
        ranks[1].signal(signal.SIGSTOP)
        self.told(ranks, ["unmatched", "stopped"],
                  r"all wait in the end for rank 1", r"rank 1  .*IS STOPPED by a signal", status=2)

    def test_a_send_without_a_receive(self):
        for environment in [{}, self.nic()]:
            with self.subTest(environment):
                ranks = self.job(2, **environment)
                ranks[0].send(ranks[1], 4 * MIB)
                for rank in ranks:
                    rank.poll()
                self.told(ranks, ["unmatched", "idle"],
                          r"in the end for rank 1",
                          r"1 send of 4.00 MiB to rank 1, .*: rank 1 has 1 of these and no receive that matches",
                          r"rank 1  .*calls libfabric, and waits for nothing in it")

    def test_a_receive_without_a_send(self):
        for environment in [{}, self.nic()]:
            with self.subTest(environment):
                ranks = self.job(2, **environment)
                ranks[0].receive(ranks[1], 64 * KIB)
                for rank in ranks:
                    rank.poll()
                self.told(ranks, ["unmatched", "idle"],
                          r"1 receive of 64.00 KiB from rank 1, .*: nothing has come")

    def test_a_wrong_tag_is_told_from_a_missing_message_and_tags_are_details(self):
        ranks = self.job(2)
        ranks[1].send(ranks[0], 8, tag=0x2b)
        ranks[1].do("complete", 1)
        ranks[0].receive(ranks[1], 8, tag=0x2a)
        for rank in ranks:
            rank.poll()
        text = self.told(ranks, ["unmatched", "idle"], r"from rank 1, .*: what has come does not match \(1 message")
        self.assertNotRegex(text + json.dumps(self.document(ranks)), r"0x2|_tag|\b4[23]\b.*tag")
        self.told(ranks, ["unmatched", "idle"], r"tag 0x2a from rank 1, .*: .*\(1 message with tag 0x2b", options=["-v"])

        document = self.patiently(lambda interval: self.standing(ranks, ["unmatched", "idle"], "-v", "-i", interval))
        (peer,) = document["processes"][0]["peers"]
        self.assertEqual((peer["gauges"]["receive_tag"], peer["gauges"]["unexpected_tag"]), (0x2a, 0x2b))

    def test_two_ranks_that_wait_for_each_other_are_a_circle(self):
        ranks = self.job(3)
        ranks[0].send(ranks[1], 4 * MIB)
        ranks[1].send(ranks[0], 4 * MIB)
        ranks[2].receive(ranks[0], 8)
        for rank in ranks:
            rank.poll()
        self.told(ranks, ["unmatched"] * 3,
                  r"^3 of 3 processes wait; these wait for each other: rank 0 -> rank 1 -> rank 0\.", status=2)

    def test_a_peer_that_cannot_be_seen_is_named_by_its_address(self):
        """As on the other host of two, or one that is dead."""
        ranks = self.job(2, **self.nic())
        ranks[0].send(ranks[1], 8)
        ranks[0].do("complete", 1)
        ranks[0].receive(ranks[1], 8)
        ranks[0].poll()
        self.told(ranks[:1], ["unmatched"],
                  r"^1 of 1 processes waits; all wait in the end for a process that is not seen",
                  r"1 receive of 8 B from \d+\.\d+\.\d+\.\d+:\d+, .*: nothing has come")

    def test_a_dead_host_is_what_all_wait_for(self):
        """A rank of it is stopped, and not looked at: as silent as a host that lost its power."""
        ranks = self.job(3, FI_ERDMA_PEER_TIMEOUT="3600000", **self.nic())
        ranks[2].send(ranks[1], 8)
        ranks[2].do("complete", 1)
        ranks[1].receive(ranks[2], 8)
        ranks[1].do("complete", 1)
        ranks[2].signal(signal.SIGSTOP)
        ranks[0].receive(ranks[1], 8)
        ranks[1].send(ranks[2], 4 * MIB)
        for rank in ranks[:2]:
            rank.poll()
        self.told(ranks[:2], ["unmatched", "unmatched"],
                  r"^2 of 2 processes wait; all wait in the end for a process that is not seen here\.",
                  r"rank 0  .*\n +1 receive of 8 B from rank 1, .*: nothing has come",
                  r"rank 1  .*\n +1 send of 4.00 MiB to \d+\.\d+\.\d+\.\d+:\d+, .*: announced, and not asked for")

    def test_several_processes_that_are_not_seen_are_not_called_one(self):
        ranks = self.job(4)
        for waits, peer in [(0, 2), (1, 3)]:
            ranks[waits].receive(ranks[peer], 8)
            ranks[waits].poll()
        self.told(ranks[:2], ["unmatched", "unmatched"],
                  r"^2 of 2 processes wait; all wait in the end for processes that are not seen here\.")

    def test_prometheus_gets_what_waits_and_for_how_long(self):
        ranks = self.job(2)
        ranks[0].receive(ranks[1], 8)
        ranks[0].poll()
        ranks[1].compute()

        def values():
            done = subprocess.run([PROGRAM, "stat", "--prometheus", *(str(rank.pid) for rank in ranks)], env=CLEAN, text=True,
                                  capture_output=True, timeout=300, check=True)
            rows = re.findall(r'(?m)^erdma_(\w+)\{pid="(\d+)"[^}]*?(?:,(?:kind|waits_for)="(\w+)")?\} ([\d.]+)$', done.stdout)
            return {(name, [str(rank.pid) for rank in ranks].index(pid), label): float(value) for name, pid, label, value in rows}

        latest = time.monotonic() + PATIENCE
        found = {}
        while ("stalled_peers", 0, "message") not in found:
            self.assertLess(time.monotonic(), latest, found)
            found = values()
        self.assertEqual((found["calls_libfabric", 0, ""], found["calls_libfabric", 1, ""]), (1, 0))
        self.assertEqual([found["operations_pending", 0, kind] for kind in ["send", "receive", "unexpected", "matched"]], [0, 1, 0, 0])
        self.assertEqual(found["stalled_peers", 0, "message"], 1)
        self.assertGreaterEqual(found["stalled_seconds", 0, "message"], 1)
        self.assertLess(abs(found["answered_timestamp_seconds", 0, ""] - time.time()), PATIENCE)
        self.assertFalse([name for name in found if name[1] == 1 and name[0] in ("operations_pending", "stalled_peers")])

    def test_what_waits_is_as_old_as_the_first_answer_that_showed_it(self):
        ranks = self.job(2)
        ranks[0].receive(ranks[1], 8)
        ranks[1].send(ranks[0], 4 * MIB, tag=2)
        for rank in ranks:
            rank.poll()

        def waited(interval):
            # A circle: each waits for the other.
            document = self.standing(ranks, ["unmatched", "unmatched"], "-i", interval, status=2)
            one, other = [process["peers"][0]["gauges"] for process in document["processes"]]
            return [one["receive_waited"], one["unexpected_waited"], other["send_waited"]]

        def grows(interval):
            first, begin = waited(interval), time.monotonic_ns()
            text, end = self.text(ranks, ["unmatched", "unmatched"], "-i", interval, status=2), time.monotonic_ns()
            for before, after in zip(first, waited(interval)):
                self.assertGreaterEqual(after, before + end - begin)
            self.says(text, r"receive of 8 B from rank 1, for at least [\d.]+ (s|min): what has come does not match",
                      r"send of 4.00 MiB to rank 0, for at least [\d.]+ (s|min): rank 0 has")
        self.patiently(grows)

    def test_credits_that_do_not_come_back(self):
        for environment in [{}, self.nic()]:
            with self.subTest(environment):
                ranks = self.job(2, **environment)
                ranks[1].receive(ranks[0], 8)
                ranks[0].receive(ranks[1], 8, tag=99)
                ranks[0].send(ranks[1], 8)
                ranks[0].do("complete", 1)
                ranks[1].do("complete", 1)
                ranks[0].send(ranks[1], 88, count=100_000)
                ranks[0].poll()
                self.told(ranks, ["lacks_room", "silent"],
                          r"in the end for rank 1", r"rank 0  .*lacks room at its peer",
                          r"\d+ sends, the oldest of 88 B to rank 1, .*: the connection has no room")

    def test_a_connection_that_is_not_made(self):
        ranks = self.job(2, FI_ERDMA_CONNECT_TIMEOUT="300000", **self.nic())
        ranks[1].signal(signal.SIGSTOP)
        ranks[0].send(ranks[1], 8)
        ranks[0].poll()
        self.told(ranks, ["lacks_connection", "stopped"],
                  r"all wait in the end for rank 1",
                  r"1 send of 8 B to rank 1, .*: there is no connection \(it is connecting\)", status=2)

    def test_memory_for_unexpected_messages_is_used_up(self):
        ranks = self.job(2, FI_ERDMA_UNEXPECTED_SIZE="65536")
        ranks[1].poll()
        ranks[0].send(ranks[1], 64, count=1000)  # of a length that any ring takes
        ranks[0].poll()
        self.told(ranks, ["unmatched", "idle"],
                  r"has \d+ of these and no receive that matches; it keeps no more unexpected messages")

    def test_documents_of_several_hosts_are_one_picture(self):
        ranks = self.job(3)
        ranks[0].receive(ranks[1], 8)
        ranks[1].receive(ranks[2], 8)
        for rank in ranks:
            rank.poll()

        parts = [self.patiently(lambda interval, of=pair: self.standing([of[0]], [of[1]], "-i", interval))
                 for pair in [*zip(ranks, ["unmatched", "unmatched", "idle"]), (ranks[0], "unmatched")]]
        self.says(self.hang([], "-", text="".join(map(json.dumps, parts))),
                  r"^2 of 3 processes wait; all wait in the end for rank 2", r"from rank 1, .*: nothing has come")
        self.hang([], "-", text="", status=70)

    def test_ranks_of_containers_that_share_a_name_are_each_told(self):
        def document(started):
            return json.dumps({"schema": "fi_erdma.hang/1", "processes": [
                {"pid": 1, "host": "a", "verdict": "idle", "says": "-", "process": {"rank": started, "started": started}}]})
        text = self.hang([], "-", text=document(1) + document(2) + document(2))
        self.assertEqual(re.findall(r"rank \d", text), ["rank 1", "rank 2"])

    def test_ranks_of_several_jobs_are_named_with_their_job(self):
        def document(*jobs):
            return json.dumps({"schema": "fi_erdma.hang/1", "processes": [
                {"pid": pid, "host": "a", "verdict": "idle", "says": "-", "process": {"rank": 0, "job": job}}
                for pid, job in enumerate(jobs, 1)]})
        text = self.hang([], "-", text=document("sim", "post", ""))
        self.assertEqual(re.findall(r"^  (rank .*?)  ", text, flags=re.M), ["rank 0 of job sim", "rank 0 of job post", "rank 0"])
        self.assertNotIn("of job", self.hang([], "-", text=document("sim", "sim")))

    def test_documents_are_not_asked_for_what_needs_processes(self):
        for options in [["-", "-j"], ["-", "-i", "1"], ["-", "1"], ["1", "-"]]:
            self.hang([], *options, text="", status=64)

    def test_a_flush_that_never_ends_is_the_own_nics_fault(self):
        """The READ by which rank 0 flushes its simulated GPU has no completion."""
        environment = {"FI_ERDMA_HMEM_RECV_FLUSH": "on", "FI_ERDMA_PEER_TIMEOUT": "3600000", "FI_ERDMA_RENDEZVOUS": "write",
                       **self.gpu(), "SOFTERDMA_FAULT": "wr op=read status=none times=1000", **self.nic()}
        ranks = self.job(2, **environment)
        ranks[0].receive(ranks[1], 4 * MIB, memory="gpu")
        ranks[1].send(ranks[0], 4 * MIB)
        for rank in ranks:
            rank.poll()
        self.told(ranks, ["flushes", "idle"], r"all wait in the end for rank 0",
                  r"rank 0  .*waits for its NIC to flush",
                  r"1 message of 4.00 MiB from rank 1, .*: the NIC does not flush what it wrote")

    def gpu(self):
        return {"RANK_GPU": "1", "LD_LIBRARY_PATH": os.path.join(os.path.abspath(BUILD), "test/softcuda/.libs")}

    def test_stat_counts_what_a_simulated_gpu_sends_and_gets(self):
        names = ["gpu_direct_bytes", "gpu_staged_bytes", "gpu_ipc_bytes", "gpu_flushes"]
        size = 4 * MIB
        direct = {**self.nic(), "FI_ERDMA_HMEM_RECV_FLUSH": "on"}
        for environment, receiver, sender in [(direct, [size, 0, 0, 1], [size, 0, 0, 0]),
                                              ({}, [0, 0, size, 0], [0, 0, 0, 0]),
                                              ({"FI_ERDMA_CUDA_IPC": "off"}, [0, size, 0, 0], [0, size, 0, 0])]:
            with self.subTest(environment):
                ranks = self.job(2, **environment, **self.gpu())
                # Who met may offer memory.
                for done in [1, 2]:
                    ranks[0].receive(ranks[1], 8)
                    ranks[1].send(ranks[0], 8)
                    for rank in ranks:
                        rank.tell("complete", done)
                    for rank in ranks:
                        self.assertEqual(rank.process.stdout.readline(), "ok\n")
                ranks[0].receive(ranks[1], size, memory="gpu")
                ranks[1].send(ranks[0], size, memory="gpu")
                for rank in ranks:
                    rank.tell("complete", 3)
                for rank in ranks:
                    self.assertEqual(rank.process.stdout.readline(), "ok\n")
                done = subprocess.run([PROGRAM, "stat", "-j", *(str(rank.pid) for rank in ranks)], env=CLEAN, text=True,
                                      capture_output=True, timeout=300, check=True)
                document = json.loads(done.stdout)
                if jsonschema:
                    jsonschema.Draft202012Validator(SCHEMA).validate(document)
                counted = [[process["endpoints"][0]["counters"][name] for name in names] for process in document["processes"]]
                self.assertEqual(counted, [receiver, sender])
                text = subprocess.run([PROGRAM, "stat", str(ranks[0].pid)], env=CLEAN, text=True, capture_output=True,
                                      timeout=300, check=True).stdout
                self.assertEqual("SLOWER  4.00 MiB of GPU memory copied through host memory" in text, receiver[1] > 0)
                way = ["GPU direct", "GPU staged", "GPU IPC"][[bool(count) for count in receiver].index(True)]
                self.assertRegex(text, rf" {way} .*4\.00 MiB")

    def test_a_flush_of_another_host_is_told_by_its_document(self):
        peer = {"index": 0, "path": "nic", "address": "192.0.2.1:1", "matched_for": "flush",
                "gauges": {"matched": 1, "matched_bytes": 8192}, "stands": {"matched": True}}
        process = {"pid": 1, "host": "a", "verdict": "flushes", "says": "waits", "process": {"rank": 0}, "peers": [peer]}
        document = {"schema": "fi_erdma.hang/1", "processes": [process]}
        self.says(self.hang([], "-", text=json.dumps(document)), r"all wait in the end for rank 0",
                  r"1 message of 8.00 KiB from 192.0.2.1:1: the NIC does not flush what it wrote")

    def test_who_moves_bytes_does_not_wait(self):
        """Ranks 0 and 1 exchange long messages, and rank 2 waits for rank 3 or for rank 1."""
        def process(rank, verdict, *peers):
            return {"pid": rank + 1, "host": "a", "verdict": verdict, "says": verdict, "process": {"rank": rank},
                    "endpoints": [{"address": f"x{rank}", "device": "shm"}],
                    "peers": [{"path": "shm", "address": f"x{peer}", "stands": {"sends": True}, "gauges": {"sends": 1}}
                              for peer in peers]}
        for waits_for in (3, 1):
            documents = [{"schema": "fi_erdma.hang/1", "processes": [each]} for each in
                         [process(0, "moves", 1), process(1, "moves", 0), process(2, "unmatched", waits_for), process(3, "silent")]]
            self.says(self.hang([], "-", text="".join(map(json.dumps, documents))),
                      rf"^1 of 4 processes waits; all wait in the end for rank {waits_for} ", r"rank 0  .*\n +1 send of .* to rank 1")

    def test_what_came_at_another_endpoint_is_not_taken_for_what_a_send_waits_for(self):
        def process(pid, name, peers):
            endpoints = [{"index": index, "address": f"{name}{index}", "device": "shm"} for index in range(2)]
            return {"pid": pid, "host": "a", "verdict": "unmatched", "says": "polls", "process": {"rank": pid},
                    "endpoints": endpoints, "peers": peers}
        for at in range(2):
            sends = {"endpoint": 0, "path": "shm", "address": "y0", "sends_for": "match", "stands": {"sends": True},
                     "gauges": {"sends": 1}}
            others = [{"endpoint": index, "path": "shm", "address": f"x{index}", "gauges": {"unexpected": int(index == at)}}
                      for index in range(2)]
            document = {"schema": "fi_erdma.hang/1", "processes": [process(1, "x", [sends]), process(2, "y", others[::-1])]}
            self.says(self.hang([], "-", text=json.dumps(document)),
                      r"1 send of 0 B to rank 2: " + (r"announced, and not asked for" if at else r"rank 2 has 1 of these"))

    def test_a_large_job_in_which_all_wait_for_all_is_told(self):
        ranks = range(300)
        address = [f"192.0.2.1:{rank}" for rank in ranks]
        stands, gauges = {"sends": True, "receives": True}, {"sends": 1, "receives": 1, "unexpected": 1}
        processes = [{"pid": rank + 1, "host": "a", "verdict": "unmatched", "says": "polls", "process": {"rank": rank},
                      "endpoints": [{"address": address[rank], "device": "erdma_0"}],
                      "peers": [{"path": "nic", "address": address[other], "sends_for": "match", "stands": stands,
                                 "gauges": gauges} for other in ranks if other != rank]} for rank in ranks]
        text = self.hang([], "-", text=json.dumps({"schema": "fi_erdma.hang/1", "processes": processes}), status=2)
        self.says(text, r"^300 of 300 processes wait; these wait for each other: rank 0 -> rank 1 -> rank 0\.",
                  r"rank 299  .*\n(        1 .*\n){8}        and 590 more\n",
                  r"1 send of 0 B to rank 1: rank 1 has 1 of these and no receive that matches")

    def test_a_made_up_job_in_which_many_wait_for_any_of_many_is_told_at_once(self):
        """Each of 20,000 for each of 20,000 would be 400 million lines."""
        def process(pid, verdict, endpoints):
            return {"pid": pid, "host": "a", "verdict": verdict, "says": "-", "process": {"job": "j"}, "endpoints": endpoints}
        waits = [{"address": "x", "device": "shm", "stands": {"any_receives": True}, "gauges": {"any_receives": 1}}]
        processes = [process(pid, "unmatched", waits) for pid in range(1, 20_001)]
        processes += [process(pid, "silent", []) for pid in range(20_001, 40_001)]
        text = self.hang([], "-", text=json.dumps({"schema": "fi_erdma.hang/1", "processes": processes}))
        self.says(text, r"^20000 of 40000 processes wait\.", r"a message of any process: pid 20001 does not call libfabric")
        text = self.hang([], "-", "-v", text=json.dumps({"schema": "fi_erdma.hang/1", "processes": processes[-20_020:]}))
        self.says(text, r"a message of any process: 19984 more are as silent")

    def test_what_is_no_document_is_refused_and_odd_ones_are_survived(self):
        for text in ["x", "[", "{}", '{"schema": "fi_erdma.stat/1"}', '{"schema": "fi_erdma.hang/1", "processes": 1}']:
            self.hang([], "-", text=text, status=70)
        odd = [{}, 1, None, {"pid": "x"}, {"pid": 1, "peers": 7, "endpoints": {}}, {"pid": -1, "host": 3},
               {"pid": 2, "host": "\x1b[2J", "says": "\x1b[2J", "peers": [1, {"stands": 1}, {"stands": {"sends": True}}]}]
        text = self.hang([], "-", text=json.dumps({"schema": "fi_erdma.hang/1", "processes": odd}))
        self.assertNotIn("\x1b", text)
        deep = '{"schema": "fi_erdma.hang/1", "processes": [{"pid": DEEP}, {"pid": 1, "host": DEEP}]}'
        self.says(self.hang([], "-", text=deep.replace("DEEP", "[" * 1000000 + "]" * 1000000)), r"^  pid 1  ")

    def test_a_receive_from_any_process_is_told(self):
        ranks = self.job(2)
        ranks[0].receive("any", 8)
        ranks[0].poll()
        self.told(ranks, ["unmatched", "silent"], r"all wait in the end for rank 1", r"1 receive from any process",
                  r"a message of any process: rank 1 does not call libfabric")


class Notices(Job):
    """Each trouble is planted, and told with its code in a line on standard error of a rank. fi_erdma doctor has no trial for
    these codes. E216 needs two hosts: see unlike_hosts in test/nic."""

    def nic_with_faults(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.faults = os.path.join(folder.name, "faults")
        with open(self.faults, "w", encoding="ascii"):
            pass
        return {**self.nic(), "SOFTERDMA_FAULTS": self.faults}

    def told(self, rank, pattern):
        """A line of the rank that it writes now or later."""
        said = []
        patience = threading.Timer(PATIENCE, rank.process.kill)
        patience.start()
        self.addCleanup(patience.cancel)
        for line in rank.process.stderr:
            said.append(line)
            if re.search(pattern, line):
                return
        self.fail(f"{pattern} is not in {said}")

    def test_a_peer_that_dies_is_told(self):
        one, other = self.ranks([{"FI_ERDMA_DEVICE": "shm"}] * 2, subprocess.PIPE)
        one.send(other, 8)
        one.do("complete", 1)
        one.receive(other, 8)
        other.signal(signal.SIGKILL)
        one.poll()
        self.told(one, r"is lost \(.*\), operations with it end in errors: .* \[E206\]")

    def test_injected_messages_that_no_peer_took_are_told(self):
        one, other = self.ranks([self.nic()] * 2, subprocess.PIPE)
        other.signal(signal.SIGSTOP)
        assert one.do("inject", one.peers[1], 1) == "ok"
        assert one.do("close") == "ok"
        self.told(one, r"closed while peers did not take messages injected for them \[E207\]")

    def test_a_device_that_is_down_is_told(self):
        rank = Rank(0, {**self.nic(), "SOFTERDMA_DEVICES": "erdma_0,state=down"}, subprocess.PIPE)
        self.addCleanup(rank.end)
        self.told(rank, r"erdma_0.* \[E503\]")

    def test_a_port_that_goes_down_during_the_run_is_told(self):
        (rank,) = self.ranks([self.nic_with_faults()], subprocess.PIPE)
        rank.poll()
        with open(self.faults, "w", encoding="ascii") as file:
            file.write("port dev=erdma_0 down\n")
        self.told(rank, r"erdma_0: port 1 is down: .* \[E504\]")


faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
result = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False).result
if not result.wasSuccessful():
    sys.exit(1)
if not jsonschema:
    print("python3-jsonschema is not installed: JSON was not compared with its schema")
    sys.exit(77)
