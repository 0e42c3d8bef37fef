"""Training in several processes: equal to one process, and the failure of one of them.

Usage: processes.py OVQ [CASE ...]
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OPTIONS = {"task": "recall", "scale": "tiny", "steps": 12, "tokens-per-step": 512, "lengths": "16,32", "warmup": 4,
           "eval-every": 7, "eval-rows": 5, "checkpoint-every": 3, "seed": 5, "task-options": '{"vocab":64}'}
# Runs that are interrupted: endless ones, or runs of a few seconds, which are resumed and end.
ENDLESS = {**OPTIONS, "steps": 100_000}
SLOW = {**OPTIONS, "steps": 60, "tokens-per-step": 16_384, "eval-every": 25, "checkpoint-every": 10}
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "mixers": {"sw": {"heads": 1, "head_dim": 32, "window": 8}, "ovq": {"heads": 1, "head_dim": 32, "chunk": 8, "centroids": 16}},
}
VQ = {**MODEL, "mixers": {"sw": MODEL["mixers"]["sw"], "vq": {"heads": 1, "head_dim": 32, "chunk": 8, "codewords": 16, "warmup": 3}}}
ovq = Path(sys.argv[1]).resolve()


def options(chosen=OPTIONS, model="sw-ovq"):
    words = [word for name, value in chosen.items() for word in (f"--{name}", value)]
    return [*words, "--model", model, "--model-options", json.dumps(VQ if model == "sw-vq" else MODEL)]


def train(*words, env=None, **more):
    command = [str(ovq), "train", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}, **more)


def finished(process, status=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, f"status {process.returncode}, expected {status}:\n{out}\n{err}"
    # Newer releases of Gloo report their connections.
    return out, "\n".join(line for line in err.splitlines() if not line.startswith("[./gloo/")).strip()


def run(out, *words, **chosen):
    finished(train(*options(**chosen), "--out", out, *words))
    return out


def metrics(directory, kind="step"):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def losses(directory, kind="step"):
    return [line["loss"] for line in metrics(directory, kind)]


def same_bits(a, b):
    for file in ("model.safetensors", "optimizer.safetensors"):
        x, y = ((run / f"checkpoints/step-{len(losses(run)):06}" / file).read_bytes() for run in (a, b))
        assert x == y, f"{file} of {a.name} and {b.name} differ"
    assert losses(a) == losses(b)


def near(a, b, tolerance=1e-4):
    assert len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b)), f"{a}\n{b}"


def wait_for_steps(directory, steps):
    end = time.time() + 60
    while time.time() < end:
        try:
            if len(losses(directory)) >= steps:
                return
        except (OSError, ValueError):
            pass  # missing or being written
        time.sleep(0.02)
    raise AssertionError(f"{directory} did not reach step {steps}")


def ranks_of(process, count, besides=()):
    """Process ids of the ranks that a process has started, when all of them exist and none is in `besides`."""
    def rank(pid):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next(int(v[5:]) for v in variables if v.startswith(b"RANK="))
    end = time.time() + 60
    while time.time() < end:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            ranks = {rank(int(pid)): int(pid) for pid in children if int(pid) not in besides}
            if len(ranks) == count:
                return ranks
        except (OSError, StopIteration):
            pass  # just being started, or just ended
        time.sleep(0.02)
    raise AssertionError(f"no {count} ranks: {finished(process)}")


def test_as_one_process(work):
    one = run(work / "one", "--threads", 1)
    near(losses(run(work / "four", "--processes", 4)), losses(one))
    two, again = run(work / "two", "--processes", 2), run(work / "again", "--processes", 2)
    near(losses(two), losses(one))
    near(losses(two, "evaluation"), losses(one, "evaluation"))
    same_bits(two, again)
    assert losses(two) != losses(one), "the same bits: was it one process?"
    same_bits(two, run(work / "shards", "--processes", 2, "--shard-optimizer"))
    same_bits(run(work / "three", "--processes", 3), run(work / "three-shards", "--processes", 3, "--shard-optimizer"))


def test_accumulated(work):
    one = run(work / "one", "--accumulate", 3)
    near(losses(run(work / "two", "--accumulate", 3, "--processes", 2)), losses(one))
    # The same parts, summed in the same order.
    four = run(work / "four", "--accumulate", 4)
    same_bits(four, run(work / "four-by-two", "--accumulate", 4, "--processes", 2))
    same_bits(run(work / "pair", "--accumulate", 2), run(work / "pair-by-two", "--accumulate", 2, "--processes", 2))


def test_codebooks(work):
    two = run(work / "two", "--processes", 2, model="sw-vq")
    same_bits(two, run(work / "again", "--processes", 2, model="sw-vq"))
    near(losses(two)[:3], losses(run(work / "one", model="sw-vq"))[:3])  # before the codebook starts, with its noise
    assert "codebooks" in metrics(two)[-1]


def test_resume_with_other_numbers(work):
    same_parts = {**SLOW, "accumulate": 2, "threads": 1}
    whole = run(work / "whole", chosen=same_parts)
    parts = work / "parts"
    process = train(*options(same_parts), "--out", parts, "--processes", 1)
    for processes, steps in ((1, 3), (2, 13)):
        wait_for_steps(parts, steps)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM, out
        process = train("--resume", parts, "--threads", 1, "--processes", 2 if processes == 1 else 1)
    finished(process)
    assert [line["step"] for line in metrics(parts)] == list(range(1, len(losses(whole)) + 1))
    same_bits(parts, whole)


def test_signal_to_one_rank(work):
    process = train(*options(ENDLESS), "--out", work / "run", "--processes", 2)
    wait_for_steps(work / "run", 4)
    os.kill(ranks_of(process, 2)[1], signal.SIGINT)
    out, err = finished(process, -signal.SIGTERM)
    assert "stopped after step" in out and err == "ovq: interrupted", (out, err)
    assert (work / f"run/checkpoints/step-{len(losses(work / 'run')):06}").is_dir()


def lost_rank(work, rank, how, expected):
    timeout = 6  # also bounds the start, on a busy machine
    process = train(*options(ENDLESS), "--out", work / "run", "--processes", 3, "--timeout", timeout)
    wait_for_steps(work / "run", 4)
    ranks = ranks_of(process, 3)
    start = time.time()
    os.kill(ranks[rank], how)
    _, err = finished(process, 1)
    assert time.time() - start < 3 * timeout + 5, "too late"
    assert err.count("\n") == 0 and expected in err, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    assert not list((work / "run/checkpoints").glob(".*")), "something half"


def test_killed_rank(work):
    lost_rank(work, 1, signal.SIGKILL, "ovq: rank 1 was ended by signal 9")


def test_killed_first_rank(work):
    lost_rank(work, 0, signal.SIGKILL, "ovq: rank 0 was ended by signal 9")


def test_hanging_rank(work):
    lost_rank(work, 2, signal.SIGSTOP, "ovq: rank 2 (")


def test_restarts(work):
    whole = run(work / "whole", "--processes", 2, chosen=SLOW)
    process = train(*options(SLOW), "--out", work / "run", "--processes", 2, "--restarts", 2)
    killed = ()
    for step, rank in ((4, 1), (24, 0)):
        ranks = ranks_of(process, 2, besides=killed)
        wait_for_steps(work / "run", step)
        os.kill(ranks[rank], signal.SIGKILL)
        killed = ranks.values()
    _, err = finished(process)
    lines = err.splitlines()
    assert [("rank 1" in line, "rank 0" in line) for line in lines] == [(True, False), (False, True)], err
    assert "restart 2 of 2" in lines[1], err
    same_bits(whole, work / "run")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def started_by(variables, work, rank, timeout=30):
    port = str(free_port()) if rank == 0 else os.environ["OVQ_TEST_PORT"]
    os.environ["OVQ_TEST_PORT"] = port
    env = {name: str(value) for name, value in variables(rank).items()}
    return train(*options(), "--out", work / "run", "--timeout", timeout, env={"MASTER_PORT": port, **env})


STARTERS = {
    "torchrun": lambda rank: {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost"},
    "srun": lambda rank: {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LOCALID": rank, "MASTER_ADDR": "127.0.0.1"},
    "mpirun": lambda rank: {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2},
    "mpiexec": lambda rank: {"PMI_RANK": rank, "PMI_SIZE": 2},
}


def test_started_by_others(work):
    two = run(work / "two", "--processes", 2)
    for name, variables in STARTERS.items():
        (work / name).mkdir()
        processes = [started_by(variables, work / name, rank) for rank in (0, 1)]
        outputs = [finished(process) for process in processes]
        assert "2 processes" in outputs[0][0] and outputs[1] == ("", ""), outputs
        same_bits(two, work / name / "run")


def test_missing_and_wrong(work):
    _, err = finished(started_by(STARTERS["torchrun"], work, 0, timeout=5), 1)
    assert err == "ovq: rank 1 of 2 did not connect within 5 s", err
    _, err = finished(started_by(STARTERS["torchrun"], work, 1, timeout=5), 1)
    assert "rank 0, which holds the store" in err and "cannot be reached" in err, err
    _, err = finished(train("--steps", 1, env={"RANK": "2", "WORLD_SIZE": "2"}), 2)
    assert err == 'ovq: [processes] RANK is "2"; must be a number from 0 to 1', err
    _, err = finished(train("--steps", 1, "--restarts", 1), 2)
    assert "--processes" in err
    # An error in the run is reported once, by the first rank.
    finished(train(*options(), "--out", work / "there"))
    processes = [train(*options(), "--out", work / "there", "--timeout", 5,
                       env={"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": os.environ["OVQ_TEST_PORT"]})
                 for rank in (0, 1)]
    (_, first), (_, second) = (finished(process, 1) for process in processes)
    assert "already holds a run" in first and second.startswith("ovq: rank 0 ended: "), (first, second)


def main():
    chosen = sys.argv[2:]
    for name, case in list(globals().items()):
        if not name.startswith("test_") or (chosen and name[5:] not in chosen):
            continue
        start = time.time()
        with tempfile.TemporaryDirectory() as work:
            case(Path(work))
        print(f"{name}: {time.time() - start:.1f} s", flush=True)


main()
