"""Uses kazoo's recipes as told on standard input, one command a line.

    acquire KIND PATH   answers "held KIND" when it is ours
    release KIND        answers "released KIND"
    put KIND PATH BODY  answers "put"
    get KIND PATH       answers "got BODY", or "got" when there is none
    count KIND PATH N   adds to a counter, answers "count VALUE"
    gate HOW PATH       closes or opens a barrier, answers "gate HOW"
    bench WHAT PATH N   answers "took SECONDS"
"""
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.recipe.election import Election

client = KazooClient(hosts=sys.argv[1])
client.start(timeout=60)
held = {}


def say(*words):
    print(*words, flush=True)


def lead(kind):
    """Leads until the next line, which is the release."""
    say("held", kind)
    sys.stdin.readline()


def acquire(kind, path):
    if kind == "election":
        Election(client, path, "kazoo").run(lead, kind)
        say("released", kind)
        return
    if kind == "double":
        held[kind] = client.DoubleBarrier(path, 2)
        held[kind].enter()
    elif kind == "barrier":
        held[kind] = client.Barrier(path)
        held[kind].wait()
    else:
        make = {
            "lock": lambda: client.Lock(path, "kazoo"),
            "read": lambda: client.ReadLock(path, "kazoo"),
            "write": lambda: client.WriteLock(path, "kazoo"),
            "semaphore": lambda: client.Semaphore(path, "kazoo", max_leases=1),
        }[kind]
        held[kind] = make()
        held[kind].acquire()
    say("held", kind)


def release(kind):
    recipe = held.pop(kind)
    if kind == "double":
        recipe.leave()
    elif kind != "barrier":
        recipe.release()
    say("released", kind)


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


say("ready")
for line in iter(sys.stdin.readline, ""):
    words = line.split()
    if words[0] == "acquire":
        acquire(words[1], words[2])
    elif words[0] == "release":
        release(words[1])
    elif words[0] == "count":
        count(words[1], words[2], int(words[3]))
    elif words[0] == "gate":
        gate(words[1], words[2])
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
client.stop()
