"""The topics that every client can see although no leader has them: their names and ids.

Their ids are the same in every cluster, so that what is noted by id (committed offsets) stays true.
"""

from __future__ import annotations

STATE_TOPIC = "__share_group_state"
STATE_TOPIC_ID = b"__share_group_st"
"""It can be read, so consumer groups can commit offsets of it."""
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
CONSUMER_OFFSETS_TOPIC_ID = b"__consumer_offse"
"""It cannot be read."""
INTERNAL_TOPICS = {STATE_TOPIC: STATE_TOPIC_ID, CONSUMER_OFFSETS_TOPIC: CONSUMER_OFFSETS_TOPIC_ID}
"""Ids by name."""
