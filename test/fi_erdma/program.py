# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""program.py SOURCE BUILD: the program fi_erdma as a user meets it, with processes that really have an
endpoint. What it prints as JSON keeps to prov/fi_erdma/fi_erdma.schema.json."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
PROGRAM = os.path.join(BUILD, "prov/fi_erdma/fi_erdma")
COMPLETION = os.path.join(SOURCE, "prov/fi_erdma/completion/fi_erdma")
CLEAN = {k: v for k, v in os.environ.items() if not re.match(r"FI_|PMI|OMPI_|SLURM_|TORCHELASTIC_", k)}
KIB = 1024
WITH_PROVIDER = {"FI_PROVIDER_PATH": os.path.join(BUILD, ".libs"), "FI_ERDMA_DEVICE": "shm"}

with open(os.path.join(SOURCE, "prov/fi_erdma/fi_erdma.schema.json"), encoding="utf-8") as file:
    SCHEMA = json.load(file)
try:
    import jsonschema
except ImportError:
    jsonschema = None


def run(*arguments, **environment):
    return subprocess.run([PROGRAM, *map(str, arguments)], env={**CLEAN, **environment}, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


class Shown:
    """A process with an endpoint."""

    def __init__(self, **environment):
        self.process = subprocess.Popen([os.path.join(BUILD, "test/fi_erdma/shown_endpoint")],
                                        env={**CLEAN, **environment}, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def __enter__(self):
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0

    def transfer(self, size, count):
        self.process.stdin.write(f"{size} {count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)


class Program(unittest.TestCase):
    def document(self, done, name):
        document = json.loads(done.stdout)
        self.assertEqual(document["schema"], f"fi_erdma.{name}/1")
        if jsonschema:
            jsonschema.Draft202012Validator(SCHEMA).validate(document)
        return document

    def process(self, name, shown, status=0):
        done = run(name, "--json", shown.pid)
        self.assertEqual(done.returncode, status, done.stderr)
        (process,) = self.document(done, name)["processes"]
        self.assertEqual(process["pid"], shown.pid)
        return process

    def test_version_and_help_are_printed_and_wrong_options_refused(self):
        self.assertRegex(run("--version").stdout, r"^fi_erdma \d+\.\d+")
        self.assertIn("stat", run("--help").stdout)
        for arguments in ([], ["no-such-command"], ["stat", "--no-such-option"], ["stat", "-1"], ["stat", "x"]):
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
            self.assertIn(shown.pid, [p["pid"] for p in self.document(run("stat", "-j"), "stat")["processes"]])
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
                for size in [64 * KIB, 1024 * KIB]:
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
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield ({"LD_PRELOAD": os.path.join(os.path.abspath(BUILD), ".libs/libsofterdma.so"),
                    "SOFTERDMA_DIR": folder, "FI_ERDMA_DEVICE": "erdma_0", "FI_ERDMA_SHM": "off"},
                   ["nic_packet_bytes"], ["nic_read_bytes", "nic_write_bytes"])

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

    def test_rows_are_by_path_or_by_rank(self):
        with Shown(PMI_RANK="5") as shown:
            shown.transfer(8, 4)
            self.assertRegex(run("stat", shown.pid).stdout, r"\n +shm ring +- +- +32 B +-\n")
            self.assertRegex(run("stat", "-i", "0.1", shown.pid).stdout, r"\n +shm ring +0 B/s +- +32 B +-\n")
            text = run("stat", "--by", "rank", shown.pid).stdout
            self.assertRegex(text, rf"(?m)^ *{shown.pid} +5 . shown_endpoint +- +- +32 B +0 B$")
            self.assertIn("shm_ring_bytes  32 bytes", run("stat", "-v", shown.pid).stdout)
            self.assertNotIn("shm ring", run("stat", "-d", "elsewhere", shown.pid).stdout)

    def test_prometheus_gets_each_path_with_labels(self):
        with Shown(PMI_RANK="5", SLURM_JOB_ID='a"b') as shown:
            shown.transfer(8, 4)
            rows = run("stat", "--prometheus", shown.pid).stdout.splitlines()
            self.assertIn("# TYPE erdma_bytes_total counter", rows)
            labels = rf'pid="{shown.pid}",rank="5",job="a\"b",command="shown_endpoint"'
            self.assertIn(f'erdma_bytes_total{{{labels},path="shm ring",direction="out"}} 32', rows)
            for row in rows:
                self.assertRegex(row, r'^(# (HELP|TYPE) |\w+\{(\w+="([^"\\]|\\.)*",?)+\} \d+$)')

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
                    while "shown_endpoint" not in looking.stdout.readline():
                        continue
                    looking.send_signal(signal.SIGINT)
                self.assertIn("erdma_0 / traffic", looking.stdout.read())
            self.assertEqual(looking.returncode, 0)

    def test_a_stopped_process_is_shown_and_is_a_hang(self):
        with Shown() as shown:
            self.assertEqual(self.process("hang", shown)["verdict"], "unknown")
            shown.stop()
            self.assertEqual(self.process("stat", shown)["state"], "T")
            self.assertEqual(self.process("hang", shown, 2)["verdict"], "stopped")
            self.assertIn("IS STOPPED", run("hang", shown.pid).stdout)

    def test_a_process_without_a_page_is_named_with_the_reason(self):
        with Shown(FI_ERDMA_STAT="off") as shown:
            for name in ["stat", "hang"]:
                self.assertIn("no statistics", self.process(name, shown, 1)["fault"])
            for name in ["stat", "hang", "info"]:
                done = run(name, shown.pid)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(f"{shown.pid}: it shows no statistics", done.stderr)
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

    def test_info_tries_what_a_program_gets_here(self):
        done = run("info", "-j", **WITH_PROVIDER, FI_ERDMA_TX_SIZE="64")
        document = self.document(done, "info")
        self.assertEqual((done.returncode, document["unknown"]), (0, []), done.stdout)
        self.assertTrue(document["provider"].endswith("/liberdma-fi.so"))
        (endpoint,) = document["endpoints"]
        self.assertEqual(endpoint["device"], "shm")
        self.assertEqual(endpoint["settings"]["FI_ERDMA_TX_SIZE"], {"value": "64", "changed": True})
        self.assertIn("libfabric ", run("info", **WITH_PROVIDER).stdout)

    def test_info_names_the_variable_that_was_meant(self):
        variables = {**WITH_PROVIDER, "FI_ERDMA_DEVCE": "secret", "FI_ERDMA_XYZ": "1"}
        done = run("info", "-j", **variables)
        unknown = self.document(done, "info")["unknown"]
        self.assertEqual(done.returncode, 1)
        self.assertCountEqual(unknown, [{"name": "FI_ERDMA_DEVCE", "meant": "FI_ERDMA_DEVICE"},
                                        {"name": "FI_ERDMA_XYZ", "meant": None}])
        text = run("info", **variables).stdout
        self.assertIn("FI_ERDMA_DEVCE is no variable of this version. Did you mean FI_ERDMA_DEVICE?", text)
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
            for arguments in [["stat", "-v"], ["hang"], ["info", shown.pid]]:
                self.assertNotRegex(run(*arguments, TERM="xterm-256color").stdout, r"[^\n -~]")

    def test_the_program_needs_no_libfabric(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        self.assertNotRegex(libraries, "libfabric|ibverbs|sodium")

    def test_completion_offers_commands_options_and_processes(self):
        def completed(*words):
            script = f'. "$0"; COMP_WORDS=(fi_erdma "$@") COMP_CWORD=$#; _fi_erdma; printf "%s\\n" "${{COMPREPLY[@]}}"'
            done = subprocess.run(["bash", "-c", script, COMPLETION, *words], capture_output=True, text=True,
                                  check=True)
            return done.stdout.split()

        self.assertEqual(completed("st"), ["stat"])
        self.assertEqual(completed("stat", "--js"), ["--json"])
        with Shown() as shown:
            self.assertIn(str(shown.pid), completed("stat", ""))

    def test_the_manual_page_and_the_completion_have_every_command_and_option(self):
        with open(os.path.join(SOURCE, "man/fi_erdma.1.md"), encoding="utf-8") as page:
            manual = page.read().replace("\\", "")
        with open(COMPLETION, encoding="utf-8") as page:
            completion = page.read()
        commands = re.findall(r"^  (\w+) {2,}", run("--help").stdout.split("Subcommands:")[1], flags=re.M)
        self.assertGreaterEqual(set(commands), {"stat", "hang", "info"})
        for command in commands:
            self.assertIn(f"**{command}**", manual)
            self.assertRegex(completion, rf"\b{command}\b")
            for option in re.findall(r"--[a-z]+", run(command, "--help").stdout):
                self.assertIn(f"**{option}**", manual)
                self.assertIn(option, completion)


result = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False).result
if not result.wasSuccessful():
    sys.exit(1)
if not jsonschema:
    print("python3-jsonschema is not installed: JSON was not compared with its schema")
    sys.exit(77)
