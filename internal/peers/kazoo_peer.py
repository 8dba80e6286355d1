"""Uses kazoo's recipes as told on standard input, one command a line.

    acquire KIND PATH   answers "held KIND" when it is ours. A third word names files, FILE0
                        to FILEn-1 of a semaphore with n permits, the fourth word: it locks
                        one of them while it holds, or answers "VIOLATION"
    release KIND        answers "released KIND", or "lost KIND" when its connection broke
                        while it had a file
    put KIND PATH BODY  answers "put"
    get KIND PATH       answers "got BODY", or "got" when there is none
    count KIND PATH N   adds to a counter, answers "count VALUE"
    gate HOW PATH       closes or opens a barrier, answers "gate HOW"
    partition PATH ID SHARD...  answers "owns SHARD..." after each division
    unpartition         answers "unpartitioned"
    lease PATH ID SECONDS       answers "lease True" or "lease False"
    bench WHAT PATH N   answers "took SECONDS"

What fails is answered with "failed KIND", and goes on in another session.
"""
import fcntl
import sys
import threading
import time
import traceback
from datetime import timedelta

from kazoo.client import KazooClient
from kazoo.recipe.election import Election

client = KazooClient(hosts=sys.argv[1], timeout=20)
marks = []
lost = threading.Event()


def changed(state):
    if state != "CONNECTED" and marks:
        lost.set()
        unmark()


client.add_listener(changed)
client.start(timeout=60)
held = {}


def say(*words):
    print(*words, flush=True)


def mark(kind, file="", permits="1"):
    """Says that it holds, unless the files say that others do."""
    lost.clear()
    for i in range(int(permits) if file else 0):
        f = open("%s%d" % (file, i), "a+")
        try:
            fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            marks.append(f)
            break
        except OSError:
            f.close()
    if file and not marks and client.state == "CONNECTED":
        say("VIOLATION", kind)
    else:
        say("held", kind)


def unmark():
    while marks:
        marks.pop().close()


def lead(kind, *oracle):
    """Leads until the next line, which is the release."""
    mark(kind, *oracle)
    sys.stdin.readline()
    unmark()


def acquire(kind, path, *oracle):
    if kind == "election":
        Election(client, path, "kazoo").run(lead, kind, *oracle)
        say("lost" if lost.is_set() else "released", kind)
        return
    if kind == "double":
        held[kind] = client.DoubleBarrier(path, 2)
        held[kind].enter()
        if not held[kind].participating:
            raise RuntimeError("not inside")
    elif kind == "barrier":
        held[kind] = client.Barrier(path)
        held[kind].wait()
    else:
        make = {
            "lock": lambda: client.Lock(path, "kazoo"),
            "read": lambda: client.ReadLock(path, "kazoo"),
            "write": lambda: client.WriteLock(path, "kazoo"),
            "semaphore": lambda: client.Semaphore(path, "kazoo", max_leases=int((oracle + ("", 1))[1])),
        }[kind]
        held[kind] = make()
        held[kind].acquire()
    mark(kind, *oracle)


def release(kind):
    unmark()
    recipe = held.pop(kind)
    if kind == "double":
        recipe.leave()
    elif kind != "barrier":
        recipe.release()
    say("lost" if lost.is_set() else "released", kind)


def count(kind, path, delta):
    counter = client.Counter(path, support_curator=kind == "shared")
    counter += delta
    say("count", counter.value)


def gate(how, path):
    barrier = client.Barrier(path)
    if how == "close":
        barrier.create()
    else:
        barrier.remove()
    say("gate", how)


def queue(kind, path):
    if kind == "locking":
        return client.LockingQueue(path)
    return client.Queue(path)


def locked(path, n, kz):
    for _ in range(n):
        with kz.Lock(path, "kazoo"):
            pass


def contended(path, n):
    """50 contenders, each with a session of its own."""
    clients = [KazooClient(hosts=sys.argv[1]) for _ in range(50)]
    for kz in clients:
        kz.start(timeout=60)
    threads = [threading.Thread(target=locked, args=(path, n // 50, kz)) for kz in clients]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - began
    for kz in clients:
        kz.stop()
    return took


def bench(what, path, n):
    if what == "contended":
        return contended(path, n)
    q = client.Queue(path)
    if what == "take":
        for _ in range(n):
            q.put(b"x" * 100)
    began = time.monotonic()
    if what == "lock":
        locked(path, n, client)
    for _ in range(n if what == "put" else 0):
        q.put(b"x" * 100)
    for _ in range(n if what == "take" else 0):
        q.get()
    return time.monotonic() - began


class Partitioning(threading.Thread):
    """A member of a SetPartitioner's party, until left."""

    def __init__(self, path, name, shards):
        super().__init__(daemon=True)
        self.left = False
        self.recipe = client.SetPartitioner(path, shards, identifier=name, time_boundary=1)
        self.start()

    def run(self):
        said = None
        while not self.left:
            if self.recipe.release:
                self.recipe.release_set()
                said = None
            elif self.recipe.acquired and said is None:
                said = sorted(self.recipe)
                say("owns", *said)
            time.sleep(0.02)
        self.recipe.finish()


def order(words):
    if words[0] == "acquire":
        acquire(*words[1:])
    elif words[0] == "release":
        release(words[1])
    elif words[0] == "count":
        count(words[1], words[2], int(words[3]))
    elif words[0] == "gate":
        gate(words[1], words[2])
    elif words[0] == "partition":
        held["partition"] = Partitioning(words[1], words[2], words[3:])
    elif words[0] == "unpartition":
        held["partition"].left = True
        held.pop("partition").join()
        say("unpartitioned")
    elif words[0] == "lease":
        say("lease", bool(client.NonBlockingLease(words[1], timedelta(seconds=int(words[3])), words[2])))
    elif words[0] == "bench":
        say("took", bench(words[1], words[2], int(words[3])))
    elif words[0] == "put":
        queue(words[1], words[2]).put(words[3].encode(), priority=int(words[4]))
        say("put")
    elif words[0] == "get":
        q = queue(words[1], words[2])
        if words[1] == "locking":
            body = q.get(timeout=60)
            if not q.consume():
                body = b"not consumed"
        else:
            body = q.get()
        say("got", (body or b"").decode())


say("ready")
for line in iter(sys.stdin.readline, ""):
    words = line.split()
    try:
        order(words)
    except Exception:
        traceback.print_exc()
        unmark()
        client.stop()
        client.start(timeout=60)
        say("failed", *words[1:2])
client.stop()
