"""Changes that follow the recipes of CONTRIBUTING.md to the letter, each with a program that shows what it has made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Text that is put before or after a piece of a file. A file without such a piece is written anew."""

    path: str
    """Below `src/stoker`."""
    at: str
    """A piece that is in the file exactly once; empty: the file is new."""
    before: str = ""
    after: str = ""

    def apply(self, package: Path) -> None:
        path = package / self.path
        if not self.at:
            assert not path.exists(), f"{self.path} is there already"
            path.write_text(self.after, encoding="utf-8")
            return
        text = path.read_text(encoding="utf-8")
        assert text.count(self.at) == 1, f"{self.path} has {self.at!r} {text.count(self.at)} times"
        path.write_text(text.replace(self.at, self.before + self.at + self.after), encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    heading: str
    """Of its section in CONTRIBUTING.md."""
    max_files: int
    edits: Sequence[Edit]
    shows: str
    """A program that fails unless the change works."""

    @property
    def paths(self) -> set[str]:
        return {edit.path for edit in self.edits}


_FAKE_SERVER = "from tests.unit.server.fake_runtime import FakeRuntime, ask, chat, make_app\n"

RECIPES = (
    Recipe(
        "A sampling parameter",
        5,
        (
            Edit(
                "core/params.py",
                "    typical_p: float | None = None\n",
                before='    top_a: float | None = None\n    """Top-a sampling; 0 = off."""\n',
            ),
            Edit("core/params.py", '    "typical_p": _real(0, 1),\n', before='    "top_a": _real(0, 1),\n'),
            Edit(
                "sampling/transforms.py",
                "@dataclass(frozen=True, slots=True)\nclass MinP:",
                before='''@dataclass(frozen=True, slots=True)
class TopA:
    """Drops tokens less likely than `a` times the square of the most likely one."""

    a: float

    @classmethod
    def compile(cls, params: SamplingParams) -> TopA | None:
        return cls(params.top_a) if params.top_a else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        weights = np.exp(candidates.logits - candidates.peak)
        return candidates.keep(candidates.within(-log(min(1.0, self.a / float(weights.sum())))))


''',
            ),
            Edit("sampling/stages.py", "import XTC, MinP, Temperature, ", after="TopA, "),
            Edit("sampling/stages.py", "MinP.compile,", before="TopA.compile, "),
            Edit(
                "server/request/fields.py",
                "    min_p: float | None = None\n",
                before="    top_a: float | None = None\n",
            ),
            Edit("llm/options.py", "    min_p: float | None\n", before="    top_a: float | None\n"),
        ),
        _FAKE_SERVER
        + """
import numpy as np
from stoker import LLM
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.sampler import Sampler

runtime = FakeRuntime()
assert chat(runtime, top_a=0.25).status_code == 200
assert runtime.submits[0].sampling.top_a == 0.25
refusal = chat(FakeRuntime(), top_a=7)
assert refusal.status_code == 400 and "top_a" in refusal.text, refusal.text
with LLM("Hello", backend="scripted") as llm:
    assert llm.generate("x", top_a=1.0).text == "Hello"
sampler = Sampler(vocab_size=4, eog_token_ids=frozenset(), token_bytes=lambda token_id: b"x")
row = np.array([2.0, 1.0, 0.0, -9.0], dtype=np.float32)
def drawn(**options):
    options = {"temperature": 5.0, "top_p": 1.0, **options}
    states = [sampler.open(SamplingParams(**options).filled_from(BUILT_IN), (0,), seed) for seed in range(64)]
    return {sampler.sample(row[None], [state])[0].token_id for state in states}
assert drawn() > drawn(top_a=1.0) == {0}
""",
    ),
    Recipe(
        "An endpoint",
        3,
        (
            Edit(
                "server/dialects/llamacpp/types.py",
                "class DetokenizeReply(",
                before='''class ReverseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /reverse`."""

    model: str | None = None
    text: str | None = None


class ReverseReply(msgspec.Struct, frozen=True):
    text: str


''',
            ),
            Edit(
                "server/dialects/llamacpp/types.py",
                "DETOKENIZE_FIELDS: FieldTable",
                before="REVERSE_FIELDS: FieldTable = honoured(ReverseRequest)\n",
            ),
            Edit(
                "server/dialects/llamacpp/routes.py",
                "    INFILL_FIELDS,\n",
                after="    REVERSE_FIELDS,\n    ReverseReply,\n    ReverseRequest,\n",
            ),
            Edit(
                "server/dialects/llamacpp/routes.py",
                '@router.endpoint(\n    "POST",\n    "/detokenize",',
                before="""@router.endpoint(
    "POST", "/reverse", "A text backwards.", body=ReverseRequest, fields=REVERSE_FIELDS, reply=ReverseReply
)
async def reverse(call: Call[ReverseRequest]) -> Response:
    if call.body.text is None:
        raise InvalidInput("`text` is missing", parameter="text")
    await call.lease(call.body.model)
    return json_response(ReverseReply(call.body.text[::-1]))


""",
            ),
        ),
        _FAKE_SERVER
        + """
app = make_app(FakeRuntime())
assert ask(app, "POST", "/reverse", json={"text": "abc"}).json() == {"text": "cba"}
refusal = ask(app, "POST", "/reverse", json={})
assert refusal.status_code == 400 and "`text` is missing" in refusal.text
ignored = ask(app, "POST", "/reverse", json={"text": "abc", "unheard": 1})
assert "unheard" in ignored.headers["x-stoker-ignored"]
assert "/reverse" in ask(app, "GET", "/openapi.json").json()["paths"]
""",
    ),
    Recipe(
        "A number that an engine reports",
        3,
        (
            Edit(
                "engine/stats.py",
                "    num_preemptions: int = 0\n",
                before='    num_added: int = 0\n    """Requests that were added."""\n',
            ),
            Edit(
                "engine/engine.py",
                "            num_preemptions=scheduler.num_preemptions,\n",
                before="            num_added=len(self._streams),\n",
            ),
            Edit(
                "server/observe/metrics.py",
                '    gauge("requests_running",',
                before='    counter("requests_added", "Requests added", of_engine(lambda of: of.num_added)),\n',
            ),
        ),
        """
from stoker.backends.scripted import ScriptedBackend
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.health import Health
from stoker.engine.protocol import Submit
from tests.harness import loaded
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

engine = Engine(loaded(ScriptedBackend()), SchedulerConfig())
engine.add(engine.admit(Submit(request_id="a", prompt=[1, 2], sampling=SamplingParams(max_tokens=1))))
stats = engine.stats()
assert stats.num_added == 1
runtime = FakeRuntime()
runtime.state = Health(is_ready=True, state="ready", heartbeat=stats)
text = ask(make_app(runtime), "GET", "/metrics").text
assert 'stoker_requests_added_total{model="tiny"} 1.0' in text, text
""",
    ),
    Recipe(
        "A command-line option",
        3,
        (
            Edit(
                "server/config.py",
                "    drain_s: float = 30.0\n",
                before='    motto: str = ""\n    """Text of no consequence."""\n',
            ),
            Edit("cli/options.py", "    max_connections=int,\n", before='    motto=_Opt(str, metavar="WORDS"),\n'),
        ),
        """
import os, subprocess, sys
def stoker(*arguments, **environment):
    command = [sys.executable, "-m", "stoker", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
page = stoker("serve", "--help-all", COLUMNS="200")
assert "--motto WORDS" in page and "Text of no consequence." in page, page
assert "by the clear" in stoker("config", "show", STOKER_MOTTO="by the clear")
""",
    ),
    Recipe(
        "A question to the engine",
        5,
        (
            Edit(
                "engine/question_messages.py",
                "QuickQuestion: TypeAlias = (\n",
                before='''class SlotCount(Answer, frozen=True, tag=True):
    count: int


class CountSlots(Question[SlotCount], frozen=True, tag=True):
    """How many slots there are."""


''',
                after="    CountSlots\n    | ",
            ),
            Edit("engine/protocol.py", "    QuickQuestion,\n", before="    SlotCount,\n"),
            Edit("engine/protocol.py", "AnswerEvent: TypeAlias = (\n", after="    SlotCount\n    | "),
            Edit(
                "engine/answers.py",
                "    CountTokens,\n    Detokenize,\n    Detokenized,\n",
                before="    CountSlots,\n    SlotCount,\n",
            ),
            Edit(
                "engine/answers.py",
                "            case ListSlots():\n",
                before="""            case CountSlots():
                return SlotCount(question.question_id, len(self._scheduler.slots.states()))
""",
            ),
        ),
        """
import asyncio
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.question_messages import CountSlots, SlotCount

async def main():
    client = EngineClient(EngineConfig(model="scripted", backend="scripted", ctx_size=1000, parallel=3))
    await client.start()
    try:
        answer = await client.ask(CountSlots())
        assert isinstance(answer, SlotCount) and answer.count > 0, answer
    finally:
        await client.close()
asyncio.run(main())
""",
    ),
    Recipe(
        "An eviction rule of the KV pool",
        1,
        (
            Edit(
                "core/retained.py",
                "class Retained:\n",
                before='''class MostRecentlyUsed(LeastRecentlyUsed):
    """The slot that was left, or copied from, last is evicted first."""

    def __iter__(self) -> Iterator[int]:
        return reversed(self._slots)


''',
            ),
            Edit(
                "core/retained.py",
                "        self._preferred: EvictionRule",
                before="        self._rule = MostRecentlyUsed()\n",
            ),
        ),
        """
from stoker.core.retained import Retained
retained = Retained()
for slot in (1, 2, 3):
    retained.add(slot, slot)
assert list(retained) == [3, 2, 1]
""",
    ),
    Recipe(
        "An architecture of the native executor",
        2,
        (
            Edit(
                "backends/native/architectures/llama_twin.py",
                "",
                after='''"""A model of Llama's shape under another name."""

from stoker.backends.native.architectures.llamas import describe_llama
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec


def describe_llama_twin(model: Hyperparameters) -> DecoderSpec:
    return describe_llama(model)
''',
            ),
            Edit(
                "backends/native/architectures/__init__.py",
                '    "llama4": "llama4",\n',
                after='    "llama_twin": "llama-twin",\n',
            ),
        ),
        """
import sys
from pathlib import Path
from stoker import LLM
from tests.tiny_models import TinyModel, write_tiny_model

folder = Path(sys.argv[1])
answers = []
for architecture in ("llama", "llama-twin"):
    path = write_tiny_model(folder / f"{architecture}.gguf", TinyModel(architecture=architecture))
    with LLM(path, backend="native", threads=1, ctx_size=64) as llm:
        answers.append(llm.generate([1, 2, 3], temperature=0, max_tokens=4, ignore_eos=True).token_ids)
assert len(answers[0]) == 4 and answers[0] == answers[1], answers
""",
    ),
)
