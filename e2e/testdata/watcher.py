"""An independent watcher: prints every event on a member and on candidates.

usage: watcher.py HOSTS DIRECTORY...

It watches the children of each directory and the data of each child. It says
"ready" when all watches are set, one line for each event, and, when its
standard input ends, the creation zxids of the children.
"""
import logging
import sys
import threading

from kazoo.client import KazooClient

logging.basicConfig(level=logging.CRITICAL)
lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def main():
    hosts, directories = sys.argv[1], sys.argv[2:]
    client = KazooClient(hosts=hosts, timeout=60)
    client.start(timeout=120)

    ended = threading.Event()

    def event(e):
        if ended.is_set() and e.type == "NONE":
            return  # kazoo tells every open watch that its own client stops
        say("event", e.type, e.state, e.path)

    names = {d: sorted(client.get_children(d, watch=event)) for d in directories}
    for d in directories:
        for name in names[d]:
            client.get(d + "/" + name, watch=event)
    say("ready")
    sys.stdin.read()
    for d in directories:
        client.sync(d)
        for name in sorted(client.get_children(d)):
            stat = client.exists(d + "/" + name)
            if stat:
                say("child", d, stat.czxid, stat.mzxid)
    ended.set()
    client.stop()


main()
