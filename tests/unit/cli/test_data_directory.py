"""One `kshare up` on a directory at a time; ports that stay; addresses."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kshare.addresses import Address, bind_problem, free_port, parse_address
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import DataDirectory, write_atomically
from kshare.up.plan import GATEWAY, coordinator_count, node_command, plan_cluster
from kshare_core.configs import process_configs


def test_a_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    with pytest.raises(CommandFailed, match=f"in use.*{os.getpid()}") as refused:
        DataDirectory(tmp_path / "data")
    assert refused.value.exit_code == BAD_USE
    first.close()
    DataDirectory(tmp_path / "data").close()


def test_other_users_of_the_machine_do_not_get_into_a_new_one(tmp_path: Path) -> None:
    """Records, credentials and keys are in it. One that somebody made before is left as it is."""
    DataDirectory(tmp_path / "new").close()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "shared").mkdir(mode=0o755)
    DataDirectory(tmp_path / "shared").close()
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(CommandFailed, match="cannot use data directory"):
        DataDirectory(tmp_path / "data")


def test_ready_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.ready_file("leader").write_text("")
    directory.close()
    directory = DataDirectory(tmp_path)
    assert not directory.ready_file("leader").exists()
    directory.close()


def test_ports_stay_the_same_and_differ_from_each_other(tmp_path: Path) -> None:
    plans = []
    for _ in range(2):
        directory = DataDirectory(tmp_path)
        plans.append(plan_cluster(directory, Address("127.0.0.1", 0), None, None))
        directory.close()
    assert plans[0] == plans[1]
    ports = [plans[0].client_address.port, *(address.port for address in plans[0].addresses.values())]
    assert len(set(ports)) == len(plans[0].nodes) == 4


def test_a_remembered_port_that_another_program_took_is_replaced(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        directory.remember_ports({"leader": taken})
        plan = plan_cluster(directory, Address("127.0.0.1", 0), None, None)
        assert plan.addresses["leader"].port != taken
    directory.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"leader": "x"}'])
def test_a_broken_ports_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    directory = DataDirectory(tmp_path)
    (tmp_path / "ports.json").write_text(content)
    assert directory.remembered_ports() == {}
    directory.close()


def test_a_client_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(CommandFailed, match=f"cannot listen on {address}") as refused:
            plan_cluster(directory, address, None, None)
    assert refused.value.exit_code == BAD_USE
    directory.close()


def test_every_role_is_told_where_the_coordinator_is(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    plan = plan_cluster(directory, Address("127.0.0.1", 0), Address("example.org", 9), tmp_path / "c.properties")
    for node in plan.nodes:
        command = node_command(directory, plan, node)
        assert command[1:3] == ["-m", f"kshare_{node.role.replace('-', '_')}"]
        options = dict(zip(command[3::2], command[4::2], strict=True))
        assert options["--coordinator-address"] == plan.coordinator_address
        assert options["--config"] == str(tmp_path / "c.properties")
        if node.role == GATEWAY:
            assert (options["--advertised-host"], options["--advertised-port"]) == ("example.org", "9")
            assert options["--client-listen"] == str(plan.client_address)
    directory.close()


def test_share_coordinators_have_ids_ports_and_directories_of_their_own(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    plan = plan_cluster(directory, Address("127.0.0.1", 0), None, None, share_coordinators=3)
    commands = [node_command(directory, plan, node) for node in plan.share_coordinators]
    options = [dict(zip(command[3::2], command[4::2], strict=True)) for command in commands]
    assert {tuple(command[1:3]) for command in commands} == {("-m", "kshare_share_coordinator")}
    assert [each["--node-id"] for each in options] == ["1", "2", "3"]
    assert [Path(each["--data-dir"]) for each in options] == [
        tmp_path,
        tmp_path / "share-coordinator-2",
        tmp_path / "share-coordinator-3",
    ]
    assert len({each["--listen"] for each in options}) == len({each["--ready-file"] for each in options}) == 3
    assert [node.name for node in plan.nodes] == [
        "coordinator",
        "share-coordinator",
        "share-coordinator-2",
        "share-coordinator-3",
        "leader",
        "gateway",
    ]
    directory.close()
    again = DataDirectory(tmp_path)
    fewer = plan_cluster(again, Address("127.0.0.1", 0), None, None)
    assert fewer.addresses["share-coordinator"] == plan.addresses["share-coordinator"]
    again.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", Address("localhost", 9092)),
        ("[::1]:0", Address("::1", 0)),
        ("0.0.0.0:1", Address("0.0.0.0", 1)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text, what="--listen") == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "localhost", ":9092", "localhost:", "localhost:65536", "localhost:-1", "localhost:1x"]
)
def test_bad_addresses_are_refused_by_name(text: str) -> None:
    with pytest.raises(CommandFailed, match="--listen must be HOST:PORT"):
        parse_address(text, what="--listen")


def test_no_port_is_free_at_another_machines_address() -> None:
    assert bind_problem(Address("192.0.2.1", 0)) is not None
    with pytest.raises(CommandFailed, match=r"cannot listen on 192\.0\.2\.1"):
        free_port("192.0.2.1")


def test_a_port_that_one_process_drew_is_drawn_by_no_other() -> None:
    """Its roles listen seconds later. The other process draws all ports around it and has had the same one before."""
    port = free_port("127.0.0.1")
    program = f"""
import kshare.addresses
from kshare.addresses import free_port
from kshare.failure import CommandFailed

print(free_port("127.0.0.1", remembered={port}))
kshare.addresses.ROLE_PORTS = range({port} - 100, {port} + 100)
try:
    for _ in range(201):
        print(free_port("127.0.0.1"))
except CommandFailed:
    pass
"""
    drawn = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert len(drawn) > 100
    assert len(set(drawn)) == len(drawn)
    assert str(port) not in drawn
    assert free_port("127.0.0.1", remembered=port) == port
    assert free_port("127.0.0.1", remembered=int(drawn[-1])) == int(drawn[-1])  # reserved no longer than its process


def test_an_address_at_which_somebody_listens_cannot_be_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = Address("127.0.0.1", listening.getsockname()[1])
        assert bind_problem(taken) is not None
    assert bind_problem(taken) is None


def test_a_client_that_waits_for_an_address_is_not_accepted_while_it_is_tried() -> None:
    """It would be reset, where it is refused before and has a connection afterwards."""
    address = Address("127.0.0.1", free_port("127.0.0.1"))
    ends: set[type[BaseException] | None] = set()
    is_over = threading.Event()

    def connect_again_and_again() -> None:
        while not is_over.is_set():
            try:
                socket.create_connection((address.host, address.port), timeout=5).close()
                ends.add(None)
            except OSError as error:
                ends.add(type(error))

    client = threading.Thread(target=connect_again_and_again)
    client.start()
    for _ in range(2_000):
        assert bind_problem(address) is None
    is_over.set()
    client.join()
    assert ends == {ConnectionRefusedError}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ready", "127.0.0.1:1")
    assert (tmp_path / "ready").read_text() == "127.0.0.1:1"
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
    with pytest.raises(CommandFailed, match="cannot write"):
        write_atomically(tmp_path / "nowhere" / "ready", "")


def test_every_node_is_told_all_coordinators(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    plan = plan_cluster(directory, Address("127.0.0.1", 0), None, None, coordinators=3)
    commands = [node_command(directory, plan, node) for node in plan.nodes]
    options = [dict(zip(command[3::2], command[4::2], strict=True)) for command in commands]
    coordinators = options[:3]
    assert [node.name for node in plan.coordinators] == ["coordinator", "coordinator-2", "coordinator-3"]
    assert [each["--node-id"] for each in coordinators] == ["1", "2", "3"]
    assert Path(coordinators[1]["--data-dir"]) == tmp_path / "coordinator-2"
    told = {each["--coordinator-address"] for each in options}
    assert told == {",".join(each["--listen"] for each in coordinators)}
    directory.close()


def test_several_coordinators_need_etcd() -> None:
    assert coordinator_count(process_configs({})[0]) == 1
    shared = {"kshare.metadata.store": "etcd", "kshare.metadata.etcd.endpoints": "127.0.0.1:2379"}
    assert coordinator_count(process_configs({"kshare.coordinators": "3", **shared})[0]) == 3
    text = "kshare.coordinators is 3, but kshare.metadata.store=rocksdb .*need kshare.metadata.store=etcd"
    with pytest.raises(CommandFailed, match=text) as refused:
        coordinator_count(process_configs({"kshare.coordinators": "3"})[0])
    assert refused.value.exit_code == BAD_USE
