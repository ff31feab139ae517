"""`/v1/files` and `/v1/batches`, asked by OpenAI's own client: every request is answered once, whatever happens."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from stoker.engine.protocol import Submit
from stoker.errors import ConfigError
from stoker.server.batches import batches as batches_module
from stoker.server.batches import run as run_module
from stoker.server.batches import upload as upload_module
from stoker.server.batches.batches import PRIORITY, WINDOW_S, Batches
from stoker.server.batches.files import FileStore, owner_tag
from stoker.server.batches.lines import body_of
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from tests.unit.runtime.fake_models import live
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app, registry_of, served
from tests.waiting import BOUND_S, until

KEYS = "alice:sk-alice,bob:sk-bob"


class Setting:
    """A server over a folder, and the time there."""

    def __init__(self, folder: Path, runtime: FakeRuntime, max_mib: int = 10, **settings: Any) -> None:
        self.now = 1_000_000.0
        self.files = FileStore(folder, max_mib, lambda: self.now)
        self.batches = Batches(self.files, 2, lambda: self.now)
        config = ServerConfig(api_key=KEYS, **settings)
        self.app = create_app(registry_of(served(runtime)), config, parts=[self.batches])

    def client(self, key: str = "sk-alice") -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app))
        return openai.AsyncOpenAI(api_key=key, base_url="http://test/v1", http_client=http, max_retries=0)


@asynccontextmanager
async def serving(folder: Path, runtime: FakeRuntime | None = None, **settings: Any) -> AsyncGenerator[Setting]:
    setting = Setting(folder, runtime or FakeRuntime(lambda submit: ["ok"]), **settings)
    setting.batches.start()
    try:
        yield setting
    finally:
        await setting.batches.close()


def line(custom_id: str, **body: Any) -> bytes:
    body = {"prompt": custom_id, "max_tokens": 4} | body
    return (
        json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}).encode() + b"\n"
    )


async def begin(client: openai.AsyncOpenAI, *lines: bytes, endpoint: Any = "/v1/completions") -> Any:
    file = await client.files.create(file=("in.jsonl", b"".join(lines)), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )


async def when(client: openai.AsyncOpenAI, batch_id: str, is_true: Callable[[Any], bool]) -> Any:
    """The batch, as soon as that holds of it."""
    async with asyncio.timeout(BOUND_S):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if is_true(batch):
                return batch
            await asyncio.sleep(0.002)


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    return await when(client, batch_id, lambda batch: batch.status in ("completed", "failed", "cancelled", "expired"))


async def answers(client: openai.AsyncOpenAI, file_id: str) -> dict[str, Any]:
    text = (await client.files.content(file_id)).text
    found = [json.loads(each) for each in text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found), "no request is answered twice"
    return {each["custom_id"]: each["response"] for each in found}


@live
async def test_a_batch_is_answered_and_what_failed_lies_beside_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        client = setting.client()
        batch = await begin(client, line("a"), line("b"), line("bad", max_tokens=-3))
        assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"a": "b"})
        done = await ended(client, batch.id)
        assert done.status == "completed"
        assert done.completed_at == done.created_at
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 2, 1)
        good = await answers(client, done.output_file_id)
        assert {name: reply["body"]["choices"][0]["text"] for name, reply in good.items()} == {"a": "ok", "b": "ok"}
        bad = await answers(client, done.error_file_id)
        assert bad["bad"]["status_code"] == 400
        assert bad["bad"]["body"]["error"]["param"] == "max_tokens"
        assert [each.id async for each in client.batches.list()] == [batch.id]
        assert not list((tmp_path / "f" / "batches").glob("*.jsonl*"))


@live
async def test_azures_clients_leave_out_v1(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=setting.app))
        client = openai.AsyncAzureOpenAI(
            api_key="sk-alice", azure_endpoint="http://test", api_version="2024-10-21", http_client=http, max_retries=0
        )
        short = line("a").replace(b"/v1/", b"/")
        done = await ended(client, (await begin(client, short, line("b"), endpoint="/completions")).id)
        assert (done.status, done.endpoint) == ("completed", "/v1/completions")
        assert set(await answers(client, done.output_file_id)) == {"a", "b"}
        with pytest.raises(openai.BadRequestError, match="`endpoint` must be one of"):
            await begin(client, short, endpoint="/messages")


@live
async def test_files_are_kept_listed_and_deleted(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    async with serving(tmp_path / "f") as setting:
        client = setting.client()
        first = await client.files.create(file=('ä "x".jsonl', content), purpose="batch")
        assert (first.bytes, first.filename, first.purpose, first.status) == (
            len(content),
            'ä "x".jsonl',
            "batch",
            "processed",
        )
        setting.now += 1
        second = await client.files.create(
            file=("b", b"b"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert second.expires_at == second.created_at + 3600
        assert [each.id async for each in client.files.list(limit=1)] == [second.id, first.id]
        assert (await client.files.content(first.id)).content == content
        assert (await client.files.delete(first.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(first.id)
        setting.now += 3600
        assert [each.id async for each in client.files.list()] == []
    assert not [path for path in (tmp_path / "f" / "files").iterdir() if path.suffix != ".lock"]


@live
async def test_anthropic_s_clients_have_the_same_files_in_their_shape(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=setting.app))
        client = anthropic.AsyncAnthropic(api_key="sk-alice", base_url="http://test", http_client=http, max_retries=0)
        first = await client.beta.files.upload(file=("a.pdf", b"abc", "application/pdf"))
        assert (first.type, first.filename, first.mime_type, first.size_bytes) == (
            "file",
            "a.pdf",
            "application/pdf",
            3,
        )
        assert first.created_at.timestamp() == setting.now
        assert (await setting.client().files.retrieve(first.id)).purpose == "user_data"
        setting.now += 1
        second = await client.beta.files.upload(file=("b", b"b"))
        assert [each.id async for each in client.beta.files.list(limit=1)] == [second.id, first.id]
        after = (
            await http.get(
                f"http://test/v1/files?after_id={second.id}",
                headers={"x-api-key": "sk-alice", "anthropic-version": "2023-06-01"},
            )
        ).json()
        assert ([each["id"] for each in after["data"]], after["has_more"]) == ([first.id], False)
        before = await client.beta.files.list(extra_query={"before_id": first.id})
        assert [each.id for each in before.data] == [second.id]
        named = await client.beta.files.list(extra_query={"ids": [first.id]})
        assert [each.id for each in named.data] == [first.id]
        assert await client.beta.files.retrieve_metadata(first.id) == first
        assert await (await client.beta.files.download(first.id)).read() == b"abc"
        assert (await client.beta.files.delete(first.id)).type == "file_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.beta.files.retrieve_metadata(first.id)


@live
async def test_anthropic_s_clients_delete_files_while_they_list_them(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=setting.app))
        client = anthropic.AsyncAnthropic(api_key="sk-alice", base_url="http://test", http_client=http, max_retries=0)
        kept = [(await client.beta.files.upload(file=(name, b"x"))).id for name in ("a.json.gz", "//[a.pdf", "c")]
        gone = [(await client.beta.files.delete(file.id)).id async for file in client.beta.files.list(limit=1)]
        assert sorted(gone) == sorted(kept)
        with pytest.raises(anthropic.BadRequestError, match="next_page"):
            await client.beta.files.list(page="other")


@live
async def test_anthropic_s_clients_say_how_long_a_file_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=setting.app))
        client = anthropic.AsyncAnthropic(api_key="sk-alice", base_url="http://test", http_client=http, max_retries=0)
        file = await client.beta.files.upload(file=("a", b"x"), extra_body={"expires_in_seconds": 7_776_000})
        assert file.to_dict()["expires_at"] is not None
        setting.now += 7_776_000
        assert [each.id async for each in client.beta.files.list()] == []
        with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
            await client.beta.files.upload(file=("a", b"x"), extra_body={"expires_in_seconds": 3599})


@live
async def test_files_outlive_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        file = await setting.client().files.create(file=("a", b"abc"), purpose="batch")
    async with serving(tmp_path / "f") as setting:
        assert (await setting.client().files.content(file.id)).content == b"abc"


@live
async def test_for_another_key_nothing_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "f") as setting:
        alice, bob = setting.client(), setting.client("sk-bob")
        batch = await begin(alice, line("a"))
        await ended(alice, batch.id)
        asked = [
            bob.files.retrieve(batch.input_file_id),
            bob.files.content(batch.input_file_id),
            bob.files.delete(batch.input_file_id),
            bob.batches.retrieve(batch.id),
            bob.batches.cancel(batch.id),
            bob.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"),
        ]
        for each in asked:
            with pytest.raises(openai.NotFoundError):
                await each
        assert [each async for each in bob.files.list()] == []
        assert [each async for each in bob.batches.list()] == []


@live
async def test_interactive_requests_come_first(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["ok"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = setting.client()
        await ended(client, (await begin(client, line("a", priority=7), line("b", priority=PRIORITY - 1))).id)
    assert {submit.prompt: submit.priority for submit in runtime.submits} == {"a": PRIORITY, "b": PRIORITY - 1}
    assert {submit.client_key for submit in runtime.submits} == {"alice"}


@live
async def test_after_a_kill_what_has_its_answer_is_not_computed_again(tmp_path: Path) -> None:
    gate = asyncio.Event()

    def script(submit: Submit) -> list[Any]:
        return ["one"] if submit.prompt in ("a", "b") else [gate, "late"]

    first = FakeRuntime(script)
    async with serving(tmp_path / "f", first) as setting:
        client = setting.client()
        batch = await begin(client, *(line(name) for name in "abcd"))
        await until(lambda: len(first.submits) == 4)
        seen = await when(client, batch.id, lambda found: found.request_counts.completed == 2)
        assert seen.status == "in_progress"
    (path,) = (tmp_path / "f" / "batches").glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"id":"batch_req_1","custom_id":"c","resp')
    second = FakeRuntime(lambda submit: ["two"])
    async with serving(tmp_path / "f", second) as setting:
        done = await ended(setting.client(), batch.id)
        found = await answers(setting.client(), done.output_file_id)
    assert done.status == "completed"
    texts = {name: reply["body"]["choices"][0]["text"] for name, reply in found.items()}
    assert texts == {"a": "one", "b": "one", "c": "two", "d": "two"}
    assert {submit.prompt for submit in second.submits} == {"c", "d"}


@live
async def test_a_batch_is_cancelled_and_keeps_what_it_has(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["ok"] if submit.prompt == "a" else [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = setting.client()
        batch = await begin(client, line("a"), line("b"))
        await until(lambda: len(runtime.submits) == 2)
        with pytest.raises(openai.BadRequestError, match="still reads"):
            await client.files.delete(batch.input_file_id)
        await when(client, batch.id, lambda found: found.request_counts.completed == 1)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("cancelled", 1)
        assert set(await answers(client, done.output_file_id)) == {"a"}
        with pytest.raises(openai.BadRequestError, match="cancelled already"):
            await client.batches.cancel(batch.id)


@live
async def test_a_batch_that_takes_longer_than_a_day_ends_with_what_it_has(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        batch = await begin(setting.client(), line("a"))
        await until(lambda: len(runtime.submits) == 1)
    setting = Setting(tmp_path / "f", runtime)
    setting.now += WINDOW_S + 1
    setting.batches.start()
    try:
        done = await ended(setting.client(), batch.id)
        assert (done.status, done.output_file_id) == ("expired", None)
    finally:
        await setting.batches.close()


@pytest.mark.parametrize(
    ("lines", "number", "says"),
    [
        ([line("a"), b"{nonsense}\n"], 2, "in.jsonl, line 2"),
        ([line("a"), line("a")], 2, "is that of line 1 already"),
        ([line("a", stream=True)], 1, "`stream` must be left out"),
        ([line("a", background=True)], 1, "`background` must be left out"),
        ([line("a").replace(b"/v1/completions", b"/v1/embeddings")], 1, "POST /v1/embeddings is none of"),
        ([b"\n"], None, "holds no request"),
        ([line("a", deep=0).replace(b'"deep": 0', b'"deep": ' + b"[" * 9_999 + b"]" * 9_999)], 1, "nested too deeply"),
    ],
)
@live
async def test_a_file_that_is_no_batch_fails_with_its_line(
    tmp_path: Path, lines: list[bytes], number: int | None, says: str
) -> None:
    async with serving(tmp_path / "f") as setting:
        client = setting.client()
        done = await ended(client, (await begin(client, *lines)).id)
        assert done.status == "failed"
        (fault,) = done.errors.data
        assert says in fault.message
        assert str(tmp_path) not in fault.message
        assert fault.line == number


@live
async def test_the_files_of_a_key_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path / "f", max_mib=1) as setting:
        alice = setting.client()
        first = await alice.files.create(file=("a", b"x" * 600_000), purpose="batch")
        for _ in range(2):
            with pytest.raises(openai.BadRequestError, match="more than 1 MiB"):
                await alice.files.create(file=("b", b"x" * 600_000), purpose="batch")
        await setting.client("sk-bob").files.create(file=("b", b"x" * 600_000), purpose="batch")
        await alice.files.delete(first.id)
        await alice.files.create(file=("b", b"x" * 600_000), purpose="batch")
    assert not list((tmp_path / "f").rglob("*.part"))


@live
async def test_answers_that_do_not_fit_end_the_batch_and_are_kept(tmp_path: Path) -> None:
    runtime = FakeRuntime(lambda submit: ["y" * 700_000])
    async with serving(tmp_path / "f", runtime, max_mib=1) as setting:
        client = setting.client()
        done = await ended(client, (await begin(client, *(line(name) for name in "abcd"))).id)
        assert done.status == "failed"
        assert "more than 1 MiB" in done.errors.data[0].message
        assert len(await answers(client, done.output_file_id)) == done.request_counts.completed > 0


@live
async def test_a_batch_with_a_bug_fails_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(batches_module, "run_batch", run)
        raise RuntimeError(prompt)

    prompt = "words of a prompt"
    run = batches_module.run_batch
    monkeypatch.setattr(batches_module, "run_batch", broken)
    async with serving(tmp_path / "f") as setting:
        client = setting.client()
        first, second = await begin(client, line("a")), await begin(client, line("b"))
        failed, done = await ended(client, first.id), await ended(client, second.id)
    assert (failed.status, done.status) == ("failed", "completed")
    (fault,) = failed.errors.data
    assert fault.code == "internal_error"
    assert "RuntimeError" in caplog.text
    assert prompt not in caplog.text + fault.message


@live
async def test_damaged_answers_fail_a_batch(tmp_path: Path) -> None:
    gate = asyncio.Event()
    runtime = FakeRuntime(lambda submit: ["ok"] if submit.prompt == "a" else [gate, "ok"])
    async with serving(tmp_path / "f", runtime) as setting:
        client = setting.client()
        batch = await begin(client, line("a"), line("b"))
        await when(client, batch.id, lambda found: found.request_counts.completed == 1)
        (path,) = (tmp_path / "f" / "batches").glob("*.jsonl")
        path.write_bytes(b"damaged\n")
        gate.set()
        done = await ended(client, batch.id)
    assert (done.status, done.errors.data[0].code) == ("failed", "internal_error")


@live
async def test_a_batch_whose_end_could_not_be_written_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_RETRY_S", 0.01)
    async with serving(tmp_path / "f") as setting:
        write, num_refused = setting.files.batches._write, 0

        def full(record: Any) -> None:
            nonlocal num_refused
            if record.status != "validating" and num_refused < 5:
                num_refused += 1
                raise OSError(28, "No space left on device")
            write(record)

        monkeypatch.setattr(setting.files.batches, "_write", full)
        client = setting.client()
        done = await ended(client, (await begin(client, line("a"))).id)
        assert num_refused == 5
        assert done.status in ("completed", "failed")


@pytest.mark.parametrize(
    ("sent", "state", "end", "num_requests"),
    [(line("a"), "in_progress", "cancelled", 1), (b"nonsense", "failed", "failed", 0)],
)
@live
async def test_a_batch_is_cancelled_while_its_state_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, state: str, end: str, num_requests: int
) -> None:
    runtime = FakeRuntime(lambda submit: [asyncio.Event(), "never"])
    async with serving(tmp_path / "f", runtime) as setting:
        write, is_writing, goes_on = setting.files.batches._write, threading.Event(), threading.Event()

        def slow(record: Any) -> None:
            if record.status == state:
                is_writing.set()
                assert goes_on.wait(BOUND_S)
            write(record)

        monkeypatch.setattr(setting.files.batches, "_write", slow)
        client = setting.client()
        batch = await begin(client, sent)
        await until(is_writing.is_set)
        cancelling = asyncio.create_task(client.batches.cancel(batch.id))
        await until(lambda: setting.files.batches._writing._waiters)
        goes_on.set()
        assert (await cancelling).status in ("cancelling", end)
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.total, bool(done.errors)) == (end, num_requests, end == "failed")


@live
async def test_long_lines_are_read_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(*args: Any) -> bytes:
        threads.append(threading.get_ident())
        return body_of(*args)

    monkeypatch.setattr(run_module, "body_of", noted)
    async with serving(tmp_path / "f") as setting:
        client = setting.client()
        await ended(client, (await begin(client, line("a"))).id)
    assert threads != [threading.get_ident()]


FORM = {"content-type": "multipart/form-data; boundary=x", "authorization": "Bearer sk-alice"}
FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nabc\r\n'
PURPOSE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
END = b"--x--\r\n"


@pytest.mark.parametrize(
    ("headers", "body", "says"),
    [
        ({}, FILE + PURPOSE + END, None),
        ({}, PURPOSE + FILE + END, None),
        ({"content-type": "application/json"}, b"{}", "send a form"),
        ({}, FILE + PURPOSE, "is incomplete"),
        ({}, PURPOSE + END, "no file called `file`"),
        ({}, FILE + FILE + PURPOSE + END, "has one file here"),
        ({}, FILE + END, "`purpose` is missing"),
        ({}, FILE + PURPOSE.replace(b"batch", b"fine-tune") + END, "`purpose` is 'fine-tune'"),
        ({}, FILE + PURPOSE.replace(b"batch", b"b" * 5000) + END, "more than 4096 bytes"),
        ({}, PURPOSE * 40 + FILE + END, "at most 32 parts"),
        ({}, b"nonsense", "cannot be read"),
        ({}, FILE + PURPOSE.replace(b"purpose", b"expires_after[seconds]") + PURPOSE + END, "`expires_after` must"),
    ],
)
@live
async def test_forms_are_read_as_they_should_be(tmp_path: Path, headers: Any, body: bytes, says: str | None) -> None:
    async with serving(tmp_path / "f") as setting:
        transport = httpx2.ASGITransport(app=setting.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            reply = await client.post("/v1/files", content=body, headers=FORM | headers)
        assert reply.status_code == (200 if says is None else 400), reply.text
        assert says is None or says in reply.json()["error"]["message"]
        assert len(await setting.files.all_of(owner_tag("alice"))) == (says is None)
    assert not list((tmp_path / "f").rglob("*.part"))


@pytest.mark.parametrize(
    ("headers", "mime_type"),
    [
        (b"content-type: Text/X-Notes; charset=utf-8\r\n", "text/x-notes"),
        (b"", "application/pdf"),
        (b"content-type: application/octet-stream\r\n", "application/octet-stream"),
        (b"content-type: text\r\n", "application/pdf"),
        (b'content-type: text/"<script>\r\n', "application/pdf"),
        (b"content-type: text/\xff\r\n", "application/pdf"),
        (b"content-type: text/" + b"x" * 200 + b"\r\n", "application/pdf"),
    ],
    ids=["given", "none", "unknown bytes", "no subtype", "not allowed characters", "not ASCII", "too long"],
)
@pytest.mark.parametrize("is_first", [True, False])
@live
async def test_the_mime_type_of_a_file_is_kept(
    tmp_path: Path, headers: bytes, mime_type: str, *, is_first: bool
) -> None:
    disposition = b'content-disposition: form-data; name="file"; filename="f.pdf"\r\n'
    head = headers + disposition if is_first else disposition + headers
    other = b'--x\r\ncontent-type: text/plain\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    mine = {"authorization": "Bearer sk-alice", "anthropic-version": "2023-06-01"}
    body = b"--x\r\n" + head + b"\r\nabc\r\n" + other + END
    for _ in range(2):
        async with serving(tmp_path / "f") as setting:
            transport = httpx2.ASGITransport(app=setting.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
                if body:
                    reply = await client.post("/v1/files", content=body, headers=FORM | mine)
                    assert reply.json()["mime_type"] == mime_type
                (file,) = (await client.get("/v1/files", headers=mine)).json()["data"]
                assert file["mime_type"] == mime_type
        body = b""


@live
async def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_module, "MAX_FILE_BYTES", 100_000)
    async with serving(tmp_path / "f") as setting:
        for size in (150_000, 400_000):
            with pytest.raises(openai.APIStatusError) as caught:
                await setting.client().files.create(file=("a", b"x" * size), purpose="batch")
            assert caught.value.status_code == 413
    assert not list((tmp_path / "f").rglob("*.part"))


def test_a_folder_belongs_to_one_server(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "f", 1)
    with pytest.raises(ConfigError, match="another server uses"):
        FileStore(tmp_path / "f", 1)
    store.close()
    FileStore(tmp_path / "f", 1).close()


def test_a_server_without_a_folder_says_so() -> None:
    reply = ask(make_app(FakeRuntime()), "GET", "/v1/files")
    assert reply.status_code == 400
    assert "--files-dir" in reply.text
