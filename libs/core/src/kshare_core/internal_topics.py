"""Names and ids of the internal topics that clients can see although no leader has them.

Their ids are the same in every cluster, so that data stored by id (committed offsets) stays valid.
"""

from __future__ import annotations

STATE_TOPIC = "__share_group_state"
STATE_TOPIC_ID = b"__share_group_st"
"""The id of the state topic. The topic can be read, so consumer groups can commit offsets of it."""
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
CONSUMER_OFFSETS_TOPIC_ID = b"__consumer_offse"
"""The id of the offsets topic, which cannot be read."""
INTERNAL_TOPICS = {STATE_TOPIC: STATE_TOPIC_ID, CONSUMER_OFFSETS_TOPIC: CONSUMER_OFFSETS_TOPIC_ID}
"""Ids by name."""
