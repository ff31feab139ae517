"""The results of a measurement as one versioned JSON file: plans, samples and the machine. It measures nothing."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import msgspec

from stoker.bench.figures import Figures, Limits
from stoker.errors import InvalidInput

SCHEMA_VERSION = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, the same for every server. Lengths are in tokens.

    Raises:
        InvalidInput: a number is out of its range; `fields["parameter"]` names it.
    """

    scenario: str
    prompt_tokens: int
    """Length of the part of each prompt that the scenario is about."""
    output_tokens: int
    """Length of every answer: the end of generation is ignored."""
    concurrency: tuple[int, ...]
    """Numbers of concurrent requests, which are measured one after the other."""
    num_requests: int | None = None
    """Requests for each level of concurrency; in the scenario `agent`, conversations. None = the scenario's default."""
    turns: int | None = None
    """Requests of each conversation. None = the scenario's default."""
    shared_tokens: int | None = None
    """Length of the system prompt that all conversations share. None = the scenario's default."""
    repetitions: int = 3
    seed: int = 0
    limits: Limits = Limits()
    endpoint: str = "completions"

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "repetitions", "turns", "shared_tokens"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for concurrency in self.concurrency:
            _check_positive("concurrency", concurrency)
        if self.num_requests is not None:
            _check_positive("requests", self.num_requests)


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a server, as far as the server describes it."""

    name: str
    num_parameters: int | None = None
    vocab_size: int | None = None


class ServerAbout(msgspec.Struct, frozen=True, kw_only=True):
    """One of the servers that were measured."""

    name: str
    command: tuple[str, ...]
    """The command line that started the server or program; empty if the server was already running."""
    url: str
    """The URL at which the server was reached; empty if no request was sent to it."""
    model: ModelIdentity


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one repetition at one point of a scenario."""

    server: str
    scenario: str
    repetition: int
    concurrency: int
    phase: str
    """The part of the scenario's requests that the figures are about; empty = all requests."""
    figures: Figures


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario that could not be measured with a server, and the reason."""

    server: str
    scenario: str
    reason: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which the measurement ran."""

    cpu: str
    num_cores: int
    """CPU cores that this process may use."""
    memory_bytes: int
    system: str
    python: str
    load_before: float | None
    """Load average of the minute before the measurement: above 0, other programs were running. None = unknown."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmark."""

    schema_version: int = SCHEMA_VERSION
    stoker_version: str
    started_at: str
    """ISO 8601, with its time zone."""
    command: tuple[str, ...]
    machine: Machine
    servers: tuple[ServerAbout, ...]
    plans: tuple[Plan, ...]
    samples: tuple[Sample, ...]
    absent: tuple[Absent, ...] = ()

    @property
    def num_failed(self) -> int:
        """Requests without a complete answer, over all samples. A request in several samples counts once for each."""
        return sum(sample.figures.num_failed for sample in self.samples)


def write_results(results: Results, path: Path) -> None:
    """Writes the JSON file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}", parameter="json") from error


def read_results(path: Path) -> Results:
    """Reads what `write_results` wrote.

    Raises:
        InvalidInput: the file cannot be read, contains something else, or has another schema version.
    """
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise InvalidInput(f"{path} has schema version {version}; this version of Stoker reads {SCHEMA_VERSION}")
        return msgspec.json.decode(data, type=Results)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} holds no results of `stoker bench`: {error}") from error


class _Versioned(msgspec.Struct, frozen=True):
    schema_version: int


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise InvalidInput(f"`{name}` must be at least 1, not {value}", parameter=name)


def this_machine() -> Machine:
    """Describes this machine, as far as the system tells."""
    return Machine(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=".".join(map(str, sys.version_info[:3])),
        load_before=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
