"""Personal data are found by their form and nothing else is touched."""

from __future__ import annotations

import pytest

from workers.preparation.personal_data import Masker, PersonalDataKind, find_personal_data


def found(text: str, *regions: str) -> list[tuple[str, str]]:
    return [
        (finding.kind.value, text[finding.start : finding.end])
        for finding in find_personal_data(text, phone_regions=regions)
    ]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("write to anna.smith+x@mail.example.co.uk.", "email", "anna.smith+x@mail.example.co.uk"),
        ("call +49 30 901820 now", "phone", "+49 30 901820"),
        ("card 4111 1111 1111 1111, thanks", "card", "4111 1111 1111 1111"),
        ("IBAN DE89 3704 0044 0532 0130 00 please", "iban", "DE89 3704 0044 0532 0130 00"),
        ("from 8.8.8.8 at noon", "ip", "8.8.8.8"),
        ("from 2001:4860:4860::8888 at noon", "ip", "2001:4860:4860::8888"),
        ("SSN 219-09-9999", "ssn", "219-09-9999"),
        ("key AKIAIOSFODNN7EXAMPLE leaked", "secret", "AKIAIOSFODNN7EXAMPLE"),
        ("token ghp_" + "a1" * 18 + " leaked", "secret", "ghp_" + "a1" * 18),
        ("(415) 555-2671 is mine", "phone", "(415) 555-2671"),
        ("mine: 415-555-2671.", "phone", "415-555-2671"),
        ("Tel. 0171 2345678", "phone", "0171 2345678"),
        ("020 7946 0958 in London", "phone", "020 7946 0958"),
        ("call me at 98765 43210", "phone", "98765 43210"),
        ("use sk_live_" + "4eC39HqLyjWDarjt", "secret", "sk_live_4eC39HqLyjWDarjt"),
        ("use AIza" + "Sy1" * 11 + "Ab", "secret", "AIza" + "Sy1" * 11 + "Ab"),
        ("use glpat-" + "abcdefghij1234567890", "secret", "glpat-abcdefghij1234567890"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "secret", "wJalrXUtnFEMI/K7MDENG"),
        ("password: hunter2xyz", "secret", "hunter2xyz"),
        ("see https://x.example/?token=abc123def&a=b", "secret", "abc123def"),
        ("see https://user:pa55word@db.example/x", "secret", "pa55word"),
        ("iban de89 3704 0044 0532 0130 00", "iban", "de89 3704 0044 0532 0130 00"),
        ("card 4111.1111.1111.1111", "card", "4111.1111.1111.1111"),
        ("an jürgen@müller.example schreiben", "email", "jürgen@müller.example"),
    ],
)
def test_each_kind_is_found(text: str, kind: str, value: str) -> None:
    assert found(text) == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.3.4.5 and 999.1.1.1",
        "card 4111 1111 1111 1112",
        "IBAN DE89 3704 0044 0532 0130 01",
        "from 192.168.0.1, 127.0.0.1 and ::1",
        "order 1234567890123456789",
        "0000 0000 0000 0000",
        "in 2024-11-22 and 12:30:45",
        "on 22.11.2024 and 2024 11 22",
        "the answer is 12 34 56 78 and pi is 3.14159265358979",
        "order 555-0199 costs 1,299.00 for 2 of 3",
        "section 4.2.1 of 10.1000/182 and ISBN 978-3-16-148410-0",
        "the token representation4 is learnt, and the secret ingredient2go",
        "score (12) 3456 7890 points; call function(12345678); text 12345678 is a number",
        "the password is on the desk; the secret: none; token: yes",
        "a@b and user@localhost",
        "Anna Smith lives in Berlin",
    ],
)
def test_what_only_looks_like_it_is_left(text: str) -> None:
    assert found(text) == []


def test_a_region_lets_its_national_numbers_be_found() -> None:
    assert found("call 030 901820", "DE") == [("phone", "030 901820")]
    assert found("call 030 901820", "US") == []
    assert found("call 030 901820") == [("phone", "030 901820")]


def test_one_value_has_one_placeholder_in_a_row() -> None:
    masker = Masker()
    row = {
        "messages": [
            {"role": "user", "content": "I am a@example.org, not b@example.org."},
            {"role": "assistant", "content": "Hello A@example.org! +49 30 901820"},
        ]
    }
    masked = masker.mask_row(row)
    assert [turn["content"] for turn in masked["messages"]] == [
        "I am [EMAIL_1], not [EMAIL_2].",
        "Hello [EMAIL_1]! [PHONE_1]",
    ]
    assert masker.counts == {PersonalDataKind.EMAIL: 3, PersonalDataKind.PHONE: 1}
    assert row["messages"][0]["content"].startswith("I am a@example.org")


def test_arguments_of_tool_calls_are_masked_and_stay_json() -> None:
    call = {"function": {"name": "send", "arguments": '{"to": "a@example.org"}'}}
    row = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    masked = Masker().mask_row(row)["messages"][0]["tool_calls"][0]["function"]
    assert masked == {"name": "send", "arguments": '{"to": "[EMAIL_1]"}'}


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "a." * 100_000 + "@",
        "1 " * 100_000,
        "AB12 " * 40_000,
        ":" * 200_000,
        "-----BEGIN PRIVATE KEY-----" * 2_000,
        "1.1.1." * 30_000,
        "eyJ" + "a" * 100_000,
    ],
    ids=["letters", "dots", "digits", "blocks", "colons", "keys", "numbers", "token"],
)
def test_hostile_texts_are_read_in_time_that_grows_with_their_length(text: str) -> None:
    # Backtracking would run into the test's time limit.
    assert found(text) == []


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEab12\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIEab12\n-----END",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n"
        "MIIEab12\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_private_key_is_replaced_to_its_very_end(key: str) -> None:
    assert Masker().mask_text(f"before {key}\nafter") == "before [SECRET_1]\nafter"
