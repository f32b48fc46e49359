"""The mirror: the catalog learns from the existing cluster which topics there are (`kshare.engine=kafka`).

| module | holds |
|---|---|
| `wanted_topics` | the names that share groups need |
| `sightings` | what views of the cluster say about topics, and when an absence is believed |
| `topic_mirror` | the polls and look-ups, which end in the machine's command MirrorTopics |
"""
