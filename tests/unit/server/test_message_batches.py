"""`/v1/messages/batches`, asked by Anthropic's own client: every request has one result, whatever happens."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from pydantic import TypeAdapter

from stoker.engine.protocol import Submit
from stoker.errors import InvalidInput, ModelNotLoaded, Overloaded
from stoker.server.batches import batches as batches_module
from stoker.server.batches import message_requests, message_results, message_routes
from stoker.server.batches import run as run_module
from stoker.server.batches import upload as upload_module
from stoker.server.batches.batches import PRIORITY, WINDOW_S
from stoker.server.batches.files import OF_A_BATCH, FileStore, owner_tag
from stoker.server.batches.lines import body_of, read_lines
from stoker.server.batches.records import MESSAGES_URL
from tests.unit.runtime.fake_models import live
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app
from tests.unit.server.test_batches import Setting, begin, line, serving
from tests.waiting import BOUND_S, until

HEADERS = {"x-api-key": "sk-alice", "anthropic-version": "2023-06-01"}
LIMITS = ({"limit": "000000001000"}, {"limit": "000000001" + "0" * 4400})
"""Numbers that are too large only after their first nine digits."""
URL = "http://test/v1/messages/batches"


def client_of(setting: Setting, key: str = "sk-alice") -> Any:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=setting.app))
    return anthropic.AsyncAnthropic(api_key=key, base_url="http://test", http_client=http, max_retries=0)


def http_of(setting: Setting) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=setting.app), headers=HEADERS)


def request(custom_id: str, **params: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": custom_id}]} | params
    return {"custom_id": custom_id, "params": body}


def said(submit: Submit) -> str:
    """The `custom_id` of the request that the engine was given."""
    return str(submit.prompt).removeprefix("<user>")


async def when(client: Any, batch_id: str, is_true: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(BOUND_S):
        while True:
            batch = await client.messages.batches.retrieve(batch_id)
            if is_true(batch):
                return batch
            await asyncio.sleep(0.002)


async def ended(client: Any, batch_id: str) -> Any:
    return await when(client, batch_id, lambda batch: batch.processing_status == "ended")


async def results(client: Any, batch_id: str) -> dict[str, Any]:
    found = [each async for each in await client.messages.batches.results(batch_id)]
    assert len({each.custom_id for each in found}) == len(found), "no request has two results"
    return {each.custom_id: each.result for each in found}


async def recorded(folder: Path, count: int) -> Path:
    """The file with the answers of the only unfinished batch, as soon as it has that number of lines."""
    batches = folder / "batches"
    await until(lambda: [path for path in batches.glob("*.jsonl") if path.read_bytes().count(b"\n") == count])
    (path,) = batches.glob("*.jsonl")
    return path


def left_in(folder: Path) -> list[str]:
    """Names of the files of clients and batches in a folder."""
    return [path.name for path in folder.glob("*/*")]


def counted(batch: Any) -> dict[str, int]:
    return {name: count for name, count in batch.request_counts.to_dict().items() if count}


@live
async def test_a_batch_is_answered_in_anthropics_shape(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request("a"), request("bad", max_tokens=-3)])
        assert batch.id.startswith("msgbatch_")
        assert (batch.type, batch.processing_status, batch.results_url) == ("message_batch", "in_progress", None)
        assert (batch.ended_at, batch.cancel_initiated_at, batch.archived_at) == (None, None, None)
        assert counted(batch) == {"processing": 2}
        assert (batch.expires_at - batch.created_at).total_seconds() == 86_400
        setting.now += 5
        done = await ended(client, batch.id)
        assert counted(done) == {"succeeded": 1, "errored": 1}
        assert done.results_url == f"{URL}/{batch.id}/results"
        assert (done.ended_at - done.created_at).total_seconds() in (0, 5)
        found = await results(client, batch.id)
        assert found["a"].type == "succeeded"
        assert found["a"].message.content[0].text == "ok"
        assert found["bad"].type == "errored"
        assert found["bad"].error.error.type == "invalid_request_error"
        assert "max_tokens" in found["bad"].error.error.message


@live
async def test_replies_have_all_that_the_clients_types_need(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["ok"] if said(submit) == "a" else [asyncio.Event()])
    async with serving(tmp_path / "f", runtime) as setting:
        http = http_of(setting)
        made = await http.post(URL, json={"requests": [request("a"), request("bad", max_tokens=-3), request("c")]})
        TypeAdapter[Any](MessageBatch).validate_python(made.json())
        await recorded(tmp_path / "f", 2)
        await http.post(f"{URL}/{made.json()['id']}/cancel")
        await ended(client_of(setting), made.json()["id"])
        TypeAdapter[Any](MessageBatch).validate_python((await http.get(f"{URL}/{made.json()['id']}")).json())
        reply = await http.get(f"{URL}/{made.json()['id']}/results")
        assert reply.headers["content-type"] == "application/x-jsonl"
        lines = [json.loads(text) for text in reply.text.splitlines()]
        assert {each["custom_id"]: each["result"]["type"] for each in lines} == {
            "a": "succeeded",
            "bad": "errored",
            "c": "canceled",
        }
        for each in lines:
            TypeAdapter[Any](MessageBatchIndividualResponse).validate_python(each)


@live
async def test_the_beta_client_has_the_same_batches(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        batch = await client.beta.messages.batches.create(requests=[request("a")], betas=["some-beta"])
        await ended(client, batch.id)
        assert [each.id async for each in client.beta.messages.batches.list()] == [batch.id]
        (found,) = [each async for each in await client.beta.messages.batches.results(batch.id)]
        assert found.result.message.content[0].text == "ok"
        assert (await client.beta.messages.batches.delete(batch.id)).type == "message_batch_deleted"


@live
async def test_only_the_results_stay_in_the_folder_and_no_client_sees_their_file(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        client, other = client_of(setting), setting.client()
        batch = await client.messages.batches.create(requests=[request("a")])
        await ended(client, batch.id)
        name = batch.id.removeprefix("msgbatch_")
        kept = {f"{batch.id}.json", f"file-{name}-results", f"file-{name}-results.json"}
        await until(lambda: set(left_in(tmp_path / "f")) == kept)
        assert [each async for each in other.files.list()] == []
        assert [each async for each in client.beta.files.list()] == []
        for refused in (other.files.content(f"file-{name}-results"), other.files.delete(f"file-{name}-results")):
            with pytest.raises(openai.NotFoundError):
                await refused
        assert (await client.messages.batches.delete(batch.id)).id == batch.id
        assert left_in(tmp_path / "f") == []
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)


@live
async def test_batches_of_the_two_apis_are_apart(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        client, other = client_of(setting), setting.client()
        batch = await client.messages.batches.create(requests=[request("a")])
        others = await begin(other, line("b"))
        assert [each.id async for each in client.messages.batches.list()] == [batch.id]
        assert [each.id async for each in other.batches.list()] == [others.id]
        for refused in (other.batches.retrieve(batch.id), other.batches.cancel(batch.id)):
            with pytest.raises(openai.NotFoundError):
                await refused
        for refused in (
            client.messages.batches.retrieve(others.id),
            client.messages.batches.cancel(others.id),
            client.messages.batches.delete(others.id),
        ):
            with pytest.raises(anthropic.NotFoundError):
                await refused


@live
async def test_for_another_key_nothing_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        alice, bob = client_of(setting), client_of(setting, "sk-bob")
        batch = await alice.messages.batches.create(requests=[request("a")])
        done = await ended(alice, batch.id)
        for asked in (
            bob.messages.batches.retrieve(batch.id),
            bob.messages.batches.cancel(batch.id),
            bob.messages.batches.delete(batch.id),
            bob.get(done.results_url, cast_to=object),
        ):
            with pytest.raises(anthropic.NotFoundError):
                await asked
        assert [each async for each in bob.messages.batches.list()] == []
        assert set(await results(alice, batch.id)) == {"a"}


@live
async def test_interactive_requests_come_first_and_a_key_has_one_batch_at_a_time(tmp_path: Path) -> None:
    gate = asyncio.Event()
    runtime = FakeRuntime(lambda submit: [gate, "ok"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = client_of(setting)
        first = await client.messages.batches.create(requests=[request("a")])
        second = await client.messages.batches.create(requests=[request("b")])
        await until(lambda: runtime.submits)
        assert (runtime.submits[0].priority, runtime.submits[0].client_key) == (PRIORITY, "alice")
        gate.set()
        await ended(client, second.id)
        assert [said(submit) for submit in runtime.submits] == ["a", "b"]
        assert (await client.messages.batches.retrieve(first.id)).processing_status == "ended"


@live
async def test_after_a_kill_what_has_its_answer_is_not_computed_again(tmp_path: Path) -> None:
    gate = asyncio.Event()
    first = FakeRuntime(lambda submit: ["one"] if said(submit) in "ab" else [gate, "late"])
    async with serving(tmp_path / "f", first) as setting:
        batch = await client_of(setting).messages.batches.create(requests=[request(name) for name in "abcd"])
        await until(lambda: len(first.submits) == 4)
        path = await recorded(tmp_path / "f", 2)
    with path.open("ab") as file:
        file.write(b'{"id":"batch_req_1","custom_id":"c","resp')
    second = FakeRuntime(lambda submit: ["two"])
    async with serving(tmp_path / "f", second) as setting:
        done = await ended(client_of(setting), batch.id)
        found = await results(client_of(setting), batch.id)
    assert counted(done) == {"succeeded": 4}
    texts = {name: result.message.content[0].text for name, result in found.items()}
    assert texts == {"a": "one", "b": "one", "c": "two", "d": "two"}
    assert {said(submit) for submit in second.submits} == {"c", "d"}


@live
async def test_a_batch_is_cancelled_in_the_middle_and_then_deleted(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["ok"] if said(submit) == "a" else [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request(name) for name in "abc"])
        await until(lambda: len(runtime.submits) == 3)
        await recorded(tmp_path / "f", 1)
        with pytest.raises(anthropic.BadRequestError, match="not finished; cancel it first"):
            await client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.BadRequestError, match="no results yet"):
            await client.get(f"{URL}/{batch.id}/results", cast_to=object)
        setting.now += 7
        cancelled = await client.messages.batches.cancel(batch.id)
        assert cancelled.processing_status in ("canceling", "ended")
        assert (cancelled.cancel_initiated_at - batch.created_at).total_seconds() == 7
        done = await ended(client, batch.id)
        assert counted(done) == {"succeeded": 1, "canceled": 2}
        found = await results(client, batch.id)
        assert {name: result.type for name, result in found.items()} == {
            "a": "succeeded",
            "b": "canceled",
            "c": "canceled",
        }
        with pytest.raises(anthropic.BadRequestError, match="cancelled already"):
            await client.messages.batches.cancel(batch.id)
        await client.messages.batches.delete(batch.id)
        await until(lambda: left_in(tmp_path / "f") == [])


@live
async def test_a_batch_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = client_of(setting)
        first = await client.messages.batches.create(requests=[request("a")])
        second = await client.messages.batches.create(requests=[request("b")])
        await until(lambda: runtime.submits)
        await client.messages.batches.cancel(second.id)
        assert counted(await ended(client, second.id)) == {"canceled": 1}
        assert (await client.messages.batches.retrieve(first.id)).processing_status == "in_progress"
        assert len(runtime.submits) == 1


@live
async def test_a_batch_whose_results_are_being_written_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, write = asyncio.Event(), batches_module.write_results

    async def later(*args: Any) -> Any:
        await gate.wait()
        return await write(*args)

    monkeypatch.setattr(batches_module, "write_results", later)
    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request("a")])
        await until(lambda: setting.files.batches.of()[0].status == "finalizing")
        assert (await client.messages.batches.cancel(batch.id)).processing_status == "in_progress"
        gate.set()
        done = await ended(client, batch.id)
        assert (counted(done), done.cancel_initiated_at) == ({"succeeded": 1}, None)


@live
async def test_a_batch_that_takes_longer_than_a_day_ends_with_what_it_has(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["ok"] if said(submit) == "a" else [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        batch = await client_of(setting).messages.batches.create(requests=[request("a"), request("b")])
        await recorded(tmp_path / "f", 1)
    setting = Setting(tmp_path / "f", runtime)
    setting.now += WINDOW_S + 1
    setting.batches.start()
    try:
        done = await ended(client_of(setting), batch.id)
        assert counted(done) == {"succeeded": 1, "expired": 1}
        assert (await results(client_of(setting), batch.id))["b"].type == "expired"
    finally:
        await setting.batches.close()


@live
async def test_answers_that_do_not_fit_end_the_batch_and_are_kept(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["y" * 700_000])
    async with serving(tmp_path / "f", runtime, max_mib=1) as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request(name) for name in "abcd"])
        done = await ended(client, batch.id)
        counts = counted(done)
        assert counts.keys() == {"succeeded", "errored"}
        assert sum(counts.values()) == 4
        found = await results(client, batch.id)
        errors = [result.error.error for result in found.values() if result.type == "errored"]
        assert len(errors) == counts["errored"]
        assert {error.type for error in errors} == {"api_error"}
        assert "more than 1 MiB (--files-mib)" in errors[0].message


@live
async def test_a_server_that_has_no_room_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_MAX_WAIT_S", 0.0)
    runtime = FakeRuntime(lambda submit: ["ok"])
    refusals = [Overloaded("full", retry_after_s=1.0), ModelNotLoaded("later")]
    runtime.refuse = lambda submit: refusals.pop() if refusals else None
    async with serving(tmp_path / "f", runtime) as setting:
        batch = await client_of(setting).messages.batches.create(requests=[request("a")])
        assert counted(await ended(client_of(setting), batch.id)) == {"succeeded": 1}
        assert refusals == []


@live
async def test_batches_are_listed_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        made: list[str] = []
        for name in "abcde":
            made.insert(0, (await client.messages.batches.create(requests=[request(name)])).id)
            setting.now += 1
        assert [each.id async for each in client.messages.batches.list()] == made
        assert [each.id async for each in client.messages.batches.list(limit=2)] == made
        page = await client.messages.batches.list(limit=2, after_id=made[1])
        assert ([each.id for each in page.data], page.has_more) == (made[2:4], True)
        assert (page.first_id, page.last_id) == (made[2], made[3])
        page = await client.messages.batches.list(limit=2, before_id=made[4])
        assert ([each.id for each in page.data], page.has_more) == (made[2:4], True)
        assert [each.id for each in (await page.get_next_page()).data] == made[:2]
        for batch_id in made:
            await ended(client, batch_id)
        async for batch in client.messages.batches.list(limit=2):
            await client.messages.batches.delete(batch.id)
        page = await client.messages.batches.list()
        assert (page.data, page.first_id, page.last_id, page.has_more) == ([], None, None, False)
        for wrong in ({"after_id": "msgbatch_x"}, {"before_id": "x"}, {"limit": 0}, {"limit": 1001}, *LIMITS):
            (name,) = wrong
            with pytest.raises(anthropic.BadRequestError, match=f"`{name}` must be"):
                await client.messages.batches.list(**wrong)


@live
async def test_a_list_goes_on_after_batches_whose_requests_are_stored_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slowly(*args: Any) -> Any:
        setting.now += 3 * args[-1].endswith("-requests")
        return await keep(*args)

    async with serving(tmp_path / "f") as setting:
        keep = setting.files.keep
        monkeypatch.setattr(setting.files, "keep", slowly)
        client, made = client_of(setting), list[str]()
        for name in "abcd":
            made.insert(0, (await client.messages.batches.create(requests=[request(name)])).id)
            setting.now -= 2
            await ended(client, made[0])
        assert [each.id async for each in client.messages.batches.list(limit=1)] == made
        for old in setting.files.batches.of():  # as earlier versions noted it: later than in the id
            await setting.files.batches.put(msgspec.structs.replace(old, created_at=old.created_at + 3))
        assert [each.id async for each in client.messages.batches.list(limit=1)] == made


def body(*requests: Any, **fields: Any) -> bytes:
    return json.dumps({"requests": list(requests), **fields}).encode()


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "the request body is empty"),
        (b"[]", "the request body is not valid: Expected `object`"),
        (b'{"requests": [', "the request body is not valid"),
        (b"\xff", "the request body is not valid"),
        (b'{"requests": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the request body is not valid"),
        (b"{}", "missing required field `requests`"),
        (b'{"requests": null}', "missing required field `requests`"),
        (b'{"requests": "a"}', "`requests` is not valid: Expected `array"),
        (body(), "`requests` must have at least one request"),
        (body(*(request(str(number)) for number in range(6))), "`requests` can have at most 5 requests"),
        (body("a"), "`requests` is not valid: Expected `object`, got `str` - at `$[0]`"),
        (body(request("a"), {"custom_id": "b"}), "missing required field `params`"),
        (body({"params": {}}), "missing required field `custom_id`"),
        (body(request("a"), {"custom_id": 1, "params": {}}), "`requests[1].custom_id`: expected `str`"),
        (body(request("a"), request("b"), request("a")), "`requests[2].custom_id`: 'a' is that of `requests[0]`"),
        (body(request("")), "`requests[0].custom_id` must be 1 to 64 letters"),
        (body(request("a b")), "`requests[0].custom_id` must be 1 to 64 letters"),
        (body(request("a\n")), "`requests[0].custom_id` must be 1 to 64 letters"),
        (body(request("ä")), "`requests[0].custom_id` must be 1 to 64 letters"),
        (body(request("a" * 65)), "`requests[0].custom_id` must be 1 to 64 letters"),
        (body(request("a"), {"custom_id": "b", "params": []}), "`requests[1].params` is not valid: Expected `object`"),
        (body(request("a"), request("b", stream=True)), "`requests[1].params.stream` must be left out"),
        (body(request("a", background=True)), "`requests[0].params.background` must be left out"),
        (body(request("a", system="x" * 5000)), "`requests[0].params` has 5"),
    ],
)
@live
async def test_a_body_that_is_no_batch_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, says: str
) -> None:
    monkeypatch.setattr(message_requests, "MAX_LINE_BYTES", 5000)
    monkeypatch.setattr(message_routes, "MAX_MESSAGES", 5)
    async with serving(tmp_path / "f") as setting:
        reply = await http_of(setting).post(URL, content=sent)
        assert reply.status_code == 400, reply.text
        assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", "invalid_request_error")
        assert says in reply.json()["error"]["message"]
        assert left_in(tmp_path / "f") == []


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b'{"requests": [%b0]}' % (b"0," * 200_000), "Expected `object`"),
        (b'{"requests": [%b{}]}' % (b"{}," * 200_000), "at most 5 requests"),
        (body(request("a"), x=[[]] * 200_000), "the request body has more than 8192 bytes besides `requests`"),
        (body(request("a"), **{str(number): 0 for number in range(40_000)}), "8192 bytes besides `requests`"),
        (body({**request("a"), "x": [[]] * 200_000}), "`requests[0]` has more than 8192 bytes besides `params`"),
        (body(request("a", **{str(number): 0 for number in range(40_000)}), 0), "Expected `object`"),
        (body(request("a", **{str(number): 0 for number in range(40_000)})), None),
    ],
)
def test_a_body_takes_little_more_memory_than_its_size(tmp_path: Path, sent: bytes, says: str | None) -> None:
    (tmp_path / "body").write_bytes(sent)
    tracemalloc.start()
    try:
        with nullcontext() if says is None else pytest.raises(InvalidInput, match=re.escape(says)):
            message_requests.write_requests(tmp_path / "body", tmp_path / "lines", 5)
        if says is None:
            (line,) = read_lines(tmp_path / "lines", endpoint=MESSAGES_URL)
            body_of(tmp_path / "lines", line)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(sent)
    finally:
        tracemalloc.stop()


@live
async def test_bodies_of_every_form_are_read(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        http = http_of(setting)
        pretty = json.dumps({"requests": [request("a", system="x\u2028y\x85")]}, indent=4, ensure_ascii=False)
        for sent in (b"\xef\xbb\xbf" + body(request("a", stream=False)), pretty.encode(), body(request("a"), betas=[])):
            made = await http.post(URL, content=_in_pieces(sent))
            assert made.status_code == 200, made.text
            await ended(client_of(setting), made.json()["id"])
            found = await results(client_of(setting), made.json()["id"])
            assert found["a"].type == "succeeded"


@live
async def test_a_model_that_is_no_text_fails_its_request_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        sent = body(request("a"), request("b", model="MODEL")).replace(b"MODEL", b"\xff")
        made = await http_of(setting).post(URL, content=sent)
        assert counted(await ended(client_of(setting), made.json()["id"])) == {"succeeded": 1, "errored": 1}


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 7):
        yield data[at : at + 7]


@live
async def test_unknown_fields_are_listed_or_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        made = await http_of(setting).post(URL, content=body({**request("a"), "url": "x"}, other=1))
        assert made.headers["x-stoker-ignored"] == "other, requests[0].url"
    async with serving(tmp_path / "f", strict_fields=True) as setting:
        made = await http_of(setting).post(URL, content=body({**request("a"), "url": "x"}))
        assert (made.status_code, "requests[0].url" in made.text) == (400, True)


@live
async def test_a_body_that_is_too_large_or_compressed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "MAX_REQUESTS_BYTES", 100_000)
    async with serving(tmp_path / "f", max_body_bytes=1000) as setting:
        http, large = http_of(setting), body(request("a", system="x" * 150_000))
        for content in (large, _in_pieces(large)):
            reply = await http.post(URL, content=content)
            assert (reply.status_code, reply.json()["error"]["type"]) == (413, "request_too_large")
        assert (await http.post(URL, content=b"x", headers={"content-encoding": "gzip"})).status_code == 415
        assert left_in(tmp_path / "f") == []
        beyond = await http.post(URL, content=body(request("a", system="x" * 2000)))
        assert beyond.status_code == 200, "the limit of other bodies is another one"


@live
async def test_the_requests_of_a_key_are_bounded(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime, max_mib=1) as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request("a", system="x" * 600_000)])
        with pytest.raises(anthropic.BadRequestError, match="more than 1 MiB"):
            await client.messages.batches.create(requests=[request("b", system="x" * 600_000)])
        await client.messages.batches.cancel(batch.id)
        await ended(client, batch.id)
        await until(lambda: not list((tmp_path / "f" / "files").glob("*-requests")))
        await client.messages.batches.create(requests=[request("b", system="x" * 600_000)])


@live
async def test_requests_that_grow_beyond_the_bound_on_disk_are_refused(tmp_path: Path) -> None:
    sent = body(*({"custom_id": f"r{index}", "params": {}} for index in range(20_000)))
    assert len(sent) < 2**20
    async with serving(tmp_path / "f", max_mib=1) as setting:
        reply = await http_of(setting).post(URL, content=sent)
        assert (reply.status_code, "more than 1 MiB" in reply.text) == (400, True)
        assert left_in(tmp_path / "f") == []


@live
async def test_unfinished_batches_of_a_key_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MAX_UNFINISHED", 2)
    runtime = FakeRuntime(lambda submit: [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = client_of(setting)
        for _ in range(2):
            await client.messages.batches.create(requests=[request("a")])
        with pytest.raises(anthropic.RateLimitError, match="not finished yet"):
            await client.messages.batches.create(requests=[request("a")])


@live
async def test_the_oldest_finished_batches_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MAX_KEPT", 2)
    async with serving(tmp_path / "f") as setting:
        client, made = client_of(setting), list[str]()
        for name in "abc":
            made.append((await client.messages.batches.create(requests=[request(name)])).id)
            await ended(client, made[-1])
            setting.now += 1
        assert [each.id async for each in client.messages.batches.list()] == [made[2], made[1]]
        assert not [name for name in left_in(tmp_path / "f") if made[0].removeprefix("msgbatch_") in name]


def failing(num_times: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that finds the disk full a number of times."""

    def tried(*args: Any) -> Any:
        nonlocal num_times
        num_times -= 1
        if num_times >= 0:
            raise OSError(28, "No space left on device")
        return function(*args)

    return tried


@live
async def test_results_that_the_disk_has_no_room_for_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(message_results, "_write", failing(2, message_results._write))
    runtime = FakeRuntime(lambda submit: ["ok"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request("a")])
        assert counted(await ended(client, batch.id)) == {"succeeded": 1}
        assert (await results(client, batch.id))["a"].message.content[0].text == "ok"
        assert len(runtime.submits) == 1


@live
async def test_a_batch_fails_and_leaves_nothing_if_the_disk_has_no_room_for_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(message_results, "_write", failing(float("inf"), message_results._write))
    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request("a")])
        await until(lambda: setting.files.batches.of()[0].status == "finalizing")
        setting.now += 2 * WINDOW_S
        done = await ended(client, batch.id)
        assert (counted(done), done.results_url) == ({"errored": 1}, None)
        await until(lambda: left_in(tmp_path / "f") == [f"{batch.id}.json"])


@live
async def test_a_batch_that_failed_keeps_its_error_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(batches_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(batches_module, "run_batch", broken)
    monkeypatch.setattr(message_results, "_write", failing(1, message_results._write))
    async with serving(tmp_path / "f") as setting:
        batch = await client_of(setting).messages.batches.create(requests=[request("a")])
        assert counted(await ended(client_of(setting), batch.id)) == {"errored": 1}
        assert (await results(client_of(setting), batch.id))["a"].type == "errored"


@live
async def test_a_batch_ends_although_its_requests_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kept(*args: Any) -> None:
        raise OSError(5, "Input/output error")

    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        monkeypatch.setattr(setting.files, "delete_of_batch", kept)
        batch = await client.messages.batches.create(requests=[request("a")])
        await ended(client, batch.id)
        await until(lambda: not setting.batches._running)
        assert counted(await client.messages.batches.retrieve(batch.id)) == {"succeeded": 1}
        await client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)
    async with serving(tmp_path / "f"):
        assert left_in(tmp_path / "f") == []


@pytest.mark.parametrize("shelf", ["files", "batches"])
@live
async def test_a_batch_that_the_disk_has_no_room_for_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shelf: str
) -> None:
    async with serving(tmp_path / "f") as setting:
        records = setting.files.batches if shelf == "batches" else setting.files._shelf
        monkeypatch.setattr(records, "_write", failing(1, records._write))
        reply = await http_of(setting).post(URL, content=body(request("a")))
        assert (reply.status_code, "the disk takes no more" in reply.text) == (429, True)
        assert left_in(tmp_path / "f") == []


@live
async def test_requests_may_name_files_of_the_same_key(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["ok"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = client_of(setting)
        file = await client.beta.files.upload(file=("a.txt", b"the note", "text/plain"))
        document = {"type": "document", "source": {"type": "file", "file_id": file.id}}
        batch = await client.messages.batches.create(
            requests=[request("a", messages=[{"role": "user", "content": [document]}])]
        )
        assert counted(await ended(client, batch.id)) == {"succeeded": 1}
        assert "the note" in str(runtime.submits[0].prompt)
        theirs = await client_of(setting, "sk-bob").messages.batches.create(
            requests=[request("a", messages=[{"role": "user", "content": [document]}])]
        )
        assert counted(await ended(client_of(setting, "sk-bob"), theirs.id)) == {"errored": 1}


@live
async def test_long_results_arrive_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_routes, "_CHUNK_BYTES", 100)
    async with serving(tmp_path / "f") as setting:
        client = client_of(setting)
        batch = await client.messages.batches.create(requests=[request(f"r{index}") for index in range(50)])
        await ended(client, batch.id)
        assert set(await results(client, batch.id)) == {f"r{index}" for index in range(50)}


@live
async def test_what_a_kill_left_of_batches_that_are_gone_is_removed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "f", 1)
    upload = await store.begin(owner_tag("alice"))
    await store.write(upload, b"x")
    await store.keep(upload, "x", OF_A_BATCH)
    store.close()
    async with serving(tmp_path / "f"):
        assert left_in(tmp_path / "f") == []


@live
async def test_what_a_kill_left_of_answers_is_removed(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        batch = await client_of(setting).messages.batches.create(requests=[request("a")])
        await ended(client_of(setting), batch.id)
        await until(lambda: not setting.batches._running)
        kept = set(left_in(tmp_path / "f"))
    for name in (batch.id, "msgbatch_gone"):
        for suffix in ("jsonl", "jsonl.lock"):
            (tmp_path / "f" / "batches" / f"{name}.{suffix}").touch()
    async with serving(tmp_path / "f"):
        assert set(left_in(tmp_path / "f")) == kept


def test_a_server_without_a_folder_says_how_it_gets_one() -> None:
    for method, path in (("POST", ""), ("GET", ""), ("GET", "/msgbatch_x"), ("GET", "/msgbatch_x/results")):
        reply = ask(make_app(FakeRuntime()), method, f"/v1/messages/batches{path}")
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert "--files-dir" in reply.json()["error"]["message"]
