"""OpenAI's client tools `shell`, `local_shell` and `apply_patch`, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from msgspec.structs import replace
from openai.types.conversations import ConversationItem
from openai.types.responses import ResponseItem, ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from stoker.engine.card_template import CardTemplate
from stoker.text.messages import Message
from tests.unit.server.fake_runtime import FakeRuntime, Step, ask, make_app

SHELL, LOCAL, PATCH = ({"type": kind} for kind in ("shell", "local_shell", "apply_patch"))
TOOLS: list[Any] = [SHELL, LOCAL, PATCH]
COMMANDS = ["ls -l", 'echo "Zürich\n🙂"']
RUN = {"command": ["bash", "-lc", "ls"], "working_directory": "/tmp", "env": {"A": "b"}, "timeout_ms": 9}
CREATE = {"type": "create_file", "path": "a.py", "diff": '+x = "ü"\n+'}
DELETE = {"type": "delete_file", "path": "b.py", "diff": ""}
DIFF = "response.apply_patch_call_operation_diff."
"""Prefix of events that the server sends and the client passes on, but its types do not have."""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ALL = (
    call("shell", commands=COMMANDS, timeout_ms=50),
    call("local_shell", **RUN),
    call("apply_patch", **CREATE),
    call("apply_patch", **DELETE),
)


class Templated(FakeRuntime):
    """With a chat template that writes tools, calls and results."""

    def render_chat(self, messages: Any, **options: Any) -> str:
        super().render_chat(messages, **options)
        return CardTemplate(self.model_card).render(messages, **options)


def runtime_of(*texts: str, reason: str = "stop") -> FakeRuntime:
    steps: list[Step] = [text[at : at + 3] for text in texts for at in range(0, len(text), 3)]
    runtime = Templated(lambda submit: [*steps, {"text": "", "finish_reason": reason}])
    template = Path("tests/golden/chat_templates/qwen3.jinja").read_text()
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=True, chat_template=template)
    return runtime


def asking(runtime: FakeRuntime, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Gives OpenAI's client of a server to `talk`; the client's types read the replies."""

    async def go() -> None:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=make_app(runtime)))
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http, max_retries=0
        ) as client:
            await talk(client)

    asyncio.run(go())


def respond(runtime: FakeRuntime, tools: Any = TOOLS, **fields: Any) -> Any:
    return ask(make_app(runtime), "POST", "/v1/responses", json={"input": "hi", "tools": tools, **fields})


def plain(item: Any) -> dict[str, Any]:
    return item.model_dump(exclude_none=True, exclude={"id", "call_id"})


def plan_of(runtime: FakeRuntime) -> Any:
    outline = runtime.submits[-1].outline
    assert outline is not None
    assert outline.grammar is not None
    return json.loads(outline.grammar.text)


WANTED = [
    {
        "type": "shell_call",
        "status": "completed",
        "action": {"commands": COMMANDS, "timeout_ms": 50},
        "environment": {"type": "local"},
    },
    {"type": "local_shell_call", "status": "completed", "action": {**RUN, "type": "exec"}},
    {"type": "apply_patch_call", "status": "completed", "operation": CREATE},
    {"type": "apply_patch_call", "status": "completed", "operation": {"type": "delete_file", "path": "b.py"}},
]


def test_each_call_is_an_item_of_its_own_type():
    async def talk(client: Any) -> None:
        output = (await client.responses.create(model="", input="hi", tools=TOOLS)).output
        for item in output:
            TypeAdapter[Any](ResponseOutputItem).validate_python(item.model_dump(exclude_unset=True))
        assert [plain(item) for item in output] == WANTED
        assert [item.id.partition("_")[0] for item in output] == ["sh", "lsh", "apc", "apc"]
        assert len({item.id for item in output} | {item.call_id for item in output}) == 8

    asking(runtime_of(*ALL), talk)


def test_the_events_of_a_stream_build_the_items():
    async def talk(client: Any) -> None:
        async with client.responses.stream(model="", input="hi", tools=TOOLS) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        for event in events:
            if not event.type.startswith(DIFF):
                TypeAdapter[Any](ResponseStreamEvent).validate_python(event.model_dump(exclude_unset=True))
        kinds = [[event.type for event in events if getattr(event, "output_index", None) == n] for n in range(4)]
        shell, delta = "response.shell_call_command.", f"{DIFF}delta"
        begin, end = "response.output_item.added", "response.output_item.done"
        assert list(dict.fromkeys(kinds[0])) == [begin, f"{shell}added", f"{shell}delta", f"{shell}done", end]
        assert kinds[1] == kinds[3] == [begin, end]
        assert list(dict.fromkeys(kinds[2])) == [begin, delta, f"{DIFF}done", end]
        for number, command in enumerate(COMMANDS):
            parts = [event for event in events if getattr(event, "command_index", None) == number]
            assert "".join(part.delta for part in parts if part.type == f"{shell}delta") == command
            assert (parts[0].command, parts[-1].command) == ("", command)
        assert kinds[0].count(f"{shell}delta") > 2
        pieces = [event for event in events if event.type == delta]
        assert len(pieces) > 2
        assert "".join(piece.delta for piece in pieces) == CREATE["diff"]
        begun = [event.item for event in events if event.type == begin]
        assert [item.status for item in begun] == ["in_progress"] * 4
        assert plain(begun[2])["operation"] == {**CREATE, "diff": ""}
        assert [event.item for event in events if event.type == end] == response.output
        assert [plain(item) for item in response.output] == WANTED

    asking(runtime_of(*ALL), talk)


RESULTS: list[dict[str, Any]] = [
    {
        "type": "shell_call_output",
        "max_output_length": 4000,
        "output": [
            {"stdout": "a.py\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
            {"stdout": "", "stderr": "no such file\n", "outcome": {"type": "exit", "exit_code": 2}},
            {"stdout": "half", "stderr": "", "outcome": {"type": "timeout"}},
        ],
    },
    {"type": "local_shell_call_output", "output": '{"output": "a.py"}'},
    {"type": "apply_patch_call_output", "status": "completed"},
    {"type": "apply_patch_call_output", "status": "failed", "output": "no such path"},
]
TEXTS = [
    "a.py\n[exit code 0]\n[stderr]\nno such file\n[exit code 2]\nhalf\n[timed out]",
    '{"output": "a.py"}',
    "completed",
    "failed: no such path",
]


async def answered(client: Any, **fields: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A response with four calls, and their results."""
    response = await client.responses.create(model="", input="hi", tools=TOOLS, **fields)
    results = [{**result, "call_id": item.call_id} for result, item in zip(RESULTS, response.output, strict=True)]
    return response, results


def test_calls_and_results_are_the_same_prompt_by_every_way():
    runtime = runtime_of(*ALL)

    async def talk(client: Any) -> None:
        conversation = (await client.conversations.create()).id
        first, results = await answered(client)
        items = [item.model_dump(exclude_unset=True) for item in first.output]
        references = [{"type": "item_reference", "id": item["id"]} for item in items]
        user = {"role": "user", "content": "hi"}
        await client.responses.create(model="", input=results, tools=TOOLS, previous_response_id=first.id)
        for sent in ([user, *items, *results], [user, *references, *results]):
            await client.responses.create(model="", input=sent, tools=TOOLS)
        _, results = await answered(client, conversation=conversation)
        await client.responses.create(model="", input=results, tools=TOOLS, conversation=conversation)

    asking(runtime, talk)
    prompts = [str(submit.prompt) for number, submit in enumerate(runtime.submits) if number not in (0, 4)]
    assert len(prompts) == 4
    assert set(prompts[1:]) == {prompts[0]}
    for text in ALL:
        name_and_arguments = text.splitlines()[1]
        assert json.loads(name_and_arguments) in [
            json.loads(line) for line in prompts[0].splitlines() if line.startswith('{"name"')
        ], "a template writes the call as the model did"
    for text in TEXTS:
        assert f"<tool_response>\n{text}\n</tool_response>" in prompts[0]
    assert "client_" not in prompts[0]


def test_calls_and_results_are_listed_with_their_types():
    async def talk(client: Any) -> None:
        conversation = (await client.conversations.create()).id
        first, results = await answered(client, conversation=conversation)
        await client.conversations.items.create(conversation, items=results)
        second = await client.responses.create(model="", input="so?", conversation=conversation, tools=TOOLS)
        wanted = [*map(plain, first.output), *({"status": "completed"} | result for result in RESULTS)]
        kept = [item async for item in client.conversations.items.list(conversation, order="asc")]
        listed = [item async for item in client.responses.input_items.list(second.id, order="asc")]
        by_kind: list[tuple[list[Any], Any]] = [(kept[1:9], ConversationItem), (listed[1:9], ResponseItem)]
        for found, kind in by_kind:
            assert [plain(item) for item in found] == wanted
            for item in found:
                TypeAdapter[Any](kind).validate_python(item.model_dump(exclude_unset=True))
        by_id = [await client.conversations.items.retrieve(item.id, conversation_id=conversation) for item in kept]
        assert by_id == kept
        assert [item.id.partition("_")[0] for item in kept[5:9]] == ["sho", "lsho", "apco", "apco"]
        for found in (kept, listed):
            references = [{"type": "item_reference", "id": item.id} for item in found]
            again = await client.responses.create(model="", input=references, tools=TOOLS)
            items = [item async for item in client.responses.input_items.list(again.id, order="asc")]
            assert [plain(item) for item in items] == [plain(item) for item in found]

    asking(runtime_of(*ALL), talk)


def test_the_arguments_must_match_a_fixed_schema():
    runtime = runtime_of("Yes.")
    assert respond(runtime).status_code == 200
    schemas = {tool["name"]: json.loads(tool["schema"]) for tool in plan_of(runtime)["tools"]}
    assert {name: schema["required"] for name, schema in schemas.items()} == {
        "shell": ["commands"],
        "local_shell": ["command"],
        "apply_patch": ["type", "path", "diff"],
    }
    assert {schema["additionalProperties"] for schema in schemas.values()} == {False}
    assert schemas["apply_patch"]["properties"]["type"]["enum"] == ["create_file", "update_file", "delete_file"]
    assert "@@ def main():" in str(runtime.submits[0].prompt), "the model reads how a diff is written"


def test_a_client_tool_is_chosen_or_allowed_by_its_type():
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [SHELL, {"type": "function", "name": "f"}]}
    for choice, names, most in (
        (SHELL, ["shell"], 1),
        (LOCAL, ["local_shell"], 1),
        (PATCH, ["apply_patch"], 1),
        (allowed, ["shell", "f"], None),
        ("required", ["shell", "local_shell", "apply_patch", "f"], None),
    ):
        runtime = runtime_of("Yes.")
        response = respond(runtime, [*TOOLS, {"type": "function", "name": "f"}], tool_choice=choice)
        assert response.status_code == 200, response.text
        plan = plan_of(runtime)
        assert (sorted(tool["name"] for tool in plan["tools"]), plan["most"]) == (sorted(names), most)
        assert response.json()["tool_choice"] == choice
    refused = respond(runtime_of("Yes."), [PATCH, {"type": "function", "name": "shell"}], tool_choice=SHELL)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_only_one_call_is_made_if_the_client_wants_no_others():
    output = respond(runtime_of(*ALL), parallel_tool_calls=False).json()["output"]
    assert [item["type"] for item in output] == ["shell_call"]


def test_a_function_of_the_client_keeps_its_name():
    functions: list[Any] = [{"type": "function", "name": "shell"}, {"type": "custom", "name": "apply_patch"}]
    texts = [
        call("shell", commands=["mine"]),
        call("shell_tool", commands=["ls"]),
        call("apply_patch_tool", **CREATE),
        call("apply_patch", input="text"),
    ]
    runtime = runtime_of(*texts)
    app = make_app(runtime)
    body: dict[str, Any] = {"input": "hi", "tools": [*TOOLS, *functions], "tool_choice": "auto"}
    first = ask(app, "POST", "/v1/responses", json=body).json()
    kinds = [item["type"] for item in first["output"]]
    assert kinds == ["function_call", "shell_call", "apply_patch_call", "custom_tool_call"]
    result = {**RESULTS[0], "call_id": first["output"][1]["call_id"]}
    body |= {"input": [result], "previous_response_id": first["id"], "tool_choice": SHELL}
    assert ask(app, "POST", "/v1/responses", json=body).status_code == 200
    names = [tool["function"]["name"] for message in runtime.rendered[-1][0] for tool in message.tool_calls]  # pyright: ignore
    assert names == ["shell", "shell_tool", "apply_patch_tool", "apply_patch"]
    assert [tool["name"] for tool in plan_of(runtime)["tools"]] == ["shell_tool"]


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        (ALL[0], "shell_call", {"commands": COMMANDS[:1]}),
        (ALL[1], "local_shell_call", {"command": []}),
        (ALL[2], "apply_patch_call", {**CREATE, "diff": ""}),
    ],
)
def test_a_call_that_is_cut_off_has_only_whole_commands(text: str, kind: str, wanted: dict[str, Any]):
    cut = text[: text.index("echo" if kind == "shell_call" else "-lc" if kind == "local_shell_call" else " = ")]
    for is_stream in (False, True):
        response = respond(runtime_of(cut, reason="length"), stream=is_stream)
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        reply = events[-1]["response"] if is_stream else response.json()
        (item,) = reply["output"]
        assert (reply["status"], item["type"]) == ("incomplete", kind)
        assert item["status"] == ("in_progress" if kind == "apply_patch_call" else "incomplete")
        action = item.get("action") or item["operation"]
        assert {name: action[name] for name in wanted} == wanted
        if is_stream:
            assert events[-2]["item"] == item
            TypeAdapter[Any](ResponseOutputItem).validate_python(item)


@pytest.mark.parametrize("length", [10, 45, 75])
def test_a_patch_that_is_cut_off_before_its_path_is_known_is_no_item(length: int):
    for is_stream in (False, True):
        response = respond(runtime_of("Well.", ALL[2][:length], reason="length"), stream=is_stream)
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        reply = events[-1]["response"] if is_stream else response.json()
        assert [item["type"] for item in reply["output"]] == ["message"]
        assert reply["status"] == "incomplete"


@pytest.mark.parametrize("cut", range(1, len(ALL[2]), 7))
def test_a_patch_has_its_events_however_its_arguments_are_ordered(cut: int):
    arguments = {"diff": CREATE["diff"], "path": "a.py", "type": "create_file"}
    text = call("apply_patch", **arguments)
    runtime = FakeRuntime(lambda submit: [text[:cut], text[cut:], {"text": "", "finish_reason": "stop"}])
    response = respond(runtime, stream=True)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert "".join(event["delta"] for event in events if event["type"] == f"{DIFF}delta") == CREATE["diff"]
    (item,) = events[-1]["response"]["output"]
    assert item["operation"] == CREATE


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"name": "shell", "arguments": {"commands": "ls", "timeout_ms": "soon"}}, {"commands": ["ls"]}),
        ({"name": "shell", "arguments": {"commands": ["\ud800", 3]}}, {"commands": ["?"]}),
        ({"name": "shell", "arguments": {}}, {"commands": []}),
        ({"name": "local_shell", "arguments": {"command": [], "env": {"A": 1}}}, {"command": [], "env": {"A": ""}}),
        ({"name": "apply_patch", "arguments": {"type": "x"}}, {"type": "update_file", "path": "", "diff": ""}),
    ],
)
def test_arguments_that_nothing_constrains_become_a_valid_item(arguments: Any, wanted: dict[str, Any]):
    text = f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"
    runtime = FakeRuntime(lambda submit: [text, {"text": "", "finish_reason": "stop"}])
    (item,) = respond(runtime).json()["output"]
    TypeAdapter[Any](ResponseOutputItem).validate_python(item)
    action = item.get("action") or item["operation"]
    assert {name: action[name] for name in wanted} == wanted
    assert "event: response.completed" in respond(runtime, stream=True).text


def test_skills_of_the_client_are_in_the_description_of_the_shell():
    skill = {"name": "pdf", "description": "Reads PDF files.", "path": "/skills/pdf"}
    runtime = runtime_of("Yes.")
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}, "allowed_callers": ["direct"]}
    assert respond(runtime, [tool]).status_code == 200
    assert "- pdf (in /skills/pdf): Reads PDF files." in runtime.rendered[0][1]["tools"][0]["function"]["description"]


@pytest.mark.parametrize(
    ("tool", "param", "reason"),
    [
        ({"type": "shell", "environment": {"type": "container_auto"}}, "environment.type", "OpenAI's servers"),
        (
            {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
            "environment.type",
            "OpenAI's servers",
        ),
        ({"type": "shell", "environment": {"type": "cloud"}}, "environment.type", "cloud"),
        ({"type": "shell", "environment": "local"}, "environment", "object"),
        (
            {"type": "shell", "environment": {"type": "local", "skills": [{"name": 1}]}},
            "environment.skills[0].name",
            "",
        ),
        ({"type": "apply_patch", "allowed_callers": ["programmatic"]}, "allowed_callers", "programs"),
        ({"type": "apply_patch", "allowed_callers": "programmatic"}, "allowed_callers", "list"),
        ({"type": "computer"}, "type", "points of a screen"),
        ({"type": "computer_use_preview", "display_width": 9, "display_height": 9}, "type", "points of a screen"),
        ({"type": "code_interpreter"}, "type", "`apply_patch`"),
        ({"type": "namespace", "name": "n", "tools": [SHELL]}, "tools[0].type", "shell"),
    ],
)
def test_what_only_openai_s_servers_have_is_refused_with_the_reason(tool: Any, param: str, reason: str):
    for tools in ([tool], [tool, {"type": "function", "name": "f"}]):
        response = respond(runtime_of("Yes."), tools)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, f"tools[0].{param}")
        assert reason in error["message"]


def test_names_of_functions_of_a_wrong_type_are_refused():
    response = respond(runtime_of("Yes."), [{"type": "function", "name": ["x"]}, SHELL])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[0].function.name")


def test_names_that_are_taken_again_and_again_are_no_error_of_the_server():
    taken = [{"type": "function", "name": "shell" + "_tool" * number} for number in range(1200)]
    assert respond(runtime_of("Yes."), [*taken, SHELL]).status_code == 400


def test_a_client_tool_is_offered_once():
    assert respond(runtime_of("Yes."), [SHELL, SHELL]).json()["error"]["param"] == "tools"


PLACE = {"id": "x", "call_id": "c", "status": "completed"}
PRINTED = {"stdout": "", "stderr": ""}
NESTED: Any = json.loads("[" * 600 + "]" * 600)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "shell_call", **PLACE}, ".action"),
        ({"type": "shell_call", **PLACE, "action": {"commands": "ls"}}, ".action.commands"),
        ({"type": "local_shell_call", **PLACE, "action": {"command": ["ls"], "env": {"A": 1}}}, ".action.env[...]"),
        ({"type": "apply_patch_call", **PLACE, "operation": {"type": "create_file", "path": "a"}}, ".operation.diff"),
        ({"type": "apply_patch_call", **PLACE, "operation": {"type": "move", "path": "a"}}, ".operation.type"),
        ({"type": "shell_call_output", **PLACE, "output": "text"}, ".output"),
        ({"type": "shell_call_output", **PLACE, "output": [{"stdout": "", "stderr": ""}]}, ".output[0]"),
        (
            {"type": "shell_call_output", **PLACE, "output": [{**PRINTED, "outcome": {"type": "exit"}}]},
            ".output[0].outcome.exit_code",
        ),
        ({"type": "shell_call_output", **PLACE, "output": [], "x": NESTED}, ""),
        ({"type": "apply_patch_call_output", **PLACE, "status": "done"}, ".status"),
        ({"type": "apply_patch_call_output", **PLACE, "status": "failed", "output": []}, ".output"),
        ({"type": "local_shell_call_output", **PLACE, "output": 5}, ".content"),
    ],
)
def test_a_malformed_item_is_refused_by_name(item: Any, param: str):
    response = ask(make_app(FakeRuntime()), "POST", "/v1/responses", json={"input": [item]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"input[0]{param}")


def test_what_agents_leave_out_or_send_as_null_is_taken():
    runtime = FakeRuntime()
    items: list[Any] = [
        {"role": "user", "content": "hi"},
        {"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "command": ["ls"], "user": None}},
        {"type": "local_shell_call_output", "id": "a", "output": "x"},
        {"type": "shell_call", "call_id": "b", "action": {"commands": ["ls"], "timeout_ms": None}, "environment": None},
        {
            "type": "shell_call_output",
            "call_id": "b",
            "output": [{"stdout": "y", "stderr": "", "outcome": {"type": "timeout", "exit_code": None}}],
            "max_output_length": None,
            "provider_data": {"a": 1},
        },
    ]
    response = ask(make_app(runtime), "POST", "/v1/responses", json={"input": items})
    assert response.status_code == 200, response.text
    messages: list[Message] = list(runtime.rendered[0][0])
    assert [message.tool_call_id for message in messages] == [None, None, "a", None, "b"]
    assert [message.text for message in messages] == ["hi", "", "x", "", "y\n[timed out]"]
