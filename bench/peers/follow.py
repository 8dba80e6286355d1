"""Follows the children of a znode with kazoo and keeps a file of them.

follow.py SERVER ZNODE FILE: one line "name=data" a child, written anew, synced
and renamed at each change. Prints "ready" when the file is there.
"""
import os
import sys

from kazoo.client import KazooClient

server, root, path = sys.argv[1:]
client = KazooClient(hosts=server)
client.start()
values = {}
ready = False


def write():
    with open(path + ".tmp", "w") as f:
        for name in sorted(values):
            f.write("%s=%s\n" % (name, values[name]))
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)
    d = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(d)
    os.close(d)


def follow(name):
    def changed(data, stat):
        if data is not None:
            values[name] = data.decode()
        else:
            values.pop(name, None)
        if ready:
            write()
    client.DataWatch(root + "/" + name, changed)


@client.ChildrenWatch(root)
def children(names):
    for name in names:
        if name not in values:
            follow(name)


ready = True
write()
print("ready", flush=True)
sys.stdin.read()
client.stop()
