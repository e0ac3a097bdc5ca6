"""Reading at most one tool call from an action (Table 6: tool calls per agent turn, at most one).

Two forms are read: a fenced block, which the embedded models write because it is cheap in tokens,

    ```
    command
    ```

and a JSON object between <tool_call> and </tool_call>:

    <tool_call>{"name": "shell", "arguments": {"command": "command"}}</tool_call>

Text around the call is allowed (thinking). The command `submit` ends the attempt.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

FENCE = "```"
SUBMIT = "submit"
PARSER_ERROR_OBSERVATION = "parser error: write exactly one command in a fenced block\n"
"""The fixed observation of an unparsable action, which consumes its turn (Appendix D.2)."""

_FENCED = re.compile(r"```(?:bash|sh|shell)?\n(.*?)\n?```", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class ParserError(ValueError):
    """The action holds no tool call, more than one, or a malformed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One shell command."""

    command: str

    @property
    def submits(self) -> bool:
        return self.command == SUBMIT


def fenced(command: str) -> str:
    """The action text of a command, as demonstrations write it."""
    return f"{FENCE}\n{command}\n{FENCE}"


def parse_tool_call(text: str) -> ToolCall:
    """The single tool call of an action. Raises ParserError saying what is wrong."""
    tagged = _TAGGED.findall(text)
    if text.count("<tool_call>") != len(tagged) or text.count("</tool_call>") != len(tagged):
        raise ParserError("a <tool_call> is not closed")
    # What stands inside a tool call is its own: a fence there is part of the command.
    rest = _TAGGED.sub("", text)
    blocks = _FENCED.findall(rest)
    if rest.count(FENCE) != 2 * len(blocks):
        raise ParserError("a fence is not closed, or its opening is not followed by a new line")
    if len(tagged) + len(blocks) != 1:
        raise ParserError(f"an action holds exactly one tool call, this one holds {len(tagged) + len(blocks)}")
    command = (_command_of_json(tagged[0]) if tagged else blocks[0]).strip()
    if not command:
        raise ParserError("the command is empty")
    if "\0" in command:
        raise ParserError("the command holds a NUL character")
    return ToolCall(command=command)


def _command_of_json(text: str) -> str:
    try:
        call = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ParserError(f"the tool call is not JSON: {error}") from None
    if not isinstance(call, dict):
        raise ParserError(f"the tool call is a JSON {type(call).__name__}, not an object")
    if call.get("name") != "shell":
        raise ParserError(f"the tool call names {call.get('name')!r}; the only tool is shell")
    arguments = call.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(arguments.get("command"), str):
        raise ParserError("the tool call's arguments hold no string named command")
    return arguments["command"]
