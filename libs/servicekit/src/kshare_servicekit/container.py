"""The entry point of a container: `python -m kshare_servicekit.container ROLE [flags]` becomes that role's process.

It sets the values that only the running container knows, unless a flag or a variable gives them:

- KSHARE_DATA_DIR, if KSHARE_SHARED_VOLUME names a volume that all replicas of a role mount, as in Docker Compose: the
  first directory of it (replica-1, replica-2, …) that no running container uses. A lock on a file in the directory,
  held until the process ends, keeps other containers out. So recreated containers take over the data of the former
  ones, and an additional replica begins with an empty directory. This directory replaces a given KSHARE_DATA_DIR.
- KSHARE_NODE_ID. In a StatefulSet, the pod's ordinal plus one ("kshare-leader-0" is node 1). Else the content of the
  data directory's file `node-id`, which is drawn once, at the first start, so that a replica that Docker Compose scales
  up keeps its id together with its data. A gateway has no volume; its id comes from its IPv4 address, whose last three
  bytes differ within any one network of containers, or from a hash of its IPv6 address.
- KSHARE_NODE_ID=address stands for an id from the address, for roles that keep nothing on a disk
  (kshare.engine=kafka), whose pods have no ordinals; see `id_of_address`.
- KSHARE_ADVERTISED_ADDRESS. The container's own address, with the port of KSHARE_LISTEN; the pod's name below the
  headless Service of KSHARE_ADVERTISED_SERVICE, where certificates must contain a name.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

NODE_ID_FILE = "node-id"
REPLICA_DIRECTORY = "replica-"
LOCK_FILE = "lock"
REPLICA_LIMIT = 1_000
FIRST_DRAWN_NODE_ID = 1_000
"""The lowest drawn id; lower ids are for people to assign."""
LARGEST_NODE_ID = 2**31 - 1
OF_ADDRESS = "address"
"""The value of KSHARE_NODE_ID that stands for the id from the container's address."""
_ORDINAL = re.compile(r"-(\d{1,6})$")


class CannotStart(Exception):
    """The role cannot be started; the text says what is missing."""


def claimed_directory(volume: Path) -> Path:
    """The lowest-numbered directory of a shared volume that no process has locked; CannotStart, OSError.

    This process holds the lock until it ends, also after an exec.
    """
    for number in range(1, REPLICA_LIMIT + 1):
        directory = volume / f"{REPLICA_DIRECTORY}{number}"
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.set_inheritable(lock, True)
        return directory
    raise CannotStart(f"{REPLICA_LIMIT} containers already use all directories of {volume}")


def completed_environment(
    role: str,
    environment: Mapping[str, str],
    *,
    hostname: str,
    own_address: Callable[[], str],
    draw_node_id: Callable[[], int],
) -> dict[str, str]:
    """The environment of the role's process; CannotStart if the node id cannot be stored."""
    found = dict(environment)
    if volume := environment.get("KSHARE_SHARED_VOLUME"):
        found["KSHARE_DATA_DIR"] = str(claimed_directory(Path(volume)))
    if found.get("KSHARE_NODE_ID") == OF_ADDRESS:
        found["KSHARE_NODE_ID"] = str(id_of_address(own_address()))
    elif not found.get("KSHARE_NODE_ID"):
        found["KSHARE_NODE_ID"] = str(_node_id(role, found, hostname, own_address, draw_node_id))
    port = environment.get("KSHARE_LISTEN", "").rpartition(":")[2]
    if not found.get("KSHARE_ADVERTISED_ADDRESS") and port not in ("", "0"):
        found["KSHARE_ADVERTISED_ADDRESS"] = f"{_reachable_host(environment, own_address())}:{port}"
    return found


def id_of_address(address: str) -> int:
    """The lower 31 bits of an IPv4 address, which differ between private addresses (RFC 1918, RFC 6598).

    Of an IPv6 address it is 31 bits of a hash: nodes of Kubernetes give their pods the same lower bits. Two of 100
    pods have the same id with a probability of 2 in a million.

    The network keeps running containers apart, so nothing has to be drawn, stored or checked for a collision. A
    container that is restarted in its pod keeps the id, and its new incarnation replaces the former one at once. A
    later container with the same address does so, too, which is right for a role that left nothing on a disk.
    """
    parsed = ipaddress.ip_address(address)
    return _hash_of(parsed) if parsed.version == 6 else int(parsed) & LARGEST_NODE_ID


def _hash_of(address: ipaddress.IPv6Address) -> int:
    return int.from_bytes(hashlib.blake2s(address.packed, digest_size=4).digest(), "big") & LARGEST_NODE_ID


def _reachable_host(environment: Mapping[str, str], address: str) -> str:
    """Kubernetes names a pod without a hostname of its own by its address: 10-244-0-7.SERVICE.NAMESPACE.svc."""
    service = environment.get("KSHARE_ADVERTISED_SERVICE", "")
    if service:
        return f"{address.replace('.', '-').replace(':', '-')}.{service}"
    return f"[{address}]" if ":" in address else address


def _node_id(
    role: str,
    environment: Mapping[str, str],
    hostname: str,
    own_address: Callable[[], str],
    draw_node_id: Callable[[], int],
) -> int:
    ordinal = _ORDINAL.search(hostname)
    if ordinal is not None and role != "gateway":
        return int(ordinal[1]) + 1
    if role == "gateway":
        address = ipaddress.ip_address(own_address())
        return _hash_of(address) if address.version == 6 else int(address) & 0xFFFFFF
    data_dir = environment.get("KSHARE_DATA_DIR")
    if not data_dir:
        raise CannotStart("KSHARE_NODE_ID is not set, and without KSHARE_DATA_DIR a node id cannot be stored")
    return _kept_node_id(Path(data_dir) / NODE_ID_FILE, draw_node_id)


def _kept_node_id(path: Path, draw_node_id: Callable[[], int]) -> int:
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        node_id = draw_node_id()
        _write_durably(path, f"{node_id}\n")
        return node_id
    if not text.strip().isdecimal() or int(text) > LARGEST_NODE_ID:
        raise CannotStart(f"{path} has {text[:80]!r}; it must have the node id, a number up to {LARGEST_NODE_ID}")
    return int(text)


def _write_durably(path: Path, text: str) -> None:
    """Writes a file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _own_address() -> str:
    """The container's first IPv4 address, else its first IPv6 address; OSError."""
    found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    addresses = sorted(((family, str(place[0])) for family, *_, place in found), key=_is_ipv6)
    return addresses[0][1]


def _is_ipv6(found: tuple[socket.AddressFamily, str]) -> bool:
    return found[0] == socket.AF_INET6


def _draw_node_id() -> int:
    return FIRST_DRAWN_NODE_ID + secrets.randbelow(LARGEST_NODE_ID - FIRST_DRAWN_NODE_ID + 1)


def main(arguments: Sequence[str]) -> NoReturn:
    """Becomes the role's process; exit code 2 if the role cannot be started."""
    if not arguments:
        sys.stderr.write("usage: python -m kshare_servicekit.container ROLE [flags of the role]\n")
        sys.exit(2)
    role, *flags = arguments
    try:
        environment = completed_environment(
            role,
            os.environ,
            hostname=socket.gethostname(),
            own_address=_own_address,
            draw_node_id=_draw_node_id,
        )
    except (CannotStart, OSError) as error:
        sys.stderr.write(f"kshare {role}: {error}\n")
        sys.exit(2)
    command = [sys.executable, "-m", f"kshare_{role.replace('-', '_')}", *flags]
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
