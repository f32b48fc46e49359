"""Configs of the authorizer, which Kafka's broker hands to StandardAuthorizer; DescribeConfigs does not show them."""

from __future__ import annotations

from kshare_core.configs.definition import ConfigTable
from kshare_core.configs.rows import boolean, string

AUTHORIZER_CONFIGS: ConfigTable = {
    row.name: row
    for row in (
        string(
            "super.users",
            "",
            text="Principals that may do everything, with semicolons between them: User:admin;User:operator.",
        ),
        boolean(
            "allow.everyone.if.no.acl.found",
            False,
            text="Whether everybody may use a resource that no ACL is about.",
        ),
    )
}
