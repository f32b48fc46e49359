"""The pipeline service as one object, in the shape of the other roles' nodes.

Spark blocks, so its work runs on a separate thread (`PipelineWorker`), while the event loop serves metrics and
health.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kshare_pipeline.metrics import PipelineMetrics
from kshare_pipeline.settings import PipelineProcessSettings
from kshare_pipeline.worker import PipelineWorker
from kshare_runtime.ports import Environment
from kshare_servicekit.metrics_server import Metrics

Result = TypeVar("Result")
log = logging.getLogger("kshare_pipeline")


class PipelineNode:
    """The node of the service. `problems` has the failure of the last run, until a run succeeds."""

    def __init__(self, *, environment: Environment, settings: PipelineProcessSettings) -> None:
        self._environment = environment
        self._settings = settings
        self._worker = PipelineWorker(settings)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark")
        self._stopping = asyncio.Event()
        self._runs: asyncio.Task[None] | None = None
        self._problem: str | None = None
        self._failed = asyncio.Event()

    @property
    def address(self) -> str:
        """The data folder: the service has no address, as it serves no clients."""
        return str(self._settings.data_dir)

    def problems(self) -> list[str]:
        return [] if self._problem is None else [self._problem]

    def register_metrics(self, metrics: Metrics) -> None:
        source = PipelineMetrics(self._worker.service, self._worker.counts)
        metrics.add_node("pipeline", self._settings.node_id, source, self.problems)

    async def failed(self) -> str:
        """Returns once Spark has ended: PySpark starts one Java process only."""
        await self._failed.wait()
        return f"Spark's Java process has ended, or its context was stopped: start the pipeline again; {self._problem}"

    async def start(self) -> None:
        await self._on_thread(self._worker.open)
        self._runs = asyncio.get_running_loop().create_task(self._run_always(), name="runs")

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _run_always(self) -> None:
        while not self._stopping.is_set() and not self._failed.is_set():
            await self._run_once()
            try:
                async with asyncio.timeout(self._settings.trigger_interval_ms / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                pass  # the next one is due

    async def _run_once(self) -> None:
        loop = asyncio.get_running_loop()
        service, began_s, now_ms = self._worker.service, loop.time(), self._environment.clock.now_ms()
        try:
            await self._on_thread(lambda: self._worker.run(now_ms))
        except Exception as error:  # the next run retries
            if self._stopping.is_set():
                return
            service.failed += 1
            self._problem = f"the last run failed: {type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            log.exception("a run failed")
            if await self._on_thread(self._worker.has_spark_ended):
                self._failed.set()
        else:
            service.succeeded += 1
            service.last_success_ms = self._environment.clock.now_ms()
            self._problem = None
        service.run_seconds = loop.time() - began_s

    async def stop(self, grace_ms: int) -> None:
        """Ends the current run; its unfinished batch is repeated later."""
        self._stopping.set()
        loop = asyncio.get_running_loop()
        if self._runs is not None:
            await loop.run_in_executor(None, self._worker.interrupt)
            _, pending = await asyncio.wait([self._runs], timeout=grace_ms / 1000)
            if pending:
                log.warning("a run did not end within %d ms; Spark is stopped in the midst of it", grace_ms)
        await loop.run_in_executor(None, self._worker.close)
        self._thread.shutdown(wait=False)
