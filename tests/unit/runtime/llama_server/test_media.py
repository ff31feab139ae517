"""Recordings reach llama-server as WAV files that were decoded here, whatever a client sent."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, cast

import pytest

from stoker.core.params import SamplingParams
from stoker.engine.protocol import Submit
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.llama_server.media import RemoteMedia
from stoker.text.media_parts import media_from_bytes
from tests.sound_files import encoded, tone, wav

pytest.importorskip("av")


def prompt(remote: RemoteMedia, data: bytes) -> Mapping[str, Any]:
    file = media_from_bytes(data, "audio", "x")
    submit = Submit("1", f"Say {file.marker} again", SamplingParams(), media=(file,))
    return cast("Mapping[str, Any]", asyncio.run(remote.prompt(submit)))


def test_a_recording_is_decoded_before_it_is_passed_on():
    remote = RemoteMedia(["audio"], "<here>", "")
    found = prompt(remote, encoded(tone(0.5), "flac", "flac"))
    assert found["prompt_string"] == "Say <here> again"
    assert base64.b64decode(found["multimodal_data"][0]) == wav(0.5)
    with pytest.raises(InvalidInput, match="damaged"):
        prompt(remote, wav(0.5)[:30])


def test_a_model_that_does_not_hear_gets_no_recording():
    with pytest.raises(UnsupportedParameter, match="--mmproj"):
        prompt(RemoteMedia(["image"], "<here>", ""), wav(0.5))
