"""Processes of several containers that share queues, by Python's multiprocessing. `processes.py server`,
`processes.py client ADDRESS`, `processes.py forever ADDRESS`; `processes.py release ADDRESS` gives something to the server's
threads that wait for it on behalf of clients which are dead, so that they look at their connections."""
import hashlib
import multiprocessing
import queue
import sys
from multiprocessing.managers import BaseManager

TASKS = 60


class Manager(BaseManager):
    pass


tasks, results = queue.Queue(), queue.Queue()


def manager(address):
    return Manager(address=(address, 7400), authkey=b"test")


def server():
    Manager.register("tasks", callable=lambda: tasks)
    Manager.register("results", callable=lambda: results)
    manager("0.0.0.0").get_server().serve_forever()


def connected(address):
    Manager.register("tasks")
    Manager.register("results")
    shared = manager(address)
    shared.connect()
    return shared


def work(shared):
    """A forked process: it has its parent's manager, and connects by itself."""
    tasks, results = shared.tasks(), shared.results()
    while True:
        number, data = tasks.get()
        if number is None:
            return
        results.put((number, hashlib.sha256(data).hexdigest()[:16], data[::-1]))


def round_of(shared):
    tasks, results = shared.tasks(), shared.results()
    workers = [multiprocessing.Process(target=work, args=(shared,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    sent = {number: bytes([number]) * (1 + number * 3000) for number in range(TASKS)}
    for number, data in sent.items():
        tasks.put((number, data))
    found = {}
    for _ in range(TASKS):
        number, digest, data = results.get()
        assert data == sent[number][::-1]
        found[number] = digest
    for _ in workers:
        tasks.put((None, None))
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return [found[number] for number in range(TASKS)]


multiprocessing.set_start_method("fork")
if sys.argv[1] == "server":
    server()
elif sys.argv[1] == "release":
    shared = connected(sys.argv[2])
    for waited_for in (shared.tasks(), shared.results()):
        for _ in range(4):
            waited_for.put((None, None))
else:
    shared = connected(sys.argv[2])
    found = round_of(shared)
    while sys.argv[1] == "forever":
        assert round_of(shared) == found
    print(*found)
