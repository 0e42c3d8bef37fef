"""Trains a language model of sliding-window and OVQ-attention layers on two processes with DistributedDataParallel.

    PYTHONPATH=build/release/python /usr/bin/python3 examples/python/ddp.py
    PYTHONPATH=build/release/python torchrun --nproc_per_node 2 examples/python/ddp.py

Both ranks draw the same batch and take every other row of it (rank r of R takes rows r, r + R, ...), so that any number of processes sees the same data.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import ovq

VOCABULARY, PERIOD, ROWS, STEPS = 16, 6, 8, 30


def batch_of(step, rank, ranks):
    """This rank's rows of the step's batch: words that repeat themselves."""
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(VOCABULARY, (ROWS, PERIOD), generator=generator)
    return words.repeat(1, 65 // PERIOD + 1)[rank::ranks, :65]


def train():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    torch.manual_seed(rank)  # DistributedDataParallel gives all ranks the weights of rank 0
    model = ovq.CausalLM.preset("tiny/sw-ovq", vocab_size=VOCABULARY)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for step in range(STEPS):
        tokens = batch_of(step, rank, ranks)
        model.begin_step(step, 0)  # for models with codebooks (sw-vq), which learn from what all ranks see
        loss = cross_entropy(parallel(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # adds up the gradients over ranks
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        if rank == 0 and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step:3d}  loss {mean.item():.3f}", flush=True)
    model.end_step()
    check_alike(model, rank, ranks)


def check_alike(model, rank, ranks):
    for name, tensor in model.state_dict().items():
        first = tensor.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor), f"{name} of rank {rank} differs"
    if rank == 0:
        print(f"the weights of all {ranks} ranks have the same bits")


def worker(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train()
    else:
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(worker, (os.path.join(directory, "store"),), nprocs=2)
