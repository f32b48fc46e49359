"""The delivery history: what happened to records of share-partitions, as records of `__share_delivery_history`.

`kshare_core.delivery_history` defines the format. kshare.delivery.history.enable turns the history on; no request ever
waits for it. The path of an event: a served share-partition calls its `PartitionHistory` (`partition_history`), which
encodes the event (`event_text`) at once and adds it to the node's `HistoryBuffer` (`buffer`). If it is full, the event
is dropped, and its sequence number is missing. A few times a second the `HistoryPublisher` (`publisher`) takes all
buffered events and sends a record per share-partition to the leaders of the topic's partitions, as ordinary Produce
calls: through the port `target`, which is `leader_target` with the embedded engine and `cluster_target` with the kafka
engine. `DeliveryHistory` (`delivery_history`) creates the parts and keeps the numbers (`numbers`).

Share-partitions of the history topic itself have no history: a share group that reads it would create events endlessly.
"""
