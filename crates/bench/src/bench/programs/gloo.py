"""Allreduce of 100 MB by Gloo, as PyTorch uses it. `serve RANKS`: the lower half of the ranks, for one load after the
other; or `ADDRESS RANKS SECONDS`: the upper half, whose last rank says when to stop."""
import ctypes
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist

PORT = 5007
ELEMENTS = 25 << 20


def rank_of(address, rank, ranks, seconds):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{PORT}", rank=rank, world_size=ranks)
    data, go_on = torch.ones(ELEMENTS), torch.ones(1)
    dist.all_reduce(data)
    dist.barrier()
    begin, count = time.monotonic(), 0
    while go_on.item():
        data.fill_(1)
        dist.all_reduce(data)
        count += 1
        go_on[0] = time.monotonic() < begin + seconds
        dist.broadcast(go_on, src=ranks - 1)
    assert data[0].item() == ranks and data[-1].item() == ranks
    taken = time.monotonic() - begin
    dist.barrier()
    dist.destroy_process_group()
    return count * ELEMENTS * 4, taken


def fork():
    """Makes a child that ends with its parent."""
    child = os.fork()
    if child == 0:
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    return child


def run(address, first, last, ranks, seconds):
    """Runs ranks from `first` to `last`: the last in this process, each other in a child."""
    children = []
    for rank in range(first, last):
        child = fork()
        if child == 0:
            rank_of(address, rank, ranks, seconds)
            os._exit(0)
        children.append(child)
    done = rank_of(address, last, ranks, seconds)
    for child in children:
        os.waitpid(child, 0)
    return done


def first_interface():
    return next(name for _, name in socket.if_nameindex() if name != "lo")


os.environ["GLOO_SOCKET_IFNAME"] = first_interface()
if sys.argv[1] == "serve":
    ranks = int(sys.argv[2])
    while True:
        child = fork()
        if child == 0:
            run(os.environ["PD_ADDRESS"], 0, ranks // 2 - 1, ranks, 0.0)
            os._exit(0)
        os.waitpid(child, 0)
else:
    address, ranks, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    count, taken = run(address, ranks // 2, ranks - 1, ranks, seconds)
    print("bytes", count, taken)
