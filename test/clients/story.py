#!/usr/bin/env python3
"""Rank 0 broadcasts a pickled list of tuples of strings and a large array; every rank checks both.

This is what failed for users whose kernel refuses process_vm_readv: tens of megabytes of ordinary
Python objects between sibling processes.  usage: story.py [MEGABYTES]
"""
import hashlib
import sys

from mpi4py import MPI
import numpy

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 40


def words():
    count = megabytes * 1000000 // 100
    return [(f"{i:020d}", "key-" + "x" * (i % 40), f"value {i * 7919} " + "\u00e9" * (i % 13))
            for i in range(count)]


def digest_of_words(items):
    total = hashlib.sha256()
    for item in items:
        total.update("\0".join(item).encode())
    return total.hexdigest()


def array():
    return numpy.arange(megabytes * 1000000 // 8, dtype=numpy.float64) * 1.5


items = comm.bcast(words() if rank == 0 else None, root=0)
data = array() if rank == 0 else numpy.empty(megabytes * 1000000 // 8, dtype=numpy.float64)
comm.Bcast(data, root=0)
whole = comm.bcast(data if rank == 0 else None, root=0)  # the same, pickled

own = (digest_of_words(items), hashlib.sha256(data).hexdigest(), hashlib.sha256(whole).hexdigest())
seen = comm.gather(own, root=0)
right = own == (digest_of_words(words()), hashlib.sha256(array()).hexdigest(), own[1])
verdicts = comm.gather(right, root=0)
if rank == 0:
    good = all(verdicts) and len(set(seen)) == 1
    print(f"story: {len(items)} tuples and {data.nbytes} bytes of array on {comm.Get_size()} ranks: "
          f"{'right' if good else 'WRONG'}", flush=True)
    if not good:
        comm.Abort(1)
