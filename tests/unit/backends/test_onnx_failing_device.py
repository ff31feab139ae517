"""A provider that fails while it computes is followed by the next one, which goes on with what the slots hold."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.onnx.runtime import runtime
from stoker.core.batch import Chunk, CopyPrefix
from stoker.errors import BackendError
from tests.onnx_models import OnnxReference, TinyOnnx
from tests.onnx_runs import distance, open_tiny, run

TEXT = [7, 3, 250, 31, 8, 100, 44, 2, 61, 90, 12, 5]


@dataclass
class Devices:
    """Sessions that say they are a device's, and are the CPU's; they fail from the moment that is set."""

    fail: set[str] = field(default_factory=set[str])
    opened: list[str] = field(default_factory=list[str])

    def install(self, monkeypatch: pytest.MonkeyPatch, *providers: str) -> None:
        real = runtime().InferenceSession
        names = [*providers, "CPUExecutionProvider"]
        monkeypatch.setattr(runtime(), "get_available_providers", lambda: names)
        monkeypatch.setattr(
            runtime(),
            "InferenceSession",
            lambda source, options, providers: self._session(real, source, options, providers[0][0]),
        )

    def _session(self, real: Any, source: Any, options: Any, provider: str) -> Any:
        self.opened.append(provider)
        return _Session(self, provider, real(source, options, providers=["CPUExecutionProvider"]))


class _Session:
    def __init__(self, devices: Devices, provider: str, inner: Any) -> None:
        self._devices, self._provider, self._inner = devices, provider, inner

    def get_providers(self) -> list[str]:
        return [self._provider, "CPUExecutionProvider"]

    def run_with_iobinding(self, binding: Any) -> None:
        if self._provider in self._devices.fail:
            raise RuntimeError(f"{self._provider}: the device is lost")
        self._inner.run_with_iobinding(binding)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("attention", ["fused", "plain"])
def test_the_next_provider_goes_on_in_the_middle_of_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, attention: Any
) -> None:
    devices = Devices()
    devices.install(monkeypatch, "CoreMLExecutionProvider", "OpenVINOExecutionProvider")
    model = TinyOnnx(attention=attention)
    with open_tiny(tmp_path, model) as backend:
        expected = OnnxReference(model, tmp_path / "model.onnx").logits(TEXT)
        assert backend.provider == "coreml"
        run(backend, Chunk(0, 0, tuple(TEXT[:5]), 1))
        run(backend, Chunk(1, 3, (TEXT[3],), 1), ops=[CopyPrefix(0, 1, 3)])
        devices.fail.add("CoreMLExecutionProvider")
        rows = run(backend, Chunk(0, 5, tuple(TEXT[5:8]), 3), Chunk(1, 4, (TEXT[4],), 1))
        assert backend.provider == "openvino"
        assert distance(rows[:3], expected[5:8]) < 1e-5
        assert distance(rows[3:], expected[4:5]) < 1e-5
        devices.fail.add("OpenVINOExecutionProvider")
        assert distance(run(backend, Chunk(0, 8, tuple(TEXT[8:]), 1)), expected[-1:]) < 1e-5
        assert backend.provider == "cpu"
    assert "the provider coreml failed, openvino computes from now on: CoreML" in caplog.text
    assert "the provider openvino failed, cpu computes from now on" in caplog.text
    assert [name[:3] for name in devices.opened] == ["Cor", "Ope", "CPU"], "each is tried once"


def test_where_the_cpu_fails_the_batch_fails_and_its_slots_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    devices = Devices()
    devices.install(monkeypatch, "OpenVINOExecutionProvider")
    with open_tiny(tmp_path, TinyOnnx()) as backend:
        run(backend, Chunk(0, 0, tuple(TEXT[:5]), 1))
        devices.fail |= {"OpenVINOExecutionProvider", "CPUExecutionProvider"}
        with pytest.raises(BackendError, match="CPUExecutionProvider: the device is lost"):
            run(backend, Chunk(0, 5, tuple(TEXT[5:]), 1))
        devices.fail.clear()
        expected = OnnxReference(TinyOnnx(), tmp_path / "model.onnx").logits(TEXT)
        assert distance(run(backend, Chunk(0, 5, tuple(TEXT[5:]), 1)), expected[-1:]) < 1e-5
        assert backend.provider == "cpu", "a provider that has failed is not asked again"
