"""The delivery history: what happened to records of share-partitions, as records of `__share_delivery_history`.

What is written is said by `kshare_core.delivery_history`. On with kshare.delivery.history.enable; nobody ever waits
for it. The way of an event: a served share-partition tells its `PartitionHistory` (`partition_history`), which makes it
text at once (`event_text`) and puts it into the node's `HistoryBuffer` (`buffer`); where that is full the event is
dropped, and its number is missing. A few times a second the `HistoryPublisher` (`publisher`) takes what is there, makes
the topic where it is missing, and sends a record for each share-partition to the leaders of the topic's partitions, as
ordinary Produce calls. `DeliveryHistory` (`delivery_history`) hands out the parts, and keeps the numbers (`numbers`).

Nothing is told of share-partitions of the history topic itself: a share group that reads it would never be done.
"""
