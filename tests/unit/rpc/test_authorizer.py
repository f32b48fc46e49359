"""The authorizer against a naive model of Kafka's rules, and its views of changing ACLs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_core.security.addresses import address_text
from kshare_rpc.authorizer import Authorizer, SecurityRows, configured_authorizer
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl, SecurityEntry, SecurityKey, SecurityValue

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALICE, HOST = "User:alice", "10.0.0.1"
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


class Rule(NamedTuple):
    principal: str
    host: str
    operation: Operation
    permission_type: PermissionType
    name: str
    pattern_type: PatternType

    def message(self) -> Acl:
        return Acl(
            resource_type=ResourceType.TOPIC,
            resource_name=self.name,
            pattern_type=self.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=self.permission_type,
        )

    def names(self, name: str) -> bool:
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, "*")


def rows_of(rules: Iterable[Rule]) -> SecurityRows:
    keys = [SecurityKey(acl=rule.message()) for rule in rules]
    return {key.SerializeToString(): SecurityEntry(key=key, value=SecurityValue()) for key in keys}


def authorizer_of(rules: Iterable[Rule], **settings: str) -> Authorizer:
    rows = rows_of(rules)
    settings = {"authorizer_class_name": STANDARD_AUTHORIZER, **settings}
    configs = Configs(PROCESS_CONFIGS, {name.replace("_", "."): value for name, value in settings.items()})
    authorizer = configured_authorizer(configs, lambda: rows)
    assert authorizer is not None
    return authorizer


rules = st.builds(
    Rule,
    principal=st.sampled_from([ALICE, "User:*", "User:bob"]),
    host=st.sampled_from([HOST, "*", "10.0.0.2"]),
    operation=st.sampled_from(
        [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS]
    ),
    permission_type=st.sampled_from([PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY]),
    name=st.sampled_from(["*", "a", "ab", "abc", "b"]),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
)


def naive(found: list[Rule], operation: Operation, name: str, *, is_open: bool) -> bool:
    matching = [rule for rule in found if rule.names(name)]
    mine = [rule for rule in matching if rule.principal in (ALICE, "User:*") and rule.host in (HOST, "*")]
    if any(r.permission_type is PermissionType.DENY and r.operation in (operation, Operation.ALL) for r in mine):
        return False
    enough = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    if any(rule.permission_type is PermissionType.ALLOW and rule.operation in enough for rule in mine):
        return True
    return is_open and not matching


@given(
    found=st.lists(rules, max_size=8),
    operation=st.sampled_from([Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.DELETE]),
    name=st.sampled_from(["a", "ab", "abc", "b", "*", "z"]),
    is_open=st.booleans(),
)
def test_decisions_are_those_of_the_naive_rules(
    found: list[Rule], operation: Operation, name: str, is_open: bool
) -> None:
    authorizer = authorizer_of(found, allow_everyone_if_no_acl_found=str(is_open).lower())
    expected = naive(found, operation, name, is_open=is_open)
    for _ in range(2):  # the second answer is a remembered one
        assert authorizer.allows(ALICE, HOST, operation, ResourceType.TOPIC, name) is expected


@given(found=st.lists(rules, max_size=8), operation=st.sampled_from([Operation.READ, Operation.WRITE]))
def test_a_right_on_any_topic_is_one_that_some_name_has(found: list[Rule], operation: Operation) -> None:
    """Names longer than every pattern and all patterns themselves show every difference."""
    names = [rule.name + more for rule in found for more in ("", "~")] + ["~"]
    has_any = any(naive(found, operation, name, is_open=False) for name in names)
    assert authorizer_of(found).allows_any(ALICE, HOST, operation, ResourceType.TOPIC) is has_any


@pytest.mark.parametrize(
    ("rule", "bob_has_any"),
    [
        (None, True),
        (Rule(ALICE, "*", Operation.WRITE, PermissionType.ALLOW, "*", PatternType.LITERAL), False),
        (Rule(ALICE, "*", Operation.READ, PermissionType.ALLOW, "*", PatternType.LITERAL), False),
        (Rule("User:bob", "*", Operation.WRITE, PermissionType.DENY, "*", PatternType.LITERAL), False),
        (Rule(ALICE, "*", Operation.WRITE, PermissionType.ALLOW, "orders", PatternType.LITERAL), True),
        (Rule(ALICE, "*", Operation.WRITE, PermissionType.ALLOW, "hard", PatternType.PREFIXED), False),
    ],
)
def test_where_everybody_may_use_what_has_no_acl_one_name_stands_for_all_without(
    rule: Rule | None, bob_has_any: bool
) -> None:
    """As Authorizer.authorizeByResourceType of Kafka, which asks for the name "hardcode"."""
    authorizer = authorizer_of([rule] if rule else [], allow_everyone_if_no_acl_found="true")
    assert authorizer.allows_any("User:bob", HOST, Operation.WRITE, ResourceType.TOPIC) is bob_has_any


def test_super_users_may_do_everything() -> None:
    everything = Rule("User:*", "*", Operation.ALL, PermissionType.DENY, "*", PatternType.LITERAL)
    authorizer = authorizer_of([everything], super_users="User:root; User:CN=a,O=b")
    for principal, expected in (("User:root", True), ("User:CN=a,O=b", True), ("User:ROOT", False), (ALICE, False)):
        assert authorizer.allows(principal, HOST, Operation.READ, ResourceType.TOPIC, "t") is expected
        assert authorizer.allows_any(principal, HOST, Operation.WRITE, ResourceType.TOPIC) is expected


def test_a_change_of_the_acls_counts_at_once() -> None:
    read = Rule(ALICE, "*", Operation.READ, PermissionType.ALLOW, "t", PatternType.LITERAL)
    rows = rows_of([])
    authorizer = Authorizer(lambda: rows)

    def may() -> bool:
        return authorizer.allows(ALICE, HOST, Operation.READ, ResourceType.TOPIC, "t")

    assert not may()
    rows = rows_of([read])
    assert may() and [acl.resource_name for acl in authorizer.acls()] == ["t"]
    rows = rows_of([])
    assert not may()


@pytest.mark.parametrize(
    ("written", "client", "is_same"),
    [
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("::1", "::1", True),
        ("2001:DB8:0:0::7", "2001:db8::7", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("0:0:0:0:0:0:0:2", "::1", False),
        ("10.0.0.1", "::10.0.0.1", False),
        ("localhost", "::1", False),
    ],
)
def test_an_acl_is_about_an_address_however_it_is_written(written: str, client: str, is_same: bool) -> None:
    everybody = Rule(ALICE, "*", Operation.READ, PermissionType.ALLOW, "t", PatternType.LITERAL)
    host = address_text(client)

    def may(*rules: Rule) -> tuple[bool, bool]:
        authorizer = authorizer_of(rules)
        assert {acl.host for acl in authorizer.acls()} == {rule.host for rule in rules}, "texts are kept"
        one = authorizer.allows(ALICE, host, Operation.READ, ResourceType.TOPIC, "t")
        return one, authorizer.allows_any(ALICE, host, Operation.READ, ResourceType.TOPIC)

    allow = everybody._replace(host=written)
    assert may(allow) == (is_same, is_same)
    assert may(everybody, allow._replace(permission_type=PermissionType.DENY)) == (not is_same, not is_same)


@pytest.mark.parametrize("kind", [each for each in ResourceType if each is not ResourceType.TOPIC])
def test_an_acl_is_about_its_resource_type_only(kind: ResourceType) -> None:
    authorizer = authorizer_of([Rule("User:*", "*", Operation.ALL, PermissionType.ALLOW, "*", PatternType.LITERAL)])
    assert not authorizer.allows(ALICE, HOST, Operation.READ, kind, "t")


def test_without_a_class_there_is_no_authorizer() -> None:
    assert configured_authorizer(Configs(PROCESS_CONFIGS), dict) is None
    configs = Configs(PROCESS_CONFIGS, {"authorizer.class.name": STANDARD_AUTHORIZER})
    assert configured_authorizer(configs, dict) is not None
