"""At most one tool call per action; everything else is a parser error (D12)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thundersync.rollout.tools import ParserError, fenced, parse_tool_call


def tagged(value) -> str:
    return f"<tool_call>{value if isinstance(value, str) else json.dumps(value)}</tool_call>"


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("```\nls -l\n```", "ls -l"),
        ("I look first.\n```bash\ncat a\ncat b\n```\nThen I see.", "cat a\ncat b"),
        (tagged({"name": "shell", "arguments": {"command": "echo '```'"}}), "echo '```'"),
        ("think\n" + tagged({"name": "shell", "arguments": {"command": "ls"}}), "ls"),
        (fenced("submit"), "submit"),
    ],
)
def test_one_call_is_read(action, command):
    call = parse_tool_call(action)
    assert call.command == command
    assert call.submits == (command == "submit")


@pytest.mark.parametrize(
    "action",
    [
        "",
        "   \n",
        "ls",
        "```\nls",  # unclosed fence
        "``````",
        "```\n\n```",  # empty command
        "```\nls\n```\n```\npwd\n```",  # two calls
        "```\nls\n```\n```\npwd",  # one call and an open fence
        "```ls```",
        tagged({"name": "shell", "arguments": {"command": "ls"}}) * 2,
        tagged({"name": "shell", "arguments": {"command": "ls"}}) + "```\nls\n```",
        tagged('{"name": "shell", "arguments": {"command": "ls"}'),  # broken JSON
        tagged([{"name": "shell", "arguments": {"command": "ls"}}]),  # a list instead of an object
        tagged({"name": "python", "arguments": {"command": "ls"}}),
        tagged({"name": "shell", "arguments": ["ls"]}),
        tagged({"name": "shell", "arguments": {"command": ["ls"]}}),
        tagged({"name": "shell", "arguments": {"command": ""}}),
        tagged({"name": "shell", "arguments": {"command": "a\0b"}}),
        "[" * 100_000,
        tagged("[" * 100_000),
        '<tool_call>{"name": "shell"}',
    ],
)
def test_anything_else_is_a_parser_error(action):
    with pytest.raises(ParserError):
        parse_tool_call(action)


@given(st.text(alphabet='ab `\n<>/{}"tol_c[]', max_size=60))
def test_arbitrary_text_parses_or_raises_a_parser_error(text):
    try:
        assert parse_tool_call(text).command.strip()
    except ParserError:
        pass


@given(st.text(alphabet="abc '\"|>\n$", min_size=1).filter(lambda text: text.strip()))
def test_a_fenced_command_comes_back(command):
    assert parse_tool_call(fenced(command)).command == command.strip()
