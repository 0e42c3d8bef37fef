"""How every subcommand ends when it is interrupted, when stdout is full, and when stdout is a pipe without a reader.

Usage: endings.py OVQ SOURCE [--table] [--only NAME]
"""

import argparse
import concurrent.futures
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 120  # to wait for anything
F_SETPIPE_SZ = 1031
FULL = "cannot write to standard output: No space left on device"
TINY = ["--scale", "tiny", "--tokens-per-step", "256", "--lengths", "16", "--eval-rows", "2", "--checkpoint-every", "1000"]
SMALL = json.dumps({"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16, "mixers": {
    "ovq": {"heads": 1, "head_dim": 16}, "sw": {"heads": 1, "head_dim": 16}}})


class Command:
    """`words` end soon; `endless` do not: they are interrupted once `ready` says so. Without `endless`, `words` are
    interrupted while they wait for a reader of their output."""

    def __init__(self, words, endless=None, ready=None, text=None, message="ovq: interrupted", left=None):
        self.words, self.endless, self.ready, self.text, self.message, self.left = words, endless, ready, text, message, left


def lines(file):
    return file.read_text().count("\n") if file.exists() else 0


def commands(work, source):
    run, prose, text, out = work / "run", work / "prose", work / "text", work / "out"
    bench = ["--quick", "--threads", "1"]
    generate = ["generate", prose, "--threads", "1", "--ignore-end"]
    trained = lambda name: lambda: lines(out / name / "metrics.jsonl") >= 2
    part = lambda name: lambda: list(out.glob(f"{name}.part-*"))

    def state_is_partial():
        held = subprocess.run([OVQ, *generate, "--load-state", out / "state.ovq", "--tokens", "1"], capture_output=True,
                              text=True, check=True).stderr
        assert "holds only part of a prompt" in held, held

    def is_saved(name):
        def check():
            steps = lines(out / name / "metrics.jsonl")
            assert (out / name / f"checkpoints/step-{steps:06}").is_dir(), f"{name}: step {steps} is not saved"
        return check

    def no_part():
        assert not list(out.glob("*.part-*")) and not list(out.glob("tokens*")), os.listdir(out)

    return {
        "--version": Command(["--version"]),
        "train --help": Command(["train", "--help"]),
        "bench kernels": Command(["bench", "kernels", *bench, "--filter", "H4 d64 L128 N2048 T2048", "--passes", "1"],
                                 ["bench", "kernels", *bench, "--passes", "1000"]),
        "bench ops": Command(["bench", "ops", *bench, "--filter", "linear_attention forward B16 H8"], ["bench", "ops", "--threads", "1"]),
        "bench step": Command(["bench", "step", *bench, "--rounds", "1", "--tokens", "64", "--filter", "tiny/linear"],
                              ["bench", "step", *bench, "--rounds", "1000"]),
        "bench generate": Command(["bench", "generate", *bench, "--model", prose, "--context", "16", "--tokens", "2", "--rounds", "1"],
                                  ["bench", "generate", *bench, "--model", prose, "--context", "16", "--tokens", "1000000"]),
        "chat": Command(["chat", prose, "--tokens", "4", "--threads", "1"], ["chat", prose, "--tokens", "100000000", "--threads", "1"],
                        ready="output", text="The captain\n"),
        "compare": Command(["compare", run]),
        "completion bash": Command(["completion", "bash"]),
        "eval": Command(["eval", run, "--lengths", "16", "--rows", "2"], ["eval", run, "--lengths", "16", "--rows", "1000000"]),
        "eval --task text": Command(["eval", prose, "--task", "text", "--data", text, "--length", "16", "--windows", "2"],
                                    ["eval", prose, "--task", "text", "--data", work / "large.txt", "--length", "64"]),
        "generate, writing": Command([*generate, "--prompt", "The captain", "--tokens", "4"],
                                     [*generate, "--prompt", "The captain", "--tokens", "100000000"], ready="output"),
        "generate, reading": Command([*generate, "--prompt-file", text / "a.txt", "--tokens", "4", "--save-state", out / "short.ovq"],
                                     [*generate, "--prompt-file", work / "large.txt", "--piece", "16", "--tokens", "1", "--save-state", out / "state.ovq",
                                      "--load-state", work / "begun.ovq"], ready="restored", message="tokens of the prompt", left=state_is_partial),
        "inspect": Command(["inspect", run]),
        "report": Command(["report", source / "results", "--claims", source / "experiments/report/claims.json", "--out", out / "page"]),
        "report --watch": Command(["report", "--watch", work, "--out", out / "live", "--once"], ["report", "--watch", work, "--out", out / "watched"],
                                  ready="output"),
        "reproduce": Command(["reproduce", work / "set.json", "--out", out / "results", "--runs", out / "runs", "--jobs", "1"],
                             ["reproduce", work / "long.json", "--out", out / "none", "--runs", out / "long", "--jobs", "2"],
                             ready=trained("long/pair/sw-ovq-3"), message="ovq: interrupted; run the same command to continue",
                             left=is_saved("long/pair/sw-ovq-3")),
        "tasks": Command(["tasks", "recall", "--scale", "tiny"]),
        "tokenize train": Command(["tokenize", "train", text, "--vocab", "300", "--out", out / "a.model"],
                                  ["tokenize", "train", work / "large.txt", "--type", "bpe", "--vocab", "5000", "--out", out / "b.model"]),
        "tokenize apply": Command(["tokenize", "apply", text, "--out", out / "a.tokens"],
                                  ["tokenize", "apply", work / "large.txt", "--tokenizer", work / "words.model", "--out", out / "tokens"],
                                  ready=part("tokens"), left=no_part),
        "train": Command(["train", *TINY, "--steps", "2", "--out", out / "{ending}"], ["train", *TINY, "--steps", "100000", "--out", out / "one"],
                         ready=trained("one"), left=is_saved("one")),
        "train --processes 2": Command(["train", *TINY, "--steps", "2", "--processes", "2", "--out", out / "two-{ending}"],
                                       ["train", *TINY, "--steps", "100000", "--processes", "2", "--out", out / "two"],
                                       ready=trained("two"), left=is_saved("two")),
    }


def prepare(work):
    (work / "out").mkdir()
    (work / "text").mkdir()
    sentences = "".join(f"The captain saw {i * 7919 % 9001} whales, and said so {i % 83} times.\n" for i in range(4000))
    (work / "text/a.txt").write_text(sentences)
    (work / "test.txt").write_text(sentences[5000:20000] + "the end")
    (work / "large.txt").write_text(sentences * 150)  # 30 MB
    train = [OVQ, "train", *TINY, "--steps", "2"]
    task = json.dumps({"train": str(work / "text"), "test": str(work / "test.txt")})
    experiment = {"name": "pair", "shows": "runs", "seeds": [3, 4], "options": {"scale": "tiny", "steps": 2, "tokens_per_step": 256,
                  "lengths": [16], "eval_every": 0, "eval_rows": 2}, "evaluations": [{"lengths": [16], "rows": 2}],
                  "experiments": [{"name": "sw-ovq", "options": {"model": "sw-ovq"}}]}
    (work / "set.json").write_text(json.dumps({"groups": [experiment]}))
    experiment["options"]["steps"] = 100000
    (work / "long.json").write_text(json.dumps({"groups": [experiment]}))
    for words in ([*train, "--out", work / "run"], [OVQ, "eval", work / "run", "--lengths", "16", "--rows", "2"],
                  [*train, "--task", "text", "--task-options", task, "--model-options", SMALL, "--out", work / "prose"],
                  [OVQ, "generate", work / "prose", "--prompt", "The", "--tokens", "1", "--save-state", work / "begun.ovq"],
                  [OVQ, "tokenize", "train", work / "text", "--vocab", "400", "--out", work / "words.model"]):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def start(words, ending, stdout, text, on_interrupt=signal.SIG_DFL):
    words = [OVQ, *(str(word).replace("{ending}", ending) for word in words)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE if text else subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"}, preexec_fn=lambda: signal.signal(signal.SIGINT, on_interrupt))
    if text:
        process.stdin.write(text)
        process.stdin.flush()
    return process


def catches(process):
    """Whether it has a handler for SIGINT and already had one 0.3 s ago, since it may restart itself."""
    def now():
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)
    if not now():
        return False
    time.sleep(0.3)
    return process.poll() is None and now()


def wait(process, ready):
    end = time.monotonic() + SECONDS
    while not ready():
        assert process.poll() is None, f"it ended by itself with {process.returncode}: {process.stderr.read()}"
        assert time.monotonic() < end, "it is never ready"
        time.sleep(0.02)


def interrupted(command):
    if command.endless is None:  # writes into a pipe that is full
        read_end, write_end = os.pipe()
        fcntl.fcntl(write_end, F_SETPIPE_SZ, 4096)
        os.write(write_end, b"." * fcntl.fcntl(write_end, F_SETPIPE_SZ, 4096))
        process = start(command.words, "int", write_end, command.text)
        os.close(write_end)
    else:
        read_end = None
        process = start(command.endless, "int", subprocess.PIPE, command.text)
    if command.ready == "output":
        process.stdout.read(1)
    elif command.ready == "restored":  # printed once signals are caught
        line = process.stderr.readline()
        assert "restored" in line, line
    elif callable(command.ready):
        wait(process, command.ready)
    wait(process, lambda: catches(process))
    process.send_signal(signal.SIGINT)
    process.stdout, stdout = None, process.stdout  # its results do not matter here
    if stdout:
        os.set_blocking(stdout.fileno(), True)
    drain = concurrent.futures.ThreadPoolExecutor(1).submit(stdout.read) if stdout else None
    process.stdin, stdin = None, process.stdin
    _, err = process.communicate(timeout=SECONDS)
    if drain:
        drain.result()
    if stdin:
        stdin.close()
    if read_end is not None:
        os.close(read_end)
    if command.left:
        command.left()
    return process.returncode, last_line(err), -signal.SIGINT, command.message


def stalled(command):
    """The first SIGINT is noted and waits for a write into a full pipe; the second ends the program."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, F_SETPIPE_SZ, 4096)
    process = start(command.endless, "int", write_end, command.text)
    os.close(write_end)
    writes = "1 0x1 "  # system call and file
    wait(process, lambda: catches(process) and Path(f"/proc/{process.pid}/syscall").read_text().startswith(writes))
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "it did not wait for its output"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    os.close(read_end)
    return process.returncode, last_line(err), -signal.SIGINT, command.message


def ignored(command):
    """SIGINT, if it was ignored when the program started."""
    process = start(command.endless, "int", subprocess.PIPE, command.text, signal.SIG_IGN)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert len(process.stdout.read(5000)) == 5000, "SIGINT ended it"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    return process.returncode, last_line(err), -signal.SIGTERM, command.message


def full(command):
    with open("/dev/full", "w") as stdout:
        process = start(command.words, "full", stdout, command.text)
    _, err = process.communicate(timeout=SECONDS)
    return process.returncode, last_line(err), 1, FULL


def closed(command):
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start(command.words, "pipe", write_end, command.text)
    os.close(write_end)
    _, err = process.communicate(timeout=SECONDS)
    assert "pipe" not in err.lower(), err
    return process.returncode, last_line(err), -signal.SIGPIPE, ""


def last_line(text):
    return text.strip().splitlines()[-1] if text.strip() else ""


def shown(code, message):
    code = f"{128 - code}" if code < 0 else str(code)  # as in a shell
    return f"{code} {message}".strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ovq", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    global OVQ
    OVQ = str(arguments.ovq.resolve())
    endings = {"interrupted": interrupted, "stdout full": full, "closed pipe": closed}
    special = {"generate, writing": {"SIGINT twice": stalled, "SIGINT ignored": ignored}}  # not in the table
    failures = 0
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(4) as pool:
        work = Path(directory)
        known = commands(work, arguments.source.resolve())
        if arguments.only not in (None, *known):
            parser.error(f"--only {arguments.only}: no such command; expected one of {', '.join(known)}")
        prepare(work)
        chosen = {n: c for n, c in known.items() if arguments.only in (None, n)}
        found = {name: {e: pool.submit(run, command) for e, run in {**endings, **special.get(name, {})}.items()}
                 for name, command in chosen.items()}
        if arguments.table:
            print("| | " + " | ".join(endings) + " |\n|" + "---|" * (len(endings) + 1))
        for name, results in found.items():
            cells = []
            for ending, result in results.items():
                try:
                    code, message, wanted, text = result.result()
                    good = code == wanted and text in message
                except Exception as error:
                    good, code, message = False, "?", repr(error)
                cell = shown(code, message.replace(str(work), "")) if isinstance(code, int) else message
                if ending in endings:
                    cells.append(cell)
                if not good:
                    failures += 1
                    print(f"FAILED: {name}, {ending}: {cell}", file=sys.stderr)
            if arguments.table:
                print(f"| `{name}` | " + " | ".join(cells) + " |")
    print(f"{len(found)} commands, {failures} endings not as expected")
    sys.exit(failures > 0)


main()
