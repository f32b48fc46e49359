"""Share-group state that a share coordinator does not have although it was initialized there.

So it is after a share coordinator's store was restored from a backup that is older than the initialization, or replaced
by an empty one. Without state a leader delivers no records of the share-partition.
"""

from __future__ import annotations

from kshare_coordinator.machine.commands import BeginStateAnew, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.heartbeats import draft_of
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_runtime.machine import Decision


@decides(BeginStateAnew)
def decide_begin_state_anew(
    state: CoordinatorState, command: BeginStateAnew, settings: GroupSettings, now_ms: int
) -> Decision[Record, int, Effect]:
    """Restarts lost share-partitions at the first record; the answer is their number.

    The state epoch stays. So what was initialized since the command's state epoch was read is not replaced: it has this
    state epoch or a later one, and then nothing is done.
    """
    group = state.share_groups.get(command.group_id)
    if group is None:
        return Decision((), 0)
    draft = draft_of(state, group, settings, now_ms)
    lost = draft.begin_lost_anew(command.lost, command.state_epoch)
    return Decision(draft.records(), lost, draft.effects())
