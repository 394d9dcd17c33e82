from marketplace.common.errors import (
    Conflict,
    MarketFault,
    NotAllowed,
    NotFound,
    PaymentRequired,
    UserError,
)


def test_each_kind_of_refusal_has_its_status() -> None:
    kinds = (UserError, PaymentRequired, NotAllowed, NotFound, Conflict)
    assert [kind("code", "Do this.").status for kind in kinds] == [400, 402, 403, 404, 409]
    assert UserError("code", "Do this.", status=422).status == 422


def test_a_refusal_carries_what_programs_and_people_need() -> None:
    refused = Conflict("taken", "Choose another.", param="name", extra={"free": 3})
    assert (refused.code, refused.message, refused.param, refused.extra) == (
        "taken",
        "Choose another.",
        "name",
        {"free": 3},
    )
    assert str(refused) == "Choose another."


def test_a_fault_of_the_house_is_no_refusal() -> None:
    assert not issubclass(MarketFault, UserError)
