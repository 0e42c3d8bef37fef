"""ovq on a terminal. Chat: Ctrl-C stops the answer, not the program; lines have a history; Ctrl-D ends, and so does
SIGTERM. Training: messages of an interruption or a failure appear below the progress line.

Usage: terminal.py OVQ
"""

import os
import pty
import select
import shutil
import signal
import sys
import tempfile
import time

import torch

import ovq

SECONDS = 60  # to wait for anything


class Terminal:
    def __init__(self, command):
        self.seen = b""
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "dumb"
            os.execv(command[0], command)

    def type(self, keys):
        os.write(self.file, keys)

    def expect(self, text, least=0):
        """Reads until `text` appears after at least `least` other bytes; discards everything up to it."""
        end = time.monotonic() + SECONDS
        while self.seen.find(text, least) < 0:
            ready, _, _ = select.select([self.file], [], [], max(0, end - time.monotonic()))
            if not ready:
                sys.exit(f"no {text!r} in {self.seen[-500:]!r}")
            try:
                self.seen += os.read(self.file, 65536)
            except OSError:
                sys.exit(f"the program ended; no {text!r} in {self.seen[-500:]!r}")
        self.seen = self.seen[self.seen.find(text, least) + len(text) :]

    def status(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def chat(model):
    terminal = Terminal([sys.argv[1], "chat", model, "--tokens", "100000000", "--threads", "1"])
    terminal.expect(b"> ")
    terminal.type(b"tell me a story\n")
    terminal.expect(b"\n", 0)  # the line itself
    terminal.expect(b"", least=200)  # an answer that would take hours
    terminal.type(b"\x03")
    terminal.expect(b"\n> ")
    terminal.type(b"/state\n")
    terminal.expect(b"tokens so far")
    terminal.expect(b"> ")
    terminal.type(b"half a line\x03")
    terminal.expect(b"> ")
    terminal.type(b"\x1b[A\n")  # the line before, which was /state
    terminal.expect(b"tokens so far")
    terminal.expect(b"> ")
    terminal.type(b"/undo\n")
    terminal.expect(b"ovq: 0 tokens so far")
    terminal.expect(b"> ")
    terminal.type(b"\x04")
    assert terminal.status() == 0, "Ctrl-D"
    terminal = Terminal([sys.argv[1], "chat", model, "--threads", "1"])
    terminal.expect(b"> ")
    os.kill(terminal.process, signal.SIGTERM)
    terminal.expect(b"ovq: interrupted")
    assert terminal.status() == -signal.SIGTERM, "SIGTERM"


def train(run):
    command = [sys.argv[1], "train", "--steps", "100000", "--tokens-per-step", "256", "--lengths", "16", "--threads", "1", "--out"]
    for ending in ("interrupted", "cannot"):
        terminal = Terminal([*command, f"{run}/{ending}"])
        terminal.expect(b"] step ")
        if ending == "interrupted":
            terminal.type(b"\x03")
            terminal.expect(b"stopped after step")
        else:
            shutil.rmtree(f"{run}/{ending}")
        terminal.expect(b"left\r\n" if ending == "cannot" else b"\n")  # the end of the progress line
        terminal.expect(b"ovq: ")
        terminal.expect(ending.encode())
        assert terminal.status() == (-signal.SIGINT if ending == "interrupted" else 1), ending


def main():
    torch.manual_seed(0)
    model = ovq.LanguageModel.preset("tiny/sw-ovq", vocab_size=256, num_hidden_layers=2)
    model.set_tokenizer("bytes")
    with tempfile.TemporaryDirectory() as directory:
        model.save(directory)
        chat(directory)
        train(directory)
    print("Ctrl-C, history, Ctrl-D, SIGTERM and progress lines as expected")


main()
