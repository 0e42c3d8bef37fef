"""Generates 20,000 tokens and watches the program: with OVQ-attention its memory and its time per token stay the same
after 5,000 tokens; with a cache of all keys and values they grow.

Usage: constant_memory.py OVQ [--tokens 20000] [--check-time]; without --check-time, times are only shown, since other
programs may be running.
"""

import argparse
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

import torch

import ovq


def make_model(pattern, directory):
    torch.manual_seed(0)
    model = ovq.LanguageModel.preset(f"small/text-{pattern}-plain", vocab_size=256)
    model.set_centroids(512)
    model.set_tokenizer("bytes")
    model.save(directory)


def resident_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def watch(program, directory, tokens):
    """Seconds and resident bytes after each eighth of the tokens, and the program's last messages."""
    command = [program, "generate", directory, "--prompt", "The", "--tokens", str(tokens), "--ignore-end", "--json"]
    command += ["--temperature", "1", "--threads", "1"]
    marks, start = [(0.0, 0)], time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for number, line in enumerate(process.stdout, 1):
            if number % (tokens // 8) == 0:
                marks.append((time.perf_counter() - start, resident_bytes(process.pid)))
    return marks, json.loads(line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ovq")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--check-time", action="store_true")
    options = parser.parse_args()
    found = {}
    for pattern in ("sw-ovq", "sw-nope"):
        with tempfile.TemporaryDirectory() as directory:
            make_model(pattern, directory)
            marks, summary = watch(options.ovq, directory, options.tokens)
        assert summary["written"]["tokens"] == options.tokens, summary
        memory = [rss for _, rss in marks[2:]]  # after a quarter
        growth = max(memory) / min(memory) - 1
        early, late = marks[4][0] - marks[2][0], marks[8][0] - marks[6][0]  # a quarter of the tokens each
        found[pattern] = (growth, late / early)
        print(
            f"{pattern}: resident {min(memory) / 1e6:.1f} to {max(memory) / 1e6:.1f} MB (+{100 * growth:.2f} %), "
            f"{4e6 * early / options.tokens:.0f} us a token in the second quarter, {4e6 * late / options.tokens:.0f} us "
            f"in the last ({late / early:.3f} x), state {summary['state_bytes'] / 1e6:.2f} MB, "
            f"KV cache {summary['kv_cache_bytes'] / 1e6:.2f} MB"
        )
    growth, slower = found["sw-ovq"]
    assert growth <= 0.02, f"resident memory grew by {100 * growth:.2f} %"
    assert not options.check_time or slower <= 1.1, f"the last tokens took {slower:.3f} x as long"
    assert found["sw-nope"][0] > growth, "the cache of all keys and values did not grow more"


main()
