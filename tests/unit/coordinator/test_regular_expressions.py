"""Regular expressions of clients: what is accepted, and what a match may cost."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine.regular_expressions import (
    EXPRESSION_CHARACTERS,
    STEPS_OF_CALL,
    InvalidExpression,
    RegularExpression,
)

LARGE_PROGRAM = ".?a?" * 2_500


@pytest.mark.parametrize(
    "text",
    [
        "orders.*",
        r"^(?:orders|payments)\.[a-z]+\.v[0-9]+$",
        r"(?i)(eu|us)\.\p{L}+\.(v1|v2|v3)",
        "[a-zA-Z0-9._-]{1,249}",
        "|".join(f"shop.orders.payments.team-{number:05}" for number in range(200)),
    ],
)
def test_expressions_of_users_are_accepted(text: str) -> None:
    assert not RegularExpression(text).matches("%")


@pytest.mark.parametrize("text", ["(", "a(?=b)", LARGE_PROGRAM, "(.*)" * 20_000])
def test_invalid_and_large_expressions_are_refused(text: str) -> None:
    with pytest.raises(InvalidExpression):
        RegularExpression(text)


def test_a_text_is_refused_by_its_length_before_it_is_parsed() -> None:
    assert RegularExpression("(.*)" * (EXPRESSION_CHARACTERS // 4)).matches("a")  # RE2 makes one of them
    with pytest.raises(InvalidExpression, match="10001 characters"):
        RegularExpression("a" + "(.*)" * (EXPRESSION_CHARACTERS // 4))


def test_groups_do_not_capture() -> None:
    """With captures, a match of n groups takes n times as long."""
    expression = RegularExpression("(a|b)(a|b)(a|b)")
    assert expression.matches("aba") and not expression.matches("ab")
    assert expression.cost("x") == RegularExpression("[ab][ab][ab]").cost("x")


def test_the_cost_grows_with_the_program_and_the_text() -> None:
    small, large = RegularExpression("a.*"), RegularExpression("(?:a.?){100}")
    assert small.cost("") == large.cost("") == STEPS_OF_CALL
    assert small.cost("a") < large.cost("a") < large.cost("aa") <= STEPS_OF_CALL + 2 * 8_192
