"""Kazoo's recipes against the server at argv[1].

It prints only what does not depend on timing: every event is waited for before
the next step, and sequence numbers and session ids are not printed.
"""
import logging
import sys
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import (BadVersionError, NoAuthError, NodeExistsError, NoNodeError,
                              NotEmptyError)
from kazoo.security import make_digest_acl

logging.basicConfig(level=logging.ERROR)
WAIT = 60
ROOT = "/kazoo"


def client(**more):
    c = KazooClient(hosts=sys.argv[1], timeout=30, **more)
    c.start(timeout=WAIT)
    return c


def basics(zk):
    print("create", zk.create(ROOT + "/basic/a", b"one", makepath=True))
    data, stat = zk.get(ROOT + "/basic/a")
    print("get", data, stat.version, stat.dataLength, stat.numChildren, stat.ephemeralOwner)
    print("set", zk.set(ROOT + "/basic/a", b"two").version)
    for name, call in [
        ("bad version", lambda: zk.set(ROOT + "/basic/a", b"x", version=7)),
        ("exists", lambda: zk.create(ROOT + "/basic/a")),
        ("no node", lambda: zk.get(ROOT + "/basic/none")),
        ("not empty", lambda: zk.delete(ROOT + "/basic")),
    ]:
        try:
            call()
            print(name, "went through")
        except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError) as e:
            print(name, type(e).__name__)
    print("sequence", zk.create(ROOT + "/basic/s-", sequence=True))
    print("ephemeral", zk.create(ROOT + "/basic/e", ephemeral=True),
          zk.exists(ROOT + "/basic/e").ephemeralOwner == zk.client_id[0])
    print("children", sorted(zk.get_children(ROOT + "/basic")))
    print("sync", zk.sync(ROOT + "/basic"))


def transactions(zk):
    t = zk.transaction()
    t.create(ROOT + "/tx", b"x")
    t.set_data(ROOT + "/tx", b"y")
    t.check(ROOT + "/tx", 1)
    t.create(ROOT + "/tx/child")
    t.delete(ROOT + "/tx/child")
    print("transaction", [type(r).__name__ for r in t.commit()])
    t = zk.transaction()
    t.create(ROOT + "/tx/never")
    t.check(ROOT + "/tx", 99)
    t.create(ROOT + "/tx/never2")
    print("failed transaction", [type(r).__name__ for r in t.commit()], zk.get_children(ROOT + "/tx"))


def acls(zk):
    acl = make_digest_acl("user", "password", all=True)
    zk.create(ROOT + "/secret", b"s", acl=[acl])
    stranger = client()
    try:
        stranger.get(ROOT + "/secret")
        print("a stranger reads")
    except NoAuthError:
        print("a stranger is refused")
    stranger.add_auth("digest", "user:password")
    print("with the password", stranger.get(ROOT + "/secret")[0])
    print("acl", stranger.get_acls(ROOT + "/secret")[0])
    stranger.stop()
    stranger.close()


def watches(zk, other):
    zk.create(ROOT + "/watch", b"0")
    seen = threading.Semaphore(0)
    log = []

    @zk.DataWatch(ROOT + "/watch")
    def on_data(data, stat):
        log.append((data, stat.version if stat else None))
        seen.release()

    def wait():
        if not seen.acquire(timeout=WAIT):
            raise RuntimeError("no event")

    wait()
    for i in range(1, 4):
        other.set(ROOT + "/watch", b"%d" % i)
        wait()
    other.delete(ROOT + "/watch")
    wait()
    print("data watch", log)
    zk.create(ROOT + "/kids")
    kids = []

    @zk.ChildrenWatch(ROOT + "/kids")
    def on_children(children):
        kids.append(sorted(children))
        seen.release()

    wait()
    for name in ("a", "b"):
        other.create(ROOT + "/kids/" + name)
        wait()
    other.delete(ROOT + "/kids/a")
    wait()
    print("children watch", kids)


def locks(zk, other):
    first, second = zk.Lock(ROOT + "/lock", "first"), other.Lock(ROOT + "/lock", "second")
    print("lock", first.acquire(timeout=WAIT), second.acquire(blocking=False), first.contenders())
    got = threading.Event()
    t = threading.Thread(target=lambda: second.acquire(timeout=WAIT) and got.set())
    t.start()
    first.release()
    print("handed over", got.wait(WAIT), second.contenders())
    t.join(WAIT)
    second.release()
    print("left", zk.get_children(ROOT + "/lock"))
    sem = zk.Semaphore(ROOT + "/sem", "holder", max_leases=2)
    print("semaphore", sem.acquire(timeout=WAIT), sem.lease_holders())
    sem.release()
    led = []
    zk.Election(ROOT + "/election", "candidate").run(lambda: led.append("led"))
    print("election", led)


def barriers(zk, other):
    barrier = zk.Barrier(ROOT + "/barrier")
    barrier.create()
    print("barrier closed", barrier.wait(0))
    other.delete(ROOT + "/barrier")
    print("barrier open", barrier.wait(WAIT))
    a, b = zk.DoubleBarrier(ROOT + "/double", 2, "a"), other.DoubleBarrier(ROOT + "/double", 2, "b")

    def both(name):
        ts = [threading.Thread(target=getattr(x, name)) for x in (a, b)]
        for t in ts:
            t.start()
        for t in ts:
            t.join(WAIT)
        return a.participating, b.participating

    print("double barrier", both("enter"), both("leave"))


def queues(zk, other):
    q = zk.Queue(ROOT + "/queue")
    q.put(b"later", priority=200)
    q.put(b"sooner", priority=10)
    print("queue", len(q), q.get(), q.get(), q.get())
    lq = zk.LockingQueue(ROOT + "/lq")
    lq.put(b"job")
    print("locking queue", lq.get(timeout=WAIT), lq.holds_lock(), lq.consume())
    counter = zk.Counter(ROOT + "/counter")
    counter += 2
    counter -= 5
    print("counter", counter.value)
    party = zk.Party(ROOT + "/party", "me")
    party.join()
    them = other.Party(ROOT + "/party", "them")
    them.join()
    print("party", sorted(party))
    party.leave()
    print("party", sorted(them))
    them.leave()


def main():
    zk, other = client(), client()
    zk.ensure_path(ROOT)
    basics(zk)
    transactions(zk)
    acls(zk)
    watches(zk, other)
    locks(zk, other)
    barriers(zk, other)
    queues(zk, other)
    print("is running", zk.connected, zk.command(b"ruok"))
    other.stop()
    other.close()
    zk.add_auth("digest", "user:password")
    zk.delete(ROOT, recursive=True)
    print("cleaned", zk.exists(ROOT))
    zk.stop()
    zk.close()


main()
