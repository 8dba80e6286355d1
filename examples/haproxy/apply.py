#!/usr/bin/env python3
"""Put the members of a file into the server slots of a HAProxy backend.

    apply.py SOCKET BACKEND FILE

Each line of FILE is "host port weight name". It speaks HAProxy's runtime API,
so nothing is reloaded. It can be run at any time and as often as one likes.
The exit code is 1 when HAProxy refused something.
"""
import socket
import sys

path, backend, name = sys.argv[1:4]


def ask(command):
    """Send one command and return the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        s.connect(path)
        s.sendall(command.encode() + b"\n")
        answer = b""
        while part := s.recv(65536):
            answer += part
    return answer.decode().strip()


def order(command):
    """Give an order: HAProxy says nothing, or what it has changed."""
    answer = ask(command)
    if answer and not answer.startswith(("IP changed", "port changed", "no need to change", "nothing changed")):
        sys.exit(f"{command}: {answer}")


# "1", then a comment with the columns, then one line for each server.
state = [line.split() for line in ask(f"show servers state {backend}").splitlines()[1:]]
slots = [line[3] for line in state if len(line) > 4 and line[0] != "#"]
with open(name, encoding="utf-8") as f:
    members = [line.split() for line in f if line.strip()]
if not slots:
    sys.exit(f"backend {backend} has no servers")
if len(members) > len(slots):
    sys.exit(f"{len(members)} members, and only {len(slots)} slots: raise the number of server-template")
for slot, (host, port, weight, *_) in zip(slots, members):
    order(f"set server {backend}/{slot} addr {host} port {port}")
    order(f"set server {backend}/{slot} weight {min(int(weight), 256)}")
    order(f"set server {backend}/{slot} state ready")
for slot in slots[len(members):]:
    order(f"set server {backend}/{slot} state maint")
