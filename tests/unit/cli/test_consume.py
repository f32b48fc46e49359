"""`kshare consume` ends, also where librdkafka does not."""

from __future__ import annotations

import threading
from typing import Any, cast

from confluent_kafka import KafkaException

from kshare.commands.consume import close_in_time


class Consumer:
    """A ShareConsumer as far as it is closed."""

    def __init__(self, close: Any) -> None:
        self.close = close


def test_a_close_that_does_not_end() -> None:
    began, released, ended = threading.Event(), threading.Event(), threading.Event()

    def close() -> None:
        began.set()
        released.wait(60)
        ended.set()

    close_in_time(cast(Any, Consumer(close)), limit_s=0.05)
    assert began.wait(30) and not ended.is_set()
    released.set()


def test_a_close_that_fails() -> None:
    def close() -> None:
        raise KafkaException("no broker")

    close_in_time(cast(Any, Consumer(close)), limit_s=30)
