"""Length limits of ids chosen by clients, and of the texts that describe a member.

In Kafka only the protocol bounds them, at 32,767 bytes. kshare keeps them in memory and sends them between roles by the
hundred thousand, so `kshare.id.max.bytes` bounds new ones. Stored ids are not checked: an older version may have stored
longer ids, and those stay usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.groups.namespace import group_type
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

JOIN_EPOCH = 0
SHOWN_CHARACTERS = 50


def check_group_id(group_id: str, configs: Configs) -> None:
    """KafkaError INVALID_GROUP_ID where a new group may not have the id."""
    _check("group id", group_id, configs, ErrorCode.INVALID_GROUP_ID)


def _check(what: str, text: str, configs: Configs, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
    limit = configs.integer("kshare.id.max.bytes")
    if 4 * len(text) > limit and (size := len(text.encode())) > limit:
        shown = text[:SHOWN_CHARACTERS]
        raise KafkaError(code, f"The {what} {shown}... has {size} bytes; kshare.id.max.bytes allows {limit}")


class NameLimits:
    """Checks the names in a command before it is decided."""

    def __init__(self, state: CoordinatorState, configs: Configs) -> None:
        self._state = state
        self._configs = configs
        self._checks: dict[type[Command[Any]], Callable[[Any], None]] = {
            commands.ShareGroupHeartbeat: self._heartbeat,
            commands.ConsumerGroupHeartbeat: self._heartbeat,
            commands.JoinGroup: self._join,
            commands.SyncGroup: self._sync,
            commands.OffsetCommit: self._of_group,
            commands.TxnOffsetCommit: self._of_group,
            commands.AlterShareGroupOffsets: self._of_group,
            commands.AddOffsetsToTransaction: self._of_group,
            commands.InitTransactionalProducer: self._init_producer,
        }

    def check(self, command: Command[Any]) -> None:
        """KafkaError INVALID_GROUP_ID or INVALID_REQUEST."""
        check = self._checks.get(type(command))
        if check is not None:
            check(command)

    def _of_group(self, command: Any) -> None:
        group_id = command.request.group_id
        if group_type(self._state, group_id) is None:
            check_group_id(group_id, self._configs)

    def _heartbeat(self, command: commands.ShareGroupHeartbeat | commands.ConsumerGroupHeartbeat) -> None:
        request = command.request
        names = [("client id", request.client_id), ("rack", request.rack_id)]
        if request.member_epoch == JOIN_EPOCH:
            self._of_group(command)
            names.append(("member id", request.member_id))
            if isinstance(request, pb.ConsumerGroupHeartbeatRequest):
                names.append(("instance id", request.instance_id))
        self._check_all(names)

    def _join(self, command: commands.JoinGroup) -> None:
        request = command.request
        self._of_group(command)
        self._check_size("protocols", sum(len(each.name) + len(each.metadata) for each in request.protocols))
        group = self._state.classic_groups.get(request.group_id)
        if group is not None and request.member_id in group.members:
            return
        names = [("client id", request.client_id), ("instance id", request.group_instance_id)]
        names += [("protocol type", request.protocol_type)]
        self._check_all([*names, *(("protocol name", protocol.name) for protocol in request.protocols)])

    def _check_all(self, names: Iterable[tuple[str, str]]) -> None:
        for what, text in names:
            _check(what, text, self._configs)

    def _sync(self, command: commands.SyncGroup) -> None:
        for assignment in command.request.assignments:
            self._check_size("assignment", len(assignment.assignment))

    def _check_size(self, what: str, size: int) -> None:
        limit = self._configs.integer("kshare.member.max.bytes")
        if size > limit:
            text = f"The member's {what} has {size} bytes; kshare.member.max.bytes allows {limit}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    def _init_producer(self, command: commands.InitTransactionalProducer) -> None:
        transactional_id = command.request.transactional_id
        if transactional_id not in self._state.transactions:
            _check("transactional id", transactional_id, self._configs)
