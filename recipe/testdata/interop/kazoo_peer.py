"""Uses kazoo's recipes as told on standard input, one command a line.

    acquire KIND PATH   answers "held KIND" when it is ours
    release KIND        answers "released KIND"
    put KIND PATH BODY  answers "put"
    get KIND PATH       answers "got BODY", or "got" when there is none
"""
import sys

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
    else:
        recipe.release()
    say("released", kind)


def queue(kind, path):
    if kind == "locking":
        return client.LockingQueue(path)
    return client.Queue(path)


say("ready")
for line in iter(sys.stdin.readline, ""):
    words = line.split()
    if words[0] == "acquire":
        acquire(words[1], words[2])
    elif words[0] == "release":
        release(words[1])
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
