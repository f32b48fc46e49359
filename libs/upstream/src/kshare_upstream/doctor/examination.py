"""The whole examination of a cluster: what its brokers serve, how they are configured, and a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kshare_core.errors import ErrorCode
from kshare_upstream.connection import NotServed
from kshare_upstream.doctor.configs import examine_configs, examine_replicas
from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_upstream.doctor.history_topic import examine_history_topic
from kshare_upstream.doctor.served_apis import examine_apis
from kshare_upstream.doctor.trial import Trial, examine_by_trial
from kshare_upstream.own_topics import dead_letter_notes_topic
from kshare_upstream.port import ClusterView, Upstream
from kshare_upstream.topics import DEFAULT_REPLICAS, Replicas, replication_factor


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
    wall_clock_ms: int
    """The time of the examination."""
    has_history: bool = False
    """Whether the delivery history is to be written."""
    topics_of_earlier_work: Sequence[str] = ()
    """kshare's own topics: where all exist kshare has worked, and there is no trial. Empty: always a trial."""
    own_topics: Sequence[str] = ()
    """kshare's own topics that it needs to start."""
    replicas: Replicas = DEFAULT_REPLICAS


async def examine(upstream: Upstream, examination: Examination) -> Diagnosis:
    """All findings about a cluster that can be reached; ConnectionLost or AuthenticationFailed if it cannot be.

    The trial is left out where the brokers are too old for it, and where kshare has worked before.
    """
    diagnosis = Diagnosis()
    own_topics = [*examination.own_topics, dead_letter_notes_topic(examination.prefix)]
    view = await upstream.describe(list(dict.fromkeys([*examination.topics_of_earlier_work, *own_topics])))
    examine_apis(await upstream.versions(), len(view.brokers), diagnosis)
    if diagnosis.is_refused:
        return diagnosis
    try:
        await examine_configs(upstream, view, examination.bootstrap, diagnosis)
        examine_replicas(view, own_topics, examination.replicas.wanted, diagnosis)
        replicas = examination.replicas.for_new_topic(len(view.brokers))
        if _has_worked_there(view, examination.own_topics):  # brokers that are missing now do not matter
            replicas = replication_factor(len(view.brokers), replicas)
        if not _has_worked_there(view, examination.topics_of_earlier_work):
            trial = Trial(
                topic=f"{examination.prefix}check_{examination.suffix}",
                prefix=examination.prefix,
                replicas=replicas,
                bootstrap=examination.bootstrap,
                now_ms=examination.now_ms,
                wall_clock_ms=examination.wall_clock_ms,
            )
            await examine_by_trial(upstream, trial, diagnosis)
        if examination.has_history:
            await examine_history_topic(upstream, examination.bootstrap, replicas, diagnosis)
    except NotServed as problem:
        diagnosis.add(Severity.REFUSAL, str(problem))
    return diagnosis


def _has_worked_there(view: ClusterView, topics: Sequence[str]) -> bool:
    """Whether there are topics to look for, and all of them exist."""
    return bool(topics) and all(view.topics[name].error_code == ErrorCode.NONE for name in topics)
