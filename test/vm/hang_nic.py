# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""hang_nic.py PROGRAM RANK DEVICE_OF_A DEVICE_OF_B: two ranks (test/fi_erdma/rank.cc) on two hosts stand still, and `fi_erdma hang`
must name the rank for which the other waits: first one that a signal stopped, then one that posted no receive."""
import contextlib
import os
import re
import signal
import subprocess
import sys

PROGRAM, RANK, *DEVICES = sys.argv[1:5]
MIB = 1024 * 1024
INTERVALS = ["1", "4", "16"]  # seconds: an emulated rank answers late


class Rank:
    def __init__(self, ending, number, host, device):
        """`ending`: the ExitStack that ends this rank."""
        variables = [f"PMI_RANK={number}", f"FI_ERDMA_DEVICE={device}", "FI_ERDMA_PEER_TIMEOUT=600000"]
        # `ip` and `env` become the rank, so that its process is this one.
        self.process = subprocess.Popen(["ip", "netns", "exec", host, "env", *variables, RANK], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ending.callback(self.end)
        self.pid = self.process.pid
        self.answer("ready")

    def answer(self, wanted="ok"):
        line = self.process.stdout.readline().strip()
        assert wanted in ("", line), f"a rank answers: {line}"
        return line

    def do(self, *command, wanted="ok"):
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        return self.answer(wanted)

    def stop_polling(self):
        self.process.send_signal(signal.SIGUSR1)
        self.answer()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def hangs(ranks, status, *wanted):
    """Whether the text has all that is wanted, at the shortest interval that suffices."""
    for interval in INTERVALS:
        done = subprocess.run([PROGRAM, "hang", "-i", interval, *(str(rank.pid) for rank in ranks)], text=True,
                              capture_output=True, timeout=300, check=False)
        print(done.stdout + done.stderr, flush=True)
        if done.returncode == status and all(re.search(line, done.stdout) for line in wanted):
            return True
    return False


def found_hangs(ending):
    ranks = [Rank(ending, 0, "A", DEVICES[0]), Rank(ending, 1, "B", DEVICES[1])]
    names = [rank.do("name", wanted="") for rank in ranks]
    to = [rank.do("peer", name, wanted="") for rank, name in zip(ranks, reversed(names))]
    # They are connected, in both directions.
    for rank, peer in zip(ranks, to):
        rank.do("recv", peer, 1, 8)
    for rank, peer in zip(ranks, to):
        rank.do("send", peer, 1, 8, 1)
    ranks[1].do("poll")
    ranks[0].do("complete", 2)
    ranks[0].do("recv", to[0], 2, 8)
    ranks[0].do("poll")
    ranks[1].process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, ranks[1].pid, os.WSTOPPED | os.WNOWAIT)
    stopped = hangs(ranks, 2, r"^1 of 2 processes waits; all wait in the end for rank 1 ", r"rank 1  .*IS STOPPED by a signal",
                    r"1 receive of 8 B from rank 1, .*: nothing has come")
    ranks[1].process.send_signal(signal.SIGCONT)
    ranks[0].stop_polling()
    ranks[0].do("send", to[0], 3, MIB, 1)
    ranks[0].do("poll")
    missing = hangs(ranks, 0, r"^1 of 2 processes waits; all wait in the end for rank 1 ",
                    r"1 send of 1.00 MiB to rank 1, .*: rank 1 has 1 of these and no receive that matches")
    print(f"# stopped: {stopped}, missing receive: {missing}")
    return stopped and missing


# Also after a failure, and at the limit of the check, no rank stays behind.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with contextlib.ExitStack() as stack:
    found = found_hangs(stack)
sys.exit(not found)
