"""The whole examination of a cluster: what its brokers serve, how they are configured, and a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kshare_upstream.connection import NotServed
from kshare_upstream.doctor.configs import examine_configs
from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_upstream.doctor.history_topic import examine_history_topic
from kshare_upstream.doctor.served_apis import examine_apis
from kshare_upstream.doctor.trial import Trial, examine_by_trial
from kshare_upstream.port import Upstream
from kshare_upstream.topics import replication_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What an examination is given."""

    bootstrap: str
    """As the user wrote it, for commands."""
    prefix: str
    """The prefix of kshare's topics."""
    suffix: str
    """Random, so that two examinations at once have topics of their own."""
    now_ms: Callable[[], float]
    """A monotonic clock."""
    has_history: bool = False
    """Whether the delivery history is to be written."""


async def examine(upstream: Upstream, examination: Examination) -> Diagnosis:
    """All findings about a cluster that can be reached; ConnectionLost or AuthenticationFailed if it cannot be.

    The trial is left out where the brokers are too old for it.
    """
    diagnosis = Diagnosis()
    view = await upstream.describe([])
    examine_apis(await upstream.versions(), len(view.brokers), diagnosis)
    if diagnosis.is_refused:
        return diagnosis
    try:
        await examine_configs(upstream, view, examination.bootstrap, diagnosis)
        trial = Trial(
            topic=f"{examination.prefix}check_{examination.suffix}",
            prefix=examination.prefix,
            replicas=replication_factor(len(view.brokers)),
            bootstrap=examination.bootstrap,
            now_ms=examination.now_ms,
        )
        await examine_by_trial(upstream, trial, diagnosis)
        if examination.has_history:
            await examine_history_topic(upstream, examination.bootstrap, trial.replicas, diagnosis)
    except NotServed as problem:
        diagnosis.add(Severity.REFUSAL, str(problem))
    return diagnosis
