"""kshare's own configs (`kshare.*`), for settings without a Kafka config."""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition, ConfigTable
from kshare_core.configs.rows import MAX_INT, MAX_LONG, boolean, integer, listing, long, password, string

DEFAULT_QUEUED_BYTES = 512 * 1024 * 1024
"""The value of kshare.queued.max.bytes if the usable memory was not determined."""

_ROWS: tuple[ConfigDefinition, ...] = (
    integer(
        "kshare.node.lease.ms",
        10_000,
        low=1_000,
        high=600_000,
        text="Duration of a node's lease, which each heartbeat to the coordinator renews.",
    ),
    integer(
        "kshare.share.coordinators",
        1,
        low=1,
        high=50,
        text="How many share coordinators `kshare up` runs; drain nodes before lowering it.",
    ),
    integer(
        "kshare.leaders",
        1,
        low=1,
        high=50,
        text="How many leaders `kshare up` runs; drain nodes before lowering it.",
    ),
    integer(
        "kshare.coordinators",
        1,
        low=1,
        high=50,
        text="How many coordinators `kshare up` runs; more than one need kshare.metadata.store=etcd or kafka.",
    ),
    long(
        "kshare.memory.budget",
        -1,
        low=-1,
        high=MAX_LONG,
        text="Resident memory (RSS) in bytes of all processes of a `kshare up`, or of a role in a process of its own. "
        "The sizes of all caches derive from it unless they are set, and caches shrink while more is used. -1: for a "
        "role three quarters of the memory that its process may use, at most 1 GiB; for `kshare up` an eighth, at "
        "most 976 MiB with the usual four processes and 744 MiB with one.",
    ),
    integer(
        "kshare.memory.quiet.ms",
        30_000,
        low=100,
        high=MAX_INT,
        text="After this time with almost nothing to do, a process gives the memory of its caches back to the "
        "operating system, all but an eighth of their limits.",
    ),
    long(
        "kshare.store.memtable.bytes",
        96 * 1024 * 1024,
        low=1024 * 1024,
        high=MAX_LONG,
        text="Write buffers of a role's RocksDB, all families together. Not set: derived from kshare.memory.budget.",
    ),
    long(
        "kshare.store.block.cache.bytes",
        32 * 1024 * 1024,
        low=1024 * 1024,
        high=MAX_LONG,
        text="Block cache of a role's RocksDB. Not set: derived from kshare.memory.budget.",
    ),
    long(
        "kshare.gateway.cache.bytes",
        64 * 1024 * 1024,
        low=0,
        high=MAX_LONG,
        text="Size of a gateway's cache for records, including read-ahead; 0 disables it. A gateway that runs in one "
        "process with its leaders has none: it gets batches by reference. Not set: derived from kshare.memory.budget.",
    ),
    long(
        "kshare.queued.max.bytes",
        -1,
        low=-1,
        high=MAX_LONG,
        text="Bytes that a gateway holds of requests (half-received ones, too) and answers, and a leader of answers "
        "with records; beyond it the connections that hold most are not read, and fetches wait. -1: derived from "
        "kshare.memory.budget.",
    ),
    integer(
        "kshare.gateway.stalled.connection.ms",
        10_000,
        low=100,
        high=MAX_INT,
        text="While others wait for memory, a connection that holds some is closed after its client has neither sent "
        "nor read anything for this time.",
    ),
    long(
        "kshare.leader.tail.bytes",
        256 * 1024 * 1024,
        low=0,
        high=MAX_LONG,
        text="Memory of a leader for the newest batches of all logs; older ones are read from disk. Not set: "
        "derived from kshare.memory.budget.",
    ),
    listing(
        "kshare.stray.topics.delete",
        (),
        text="Ids of stray topics whose records a leader removes when it starts. A stray topic is one that the catalog "
        "does not know because the coordinator's store is an older copy; the leader's log names it.",
    ),
    long(
        "kshare.max.decompressed.batch.bytes",
        128 * 1024 * 1024,
        low=1024,
        high=(1 << 31) - 1,
        text="How far a produced record batch may decompress; larger ones are refused with MESSAGE_TOO_LARGE.",
    ),
    long(
        "kshare.leader.inline.batch.bytes",
        1024 * 1024,
        low=0,
        high=MAX_LONG,
        text="Record batches up to this size, after decompression, are read on the leader's event loop; larger ones on"
        " a thread, which costs them about 0.1 ms.",
    ),
    integer(
        "kshare.request.max.elements",
        5_000,
        low=1_000,
        high=250_000,
        text="Elements of all arrays, at every depth, of one request whose elements have to be worked on together "
        "(Produce, ShareFetch, ShareAcknowledge, JoinGroup, heartbeats and others), and partitions of a share session; "
        "more are refused with INVALID_REQUEST. Requests that can be answered in parts, such as Fetch, Metadata and "
        "OffsetCommit, may have 250000.",
    ),
    integer(
        "kshare.max.partitions",
        100_000,
        low=1,
        high=MAX_INT,
        text="Maximum partitions of all topics together; more are refused with POLICY_VIOLATION.",
    ),
    integer(
        "kshare.max.groups",
        100_000,
        low=1,
        high=MAX_INT,
        text="Maximum groups of all types together; more are refused with GROUP_MAX_SIZE_REACHED.",
    ),
    long(
        "kshare.catalog.max.bytes",
        64 * 1024 * 1024,
        low=1024 * 1024,
        high=1024 * 1024 * 1024,
        text="Bytes of all topics with their partitions and configs, and of the configs of groups and brokers, which "
        "every role has in memory; a change that adds to more is refused with POLICY_VIOLATION, deleting is not.",
    ),
    long(
        "kshare.catalog.request.max.bytes",
        8 * 1024 * 1024,
        low=64 * 1024,
        high=16 * 1024 * 1024,
        text="Bytes that one request may write to the catalog, as many as a batch of Kafka's controller may have; more "
        "are refused with POLICY_VIOLATION.",
    ),
    integer(
        "kshare.id.max.bytes",
        1_024,
        low=36,
        high=32_767,
        text="Bytes of a new group id, else INVALID_GROUP_ID; of a new transactional id, and of a new member's member "
        "id, instance id, client id, rack and protocol names, else INVALID_REQUEST. Kafka allows what its protocol can "
        "carry, 32767. Ids that are stored already stay usable.",
    ),
    integer(
        "kshare.member.max.bytes",
        1_048_588,
        low=1_024,
        high=MAX_INT,
        text="Bytes of a member's protocols with their metadata in JoinGroup, or of one assignment in SyncGroup; more "
        "are refused with INVALID_REQUEST. As many as a record of Kafka may have, in which a whole group is stored.",
    ),
    integer(
        "kshare.group.max.bytes",
        24 * 1024 * 1024,
        low=64 * 1024,
        high=32 * 1024 * 1024,
        text="Bytes of a classic consumer group's record: of its members with their protocols, and of their "
        "assignments. The members may take half of it, a join beyond that is refused with GROUP_MAX_SIZE_REACHED; "
        "assignments that make it larger are answered with UNKNOWN_SERVER_ERROR in SyncGroup. In Kafka the record may "
        "have 1,048,588 bytes.",
    ),
    integer(
        "kshare.max.classic.members",
        10_000,
        low=1,
        high=MAX_INT,
        text="Members of one classic consumer group, with the ids that were handed out and not used yet; more are "
        "refused with GROUP_MAX_SIZE_REACHED, whatever group.max.size says.",
    ),
    integer(
        "kshare.share.max.subscribed.topics",
        1_000,
        low=1,
        high=100_000,
        text="Topic names in the subscription of one member of a share group; more are refused with INVALID_REQUEST.",
    ),
    integer(
        "kshare.leader.max.share.partitions",
        -1,
        low=-1,
        high=MAX_INT,
        text="Share-partitions that one leader serves. A share session that opens with others only is answered with "
        "SHARE_SESSION_LIMIT_REACHED; beside partitions that are served, one more is UNKNOWN_SERVER_ERROR. Clients "
        "repeat both. -1: as many as need an eighth of the memory that the process may use, 4 KiB each, but at least "
        "20,000.",
    ),
    integer(
        "kshare.max.committed.offsets",
        1_000_000,
        low=1,
        high=MAX_INT,
        text="Committed offsets of all groups, those in open transactions too; more are refused with POLICY_VIOLATION. "
        "Offsets that replace committed ones, now or at the end of their transaction, are accepted at the limit too.",
    ),
    integer(
        "kshare.max.transactional.ids",
        100_000,
        low=1,
        high=MAX_INT,
        text="Transactional ids that the coordinator knows. At the limit, a new one takes the place of the one unused "
        "longest, but of none with an open transaction or that was used in the last "
        "kshare.transactional.id.min.idle.ms; if all are so, the new one is refused with POLICY_VIOLATION.",
    ),
    long(
        "kshare.transactional.id.min.idle.ms",
        3_600_000,
        low=60_000,
        high=MAX_LONG,
        text="Time without use after which a transactional id may be forgotten at kshare.max.transactional.ids. A "
        "producer whose id was forgotten gets INVALID_PRODUCER_ID_MAPPING and must begin anew, as after "
        "transactional.id.expiration.ms.",
    ),
    integer(
        "kshare.metrics.share.partitions.limit",
        1_000,
        low=0,
        high=MAX_INT,
        text="Share-partitions with metrics of their own at one leader, those with the largest lag; the others are "
        "summed up as (others). The same for groups, and for topics of groups.",
    ),
    integer(
        "kshare.metrics.topics.limit",
        1_000,
        low=0,
        high=MAX_INT,
        text="Topics with metrics of their own at one leader, the largest; the others are summed up as (others).",
    ),
    boolean(
        "kshare.delivery.history.enable",
        False,
        text="Whether leaders write what happens to the records of share groups to the internal topic "
        "__share_delivery_history, which the pipeline reads.",
    ),
    integer(
        "kshare.delivery.history.topic.num.partitions",
        8,
        low=1,
        high=1_000,
        text="Partitions of __share_delivery_history when a leader creates it; they do not change afterwards.",
    ),
    long(
        "kshare.delivery.history.retention.ms",
        7 * 24 * 3_600_000,
        low=-1,
        high=MAX_LONG,
        text="retention.ms of __share_delivery_history when a leader creates it; alter the topic's config later.",
    ),
    long(
        "kshare.delivery.history.buffer.bytes",
        8 * 1024 * 1024,
        low=0,
        high=MAX_LONG,
        text="Delivery events that a leader keeps until they are stored, in bytes; more are dropped and counted. "
        "Deliveries never wait for them. Not set: derived from kshare.memory.budget, at most 8 MiB.",
    ),
    string(
        "kshare.engine",
        "embedded",
        choices=("embedded", "kafka"),
        text="Where logs and share-group state are: in RocksDB of the roles, or in an existing Kafka cluster "
        "(kshare.upstream.*). The same for all roles.",
    ),
    integer(
        "kshare.state.log.mark.interval.ms",
        3_600_000,
        low=1_000,
        high=MAX_INT,
        text="How often a share coordinator marks a state log in an existing cluster that has new records: the records "
        "before a mark can be removed. Only with kshare.engine=kafka, as the next two.",
    ),
    integer(
        "kshare.state.log.mark.interval.records",
        10_000,
        low=100,
        high=MAX_INT,
        text="Records of a state log after which it is marked, however little time has passed.",
    ),
    integer(
        "kshare.state.log.min.records",
        50_000,
        low=1_000,
        high=MAX_INT,
        text="A state log longer than this, and than twice what it holds, is shortened: its oldest states are written "
        "again, and what is before them is removed.",
    ),
    string(
        "kshare.metadata.store",
        "rocksdb",
        choices=("rocksdb", "etcd", "kafka"),
        text="The store of the coordinator's metadata: its own RocksDB, or, shared by several coordinators, an etcd or "
        "a topic of an existing Kafka cluster (kshare.upstream.*).",
    ),
    listing(
        "kshare.metadata.etcd.endpoints",
        (),
        text="etcd's client addresses, host:port each; any of them may fail. Needed with kshare.metadata.store=etcd.",
    ),
    string(
        "kshare.metadata.etcd.prefix",
        "/kshare/",
        text="Prefix of all keys in etcd: clusters that share an etcd need different ones, and none may begin "
        "with another's.",
    ),
    string(
        "kshare.rpc.ssl.keystore.location",
        "",
        text="A file with a role's key and certificate, in PEM also a directory with tls.crt and tls.key; given, "
        "streams between roles are TLS, and both ends must show one. All roles need it, and what calls them.",
    ),
    string("kshare.rpc.ssl.keystore.type", "PEM", text="PEM or PKCS12."),
    password("kshare.rpc.ssl.keystore.password", "", text="Password of a PKCS12 keystore."),
    password("kshare.rpc.ssl.key.password", "", text="Password of an encrypted private key in PEM."),
    string(
        "kshare.rpc.ssl.truststore.location",
        "",
        text="A file with the authorities that sign the roles' certificates.",
    ),
    string("kshare.rpc.ssl.truststore.type", "PEM", text="PEM or PKCS12."),
    password("kshare.rpc.ssl.truststore.password", "", text="Password of a PKCS12 truststore."),
    string(
        "kshare.rpc.ssl.endpoint.identification.algorithm",
        "https",
        choices=("https", ""),
        text="https: a certificate must contain the called host; empty: any certificate of the truststore is accepted.",
    ),
    boolean(
        "kshare.rpc.ssl.roles.required",
        False,
        text="Whether the certificates of roles must name them, as the URI kshare://role/leader. A certificate with "
        "such names allows the calls of its roles only, whatever this says.",
    ),
    password(
        "kshare.metrics.bearer.token",
        "",
        text="What a scrape of /metrics must show, as Authorization: Bearer; empty: nothing, but with an authorizer "
        "no scrape is answered then.",
    ),
    string(
        "kshare.metadata.etcd.ca.location",
        "",
        text="PEM file with the certificates of those that may sign etcd's; given, the connection is TLS.",
    ),
    string(
        "kshare.metadata.etcd.certificate.location",
        "",
        text="PEM file with the certificate that the coordinator shows to etcd; needs the key's location, too.",
    ),
    string(
        "kshare.metadata.etcd.key.location",
        "",
        text="PEM file with the private key of kshare.metadata.etcd.certificate.location.",
    ),
    string(
        "kshare.metadata.etcd.username",
        "",
        text="User for etcd's authentication; empty if authentication is off.",
    ),
    password(
        "kshare.metadata.etcd.password",
        "",
        text="Password of kshare.metadata.etcd.username.",
    ),
    integer(
        "kshare.coordinator.lease.ms",
        5_000,
        low=2_000,
        high=600_000,
        text="How long a coordinator may answer after etcd, or the topic of the metadata, last had a record from it; "
        "when it dies, others take over after this time. Only with kshare.metadata.store=etcd or kafka.",
    ),
)

KSHARE_CONFIGS: ConfigTable = {definition.name: definition for definition in _ROWS}
