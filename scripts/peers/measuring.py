"""Measurement for all cases of peers.py: peers in processes of their own, alternating rounds, and the load from other
processes."""

import json
import os
import statistics
import subprocess
import time

TOLERANCE = 1e-4
SETTLE = 0.05  # seconds until a peer's threads are idle


class Worker:
    """A peer in a process of its own that answers lines with lines."""

    processes = []

    def __init__(self, name, *command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(self.process)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended")
        return line.strip()

    def ask(self, line):
        try:
            self.process.stdin.write(str(line) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} ended") from None
        return self.read()

    def request(self, command):
        """The same in JSON."""
        return self.parse(self.ask(json.dumps(command)))

    def parse(self, line):
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer


def timed(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


class Bystanders:
    """Cores that other processes kept busy while the `with` block ran."""

    def __enter__(self):
        self.start, self.before = time.perf_counter(), self.sample()
        return self

    def __exit__(self, *_):
        spent = [now - before for now, before in zip(self.sample(), self.before)]
        self.cores = max(0.0, (spent[0] - spent[1]) / (time.perf_counter() - self.start))

    @staticmethod
    def sample():
        """CPU seconds of the machine, and of this process and its workers."""
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat") as file:
            fields = [int(x) for x in file.readline().split()[1:9]]
        machine = (sum(fields) - fields[3] - fields[4]) / tick
        own = 0
        for worker in [os.getpid(), *(process.pid for process in Worker.processes)]:
            with open(f"/proc/{worker}/stat") as file:
                own += sum(int(x) for x in file.read().rsplit(")", 1)[1].split()[11:13]) / tick
        return machine, own


def measure(case, rounds, ceiling=None):
    """Seconds of every round: of each peer, and of ceiling(), which takes its turn too."""
    seconds = {name: [] for name in case.peers}
    product = []
    for _ in range(rounds):
        for name, run in case.peers.items():
            time.sleep(SETTLE)
            seconds[name].append(case.checked[name] if rounds == 1 and name in case.checked else run()[0])
        if ceiling:
            time.sleep(SETTLE)
            product.append(ceiling())
    return seconds, product


def summary(values):
    return {"seconds_best": min(values), "seconds_median": statistics.median(values), "rounds": len(values)}


def print_timings(case, peers):
    for name, timing in sorted(peers.items(), key=lambda item: item[1]["seconds_best"]):
        print(f"{case.name:22} {name:16} best {timing['seconds_best']:9.4f} s  median {timing['seconds_median']:9.4f} s")
