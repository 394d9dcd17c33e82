"""Conversations in models' own templates, with tools, thoughts and templates that rewrite."""

from __future__ import annotations

import io
import json
from itertools import product
from pathlib import Path

import pytest
import time_machine
from transformers import AutoTokenizer

from marketplace.fleet.base_models import find_tokenizer_files
from marketplace.fleet.text_encoder import ModelTextEncoder, load_text_encoder
from tests.unit.workers.training_builders import byte_tokenizer, write_jsonl
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import read_rows
from workers.protocol.token_layout import TemplateError, lay_out_rows
from workers.training.adapter_export import save_tokenizer
from workers.training.data import PreparedData, TokenizerEncoder, prepare_data

TEMPLATES = Path(__file__).parents[3] / "data" / "chat_templates"
QWEN, MISTRAL = ((TEMPLATES / f"{name}.jinja").read_text() for name in ("qwen3", "mistral"))
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Sky?"},
    {"role": "assistant", "content": "Blue", "reasoning_content": "It is day."},
]
#: The same without the thought, which only some templates have a place for.
SAID = [*TURNS[:4], {"role": "assistant", "content": "Blue"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ARGUMENTS = {"city": "Rome", "at": 7}
CALL = {"id": "call_abc", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
TOOL_ROW = {
    "tools": [TOOL],
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "call_abc", "content": "Sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ],
}


#: As gpt-oss: thoughts have a name of their own, and a message writes its first call alone.
HARMONY = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}<|message|>"
    "{% if message.thinking %}{{ message.thinking }}<|end|>{% endif %}"
    "{% if message.tool_calls %}{{ message.tool_calls[0].function | tojson }}<|call|>"
    "{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)
#: As Hermes 3 and Command R: a template of its own for conversations with tools.
TWO = {
    "default": "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
}
TWO["tool_use"] = f"Tools: {{{{ tools | tojson }}}} {HARMONY}"


#: What ends an answer in these templates.
STOPS = ("<|im_end|>", "<|end|>", "<|call|>", ";")


def encode(
    template: str | dict[str, str] | None, *, stops: tuple[str, ...] = STOPS
) -> TokenizerEncoder:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return TokenizerEncoder(tokenizer, stops=stops)


def lay_out(row: dict, template: str | dict[str, str] | None) -> list[list[tuple[str, str]]]:
    """Of each sequence of each example, all of it and what is learnt."""
    [parsed] = read_rows(io.BytesIO(json.dumps(row).encode()))
    tokenizer = byte_tokenizer()
    [examples] = lay_out_rows([parsed], encode(template))
    return [
        [
            (
                tokenizer.decode([token for run, _ in sequence for token in run]),
                tokenizer.decode([token for run, train in sequence if train for token in run]),
            )
            for sequence in example
        ]
        for example in examples
    ]


def test_each_answer_of_a_qwen_chat_is_learnt_after_the_turns_as_they_stood_then():
    [[(first, first_learnt)], [(second, second_learnt)]] = lay_out({"messages": TURNS}, QWEN)
    system = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert first_learnt == "<think>\n\n</think>\n\nHello<|im_end|>\n"
    assert first == f"{system}<|im_start|>assistant\n{first_learnt}"
    assert second_learnt == "<think>\nIt is day.\n</think>\n\nBlue<|im_end|>\n"
    assert second == (
        f"{system}<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nSky?<|im_end|>\n"
        f"<|im_start|>assistant\n{second_learnt}"
    )


def test_each_answer_of_a_mistral_chat_has_the_system_message_in_its_own_turn():
    [[(first, first_learnt)], [(second, second_learnt)]] = lay_out({"messages": SAID}, MISTRAL)
    assert (first_learnt, second_learnt) == (" Hello</s>", " Blue</s>")
    assert first == "<s>[INST] Be brief.\n\nHi[/INST] Hello</s>"
    assert second == "<s>[INST] Hi[/INST] Hello</s>[INST] Be brief.\n\nSky?[/INST] Blue</s>"


def test_calls_are_learnt_in_the_models_own_syntax_and_tools_stand_before_them():
    [[(_, called)], [(whole, answered)]] = lay_out(TOOL_ROW, QWEN)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "at": 7}}\n</tool_call>'
    assert called == f"<think>\n\n</think>\n\n{call}<|im_end|>\n"
    assert answered == "<think>\n\n</think>\n\nIt is sunny.<|im_end|>\n"
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in whole
    assert f"assistant\n{call}<|im_end|>\n" in whole
    assert "<tool_response>\nSunny\n</tool_response>" in whole


def test_identifiers_of_calls_are_spelled_as_mistral_insists():
    examples = lay_out(TOOL_ROW, MISTRAL)
    learnt = "".join(part for example in examples for _, part in example)
    assert learnt.startswith('[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"')
    assert learnt.endswith("It is sunny.</s>")
    [identifier] = [piece.split('"')[0] for piece in learnt.split('"id": "')[1:]]
    assert len(identifier) == 9
    assert f'"call_id": "{identifier}"' in examples[-1][0][0]


def test_tools_that_name_no_call_answer_the_calls_in_their_order():
    calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in "AB"]
    row = {
        "tools": [TOOL],
        "messages": [
            {"role": "user", "content": "A and B?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "first"},
            {"role": "tool", "content": "second"},
            {"role": "assistant", "content": "Both."},
        ],
    }
    examples = lay_out(row, MISTRAL)
    whole = examples[-1][0][0]
    first, second = (part.split('"')[0] for part in whole.split('"id": "')[1:])
    assert first != second
    assert f'{{"content": "first", "call_id": "{first}"}}' in whole
    assert f'{{"content": "second", "call_id": "{second}"}}' in whole


def test_what_a_template_would_leave_out_beside_a_call_is_refused():
    row = {
        "tools": [TOOL],
        "messages": [
            {"role": "user", "content": "Rome?"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]},
        ],
    }
    with pytest.raises(TemplateError, match="leaves out the text beside a call"):
        lay_out(row, MISTRAL)
    [[(_, learnt)]] = lay_out(row, QWEN)
    assert "Let me look.\n<tool_call>" in learnt


@pytest.mark.parametrize("template", [QWEN, MISTRAL, None])
def test_a_conversation_that_begins_with_an_answer_is_refused_alike_by_all(template):
    greeting = [{"role": "assistant", "content": "Hello"}, *TURNS[1:3]]
    with pytest.raises(TemplateError, match="begins with an answer"):
        lay_out({"messages": greeting}, template)


@pytest.mark.parametrize("template", [QWEN, None])
def test_a_greeting_that_is_not_learnt_may_come_first(template):
    greeting = [{"role": "assistant", "content": "Hello", "weight": 0}, *TURNS[1:3]]
    examples = lay_out({"messages": greeting}, template)
    assert [part.count("Hello") for example in examples for _, part in example] == [1]


def test_a_template_without_a_place_for_tools_refuses_them():
    plain = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    with pytest.raises(TemplateError, match="no place for tools and calls"):
        lay_out(TOOL_ROW, plain)


def test_a_template_that_adds_arguments_to_a_text_says_so():
    # as DeepSeek-V3's
    adding = (
        "{% for m in messages %}{{ m.content }}"
        "{% for call in m.tool_calls %}{{ '<call>' + call.function.arguments }}{% endfor %}"
        "{% endfor %}"
    )
    with pytest.raises(TemplateError, match="takes the arguments of calls as text only"):
        lay_out(TOOL_ROW, adding)


def test_the_plain_template_writes_tools_and_calls_as_json():
    [[(whole, learnt)]] = lay_out(TOOL_ROW, None)
    assert whole.startswith(f"### Tools:\n{json.dumps([TOOL])}\n### System:\nBe brief.\n")
    call = json.dumps([{"name": "weather", "arguments": ARGUMENTS}])
    assert learnt == f"\n{call}\n</s>It is sunny.\n</s>"


def test_a_preference_of_answers_over_several_turns_needs_one_answer_in_such_templates():
    row = {"prompt": TURNS[:2], "chosen": TURNS[2:], "rejected": TURNS[2:3]}
    with pytest.raises(TemplateError, match="Keep the last of them in chosen"):
        lay_out(row, QWEN)
    [[chosen, rejected]] = lay_out(row | {"prompt": TURNS[:4], "chosen": TURNS[4:]}, QWEN)
    assert chosen[1] == "<think>\nIt is day.\n</think>\n\nBlue<|im_end|>\n"
    assert rejected[1] == "<think>\n\n</think>\n\nHello<|im_end|>\n"


@pytest.mark.parametrize(
    ("row", "template"),
    [
        *product([{"messages": SAID}, TOOL_ROW], [QWEN, MISTRAL, HARMONY, TWO, None]),
        *product([{"messages": TURNS}], [QWEN, HARMONY]),
    ],
)
def test_market_and_node_lay_out_alike(row, template):
    [parsed] = read_rows(io.BytesIO(json.dumps(row).encode()))
    tokenizer = byte_tokenizer()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    market = ModelTextEncoder(tokenizer.backend_tokenizer, config=special, chat_template=template)
    node = encode(template, stops=())
    assert list(lay_out_rows([parsed], market)) == list(lay_out_rows([parsed], node))


def test_an_answer_ends_with_a_stop_token_that_the_tokenizer_has():
    tokenizer = byte_tokenizer()
    stops = [2, len(tokenizer) + 7]
    for named in (stops, stops[1:]):
        market = ModelTextEncoder(
            tokenizer.backend_tokenizer, config={}, chat_template=None, stop_tokens=named[::-1]
        )
        assert (market.suffix, market.stops) == (([2], ("</s>",)) if 2 in named else ([], ()))


DATED = (
    "\n  {% if not date is defined and strftime_now is defined %}\n"
    "{% set date = strftime_now('%d %b %Y, %-d.%m.%y %H:%M') %}\n"
    "{% endif %}\nToday: {{ date }}\n"
)


@pytest.mark.parametrize("day", ["2026-11-23", "2027-02-01"])
def test_templates_print_one_date_on_every_day_in_market_and_node(day):
    tokenizer = byte_tokenizer()
    market = ModelTextEncoder(tokenizer.backend_tokenizer, config={}, chat_template=DATED)
    with time_machine.travel(day):
        texts = {
            one.render(TURNS[1:3], tools=None, generation=False) for one in (market, encode(DATED))
        }
    assert texts == {"\nToday: 26 Jul 2024, 26.07.24 00:00"}


@time_machine.travel("2024-07-26")
def test_a_pinned_template_writes_what_transformers_would_on_that_day():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = DATED
    stock = tokenizer.apply_chat_template(TURNS[1:3], tokenize=False)
    assert encode(DATED).render(TURNS[1:3], tools=None, generation=False) == stock


def test_a_base_without_a_template_begins_chats_as_it_begins_texts():
    class BeginsTexts:
        """A tokenizer that puts its BOS token before a text."""

        chat_template, bos_token_id, eos_token_id, sep_token_id = None, 1, 2, None
        eos_token = "</s>"

        def __call__(self, text):
            return type("Encoded", (), {"input_ids": [1]})

        def convert_tokens_to_ids(self, tokens):
            return [2 for _ in tokens]

    assert TokenizerEncoder(BeginsTexts()).templates.default.startswith("{{ bos_token }}{% if")
    assert not encode(None).templates.default.startswith("{{ bos_token }}")


def test_a_row_with_an_empty_answer_is_left_out_and_named(tmp_path):
    data = prepare_chats(tmp_path, None, SAID, [*TURNS[:4], {"role": "assistant", "content": ""}])
    assert [example.line for example in data.train] == [1]
    assert data.report.sentences()[1] == ("1 row was left out, because an answer is empty: line 2.")


#: As the distilled R1: what is thought is cut off, and a question opens a thought.
CUTS_THOUGHTS = (
    "{% for message in messages %}{{ message.role }}:"
    "{{ message.content.split('</think>')[-1] }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:<think>{% endif %}"
)


@pytest.mark.parametrize(
    ("thinks", "template"),
    [
        ({"content": "Blue", "reasoning_content": "It is day."}, MISTRAL),
        ({"content": "Blue", "reasoning_content": "It is day."}, None),
    ],
)
def test_a_template_that_leaves_thoughts_out_refuses_them(thinks, template):
    row = {"messages": [*TURNS[1:4], {"role": "assistant"} | thinks]}
    with pytest.raises(TemplateError, match="leaves out what is thought before an answer"):
        lay_out(row, template)
    row["messages"][-1]["weight"] = 0
    assert lay_out(row, template)


#: As Qwen3.5 asked not to think: a question opens a thought and closes it.
CLOSES_THOUGHTS = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}<think>\n"
    "{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:<think>\n\n</think>\n\n{% endif %}"
)
#: As Nemotron 3: a question opens a thought with a line break, an answer without.
OPENS_THOUGHTS = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}<think>"
    "{{ m.reasoning_content or '' }}</think>{% endif %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
)
#: As GLM-4: nothing follows an answer.
ENDLESS = (
    "[gMASK]{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SAID_BLUE, THOUGHT_BLUE = SAID[-1], TURNS[-1]


@pytest.mark.parametrize(
    ("template", "said", "learnt"),
    [
        (CUTS_THOUGHTS, SAID_BLUE, "\n</think>\n\nBlue;"),
        (CUTS_THOUGHTS, THOUGHT_BLUE, "It is day.\n</think>\n\nBlue;"),
        (
            CUTS_THOUGHTS,
            {"role": "assistant", "content": "<think>\nIt is day.\n</think>\n\nBlue"},
            "It is day.\n</think>\n\nBlue;",
        ),
        (CLOSES_THOUGHTS, SAID_BLUE, "Blue;"),
        (OPENS_THOUGHTS, SAID_BLUE, "</think>Blue;"),
        (OPENS_THOUGHTS, THOUGHT_BLUE, "It is day.</think>Blue;"),
    ],
)
def test_what_is_learnt_follows_the_prompt_that_the_model_is_served_after(template, said, learnt):
    for before in ([TURNS[3]], TURNS[:2], SAID[:4]):
        turns = [
            *({**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in before)
        ]
        [[(whole, found)]] = lay_out({"messages": [*turns, said]}, template)
        served = encode(template).render(before, tools=None, generation=True)
        assert whole == served + found
        assert found == learnt


def test_a_closed_thought_cannot_be_learnt():
    with pytest.raises(TemplateError, match="leaves out what is thought before an answer"):
        lay_out({"messages": [TURNS[3], THOUGHT_BLUE]}, CLOSES_THOUGHTS)


#: As Qwen3.5's small ones: the same, and it may be asked to let the model think.
MAY_THINK = (
    "{% for m in messages %}{% set parts = m.content.rpartition('</think>') %}{{ m.role }}:"
    "{% if m.role == 'assistant' %}<think>\n"
    "{{ (m.reasoning_content or parts[0].partition('<think>')[2]).strip() }}\n</think>\n\n"
    "{% endif %}{{ parts[2].lstrip() }};{% endfor %}{% if add_generation_prompt %}assistant:"
    "<think>\n{% if not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)


def test_answers_with_thoughts_follow_the_prompt_that_asks_for_some_and_the_log_says_so(tmp_path):
    turns = [TURNS[3], THOUGHT_BLUE]
    [[(whole, learnt)]] = lay_out({"messages": turns}, MAY_THINK)
    assert learnt == "It is day.\n</think>\n\nBlue;"
    assert whole == f"user:Sky?;assistant:<think>\n{learnt}"
    [[(whole, learnt)]] = lay_out({"messages": [TURNS[3], SAID_BLUE]}, MAY_THINK)
    assert (whole, learnt) == ("user:Sky?;assistant:<think>\n\n</think>\n\nBlue;", "Blue;")
    logs = [
        prepare_chats(tmp_path, MAY_THINK, [*turns[:1], said]).report.sentences()
        for said in (SAID_BLUE, THOUGHT_BLUE)
    ]
    assert len(logs[0]) == 1
    assert logs[1][1] == (
        "The model's chat template asks for no thoughts by itself. Answers with thoughts were "
        "learnt after what it asks with enable_thinking=true: serve the adapter with that."
    )


def prepare_chats(folder: Path, template: str | None, *conversations: list[dict]) -> PreparedData:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return prepare_data(
        encoder=TokenizerEncoder(tokenizer, stops=STOPS),
        data_path=write_jsonl(folder / "a.jsonl", [{"messages": one} for one in conversations]),
        validation_path=None,
        data_format=DataFormat.CHAT,
        skip_lines=(),
        sequence_length=400,
        validation_share=0.0,
        seed=0,
    )


def test_an_answer_whose_end_stops_no_model_gets_one_that_does():
    """As a base model with a template for chats, whose one stop is the end of a text."""
    [parsed] = read_rows(io.BytesIO(json.dumps({"messages": SAID[1:]}).encode()))
    template = DATED + "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    sequences = {}
    for stops in ((), ("<|im_end|>",)):
        [[[sequences[stops]]]] = lay_out_rows([parsed], encode(template, stops=stops))
    assert sequences[()] == [*sequences["<|im_end|>",], ([byte_tokenizer().eos_token_id], True)]


def test_an_answer_that_nothing_follows_is_ended_and_prompts_stay_as_they_are():
    eos = byte_tokenizer().eos_token
    examples = lay_out({"messages": SAID}, ENDLESS)
    assert [learnt for [(_, learnt)] in examples] == [f"\nHello{eos}", f"\nBlue{eos}"]
    for [(whole, learnt)], turns in zip(examples, (SAID[:2], SAID[:4]), strict=True):
        assert whole == encode(ENDLESS).render(turns, tools=None, generation=True) + learnt


def test_thoughts_in_the_text_may_be_written_otherwise():
    thought = {"role": "assistant", "content": "<think>It is day.</think>Blue"}
    [[(_, learnt)]] = lay_out({"messages": [TURNS[3], thought]}, QWEN)
    assert learnt == "<think>\nIt is day.\n</think>\n\nBlue<|im_end|>\n"


def test_gpt_oss_has_thoughts_under_a_name_of_its_own():
    [[(_, learnt)]] = lay_out({"messages": TURNS[3:]}, HARMONY)
    assert learnt == "It is day.<|end|>Blue<|end|>"


def test_a_template_that_writes_one_call_of_several_refuses_the_others():
    calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in "AB"]
    row = {"tools": [TOOL], "messages": [TURNS[1], {"role": "assistant", "tool_calls": calls}]}
    with pytest.raises(TemplateError, match="only the first of a message's calls"):
        lay_out(row, HARMONY)
    row["messages"][1]["tool_calls"] = calls[:1]
    [[(_, learnt)]] = lay_out(row, HARMONY)
    assert learnt == '{"name": "weather", "arguments": {"city": "A"}}<|call|>'


def test_conversations_with_tools_stand_in_the_template_that_a_model_has_for_them(tmp_path):
    assert lay_out({"messages": SAID[1:3]}, TWO) == [[("user:Hi;assistant:Hello;", "Hello;")]]
    assert lay_out(TOOL_ROW, TWO)[0][0][0].startswith(f"Tools: {json.dumps([TOOL])} ")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TWO
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "additional_chat_templates" / "tool_use.jinja").is_file()
    exported = tmp_path / "exported"
    save_tokenizer(tokenizer, data_format=DataFormat.CHAT, directory=exported)
    assert [path.name for path in exported.iterdir() if path.is_dir()] == []
    assert AutoTokenizer.from_pretrained(exported).chat_template == TWO
    [parsed] = read_rows(io.BytesIO(json.dumps(TOOL_ROW).encode()))
    for folder in (tmp_path, exported):
        market = load_text_encoder(find_tokenizer_files(f"{folder}/tokenizer.json"))
        node = encode(TWO, stops=())
        assert list(lay_out_rows([parsed], market)) == list(lay_out_rows([parsed], node))
