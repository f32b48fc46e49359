"""The names of client quotas and the entities that may have them (QuotaConfig and ClientQuotaEntity of Kafka 4.3.1)."""

from __future__ import annotations

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

OF_CLIENTS = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE})
OF_IPS = frozenset({CONNECTION_CREATION_RATE})
INTEGER_QUOTAS = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""Quotas that must be whole numbers, and the highest one allowed."""


def quotas_of_types(types: frozenset[str]) -> frozenset[str]:
    """The quotas that an entity with these fields (user, client_id, ip) may have."""
    return OF_IPS if types == {"ip"} else OF_CLIENTS
