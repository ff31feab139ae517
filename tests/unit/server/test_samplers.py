"""llama-server's `samplers`: which stages take part, and what the editors and front ends that send it get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.core.params import SamplingParams
from tests.unit.server.fake_runtime import FakeRuntime, ask, chat, make_app

USUAL = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]


def sampling(samplers: Any, **body: Any) -> SamplingParams:
    runtime = FakeRuntime()
    response = ask(make_app(runtime), "POST", "/completion", json={"prompt": "hi", "samplers": samplers, **body})
    assert response.status_code == 200, response.text
    return runtime.submits[0].sampling


def error(samplers: Any, **body: Any) -> dict[str, Any]:
    body |= {"prompt": "hi", "samplers": samplers}
    response = ask(make_app(FakeRuntime()), "POST", "/completion", json=body)
    assert response.status_code == 400
    return response.json()["error"]


def stages(samplers: Any, **body: Any) -> tuple[str, ...]:
    found = sampling(samplers, **body).samplers
    assert isinstance(found, tuple)
    return found


def test_the_stages_and_their_order_are_those_of_the_request():
    assert stages([]) == ()
    assert stages(["top_p", "top_k"]) == ("top_p", "top_k")
    assert stages("pk") == ("top_p", "top_k")
    assert stages("edskypmxita") == (*USUAL[:-1], "infill", "temperature", "adaptive_p")
    assert stages(["temperature", "top_k", "temperature"]) == ("temperature", "top_k", "temperature")
    assert sampling(None).samplers is None


@pytest.mark.parametrize("names", [["top-k", "nucleus"], ["topk", "TOP_P"], ["top_k", "tfs_z", "top-p"], "kfp"])
def test_other_spellings(names: list[str] | str):
    assert stages(names) == ("top_k", "top_p")


def test_typical_is_typ_p_by_all_its_names():
    for name in ("typ_p", "typ-p", "typp", "typ", "typical", "typical_p", "typical-p"):
        assert stages([name]) == ("typ_p",)


def test_a_second_spelling_of_a_stage_changes_nothing():
    presets = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "top_p", "temperature"]
    assert stages(presets) == ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "temperature")


def test_the_reply_says_which_stages_there_were():
    body: dict[str, Any] = {"prompt": "hi", "samplers": "tk", "min_keep": 2}
    settings = ask(make_app(FakeRuntime()), "POST", "/completion", json=body).json()["generation_settings"]
    assert (settings["samplers"], settings["min_keep"]) == (["temperature", "top_k"], 2)


def test_a_negative_temperature_is_greedy():
    assert sampling(None, temperature=-1).temperature == 0


def test_a_base_of_dry_below_one_is_the_usual_one():
    assert sampling(None, dry_multiplier=0.8, dry_base=0.5).dry_base is None
    assert sampling(None, dry_multiplier=0.8, dry_base=1).dry_base == 1


@pytest.mark.parametrize(
    ("given", "banned"),
    [
        ({"custom_token_bans": ""}, None),
        ({"custom_token_bans": []}, None),
        ({"custom_token_bans": "3,4"}, (3, 4)),
        ({"custom_token_bans": [3, 4]}, (3, 4)),
        ({"custom_token_bans": " 3, 4,", "banned_tokens": [5]}, (5, 3, 4)),
    ],
)
def test_tokens_are_banned_by_a_text_with_commas(given: dict[str, Any], banned: tuple[int, ...] | None):
    found = sampling(None, **given).banned_token_ids
    assert (None if found is None else tuple(found)) == banned


@pytest.mark.parametrize("wrong", ["3;4", "-1", "a", [-1], "9" * 19])
def test_a_text_with_commas_has_token_ids_only(wrong: str | list[int]):
    assert error(None, custom_token_bans=wrong)["param"] == "custom_token_bans"


@pytest.mark.parametrize("names", [["top_kk"], [""], "q", ["top_k", "mirostat"]])
def test_an_unknown_stage_is_an_error_that_lists_the_known_ones(names: list[str] | str):
    refusal = error(names)
    assert refusal["param"] == "samplers"
    assert "typ_p" in refusal["message"]


def test_adaptive_p_has_a_target_and_a_decay():
    params = sampling(["adaptive_p"], adaptive_target=0.4, adaptive_decay=0.5)
    assert (params.adaptive_target, params.adaptive_decay) == (0.4, 0.5)
    assert error(None, adaptive_target=True)["param"] == "adaptive_target"


EDITOR = {
    "id_slot": 0,
    "input_prefix": "def f(",
    "input_suffix": ")",
    "input_extra": [{"text": "x = 1\n", "time": 12.5, "filename": "a.py"}],
    "prompt": "    a",
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
}
WARM_UP = {"n_predict": 0, "samplers": [], "t_max_predict_ms": 1}


@pytest.mark.parametrize(
    "asked",
    [
        # llama.vim, before anything is to be written, and when it is
        {**WARM_UP, "temperature": 0.0, "prompt": "", "input_prefix": "", "input_suffix": "", "response_fields": [""]},
        {
            "n_predict": 128,
            "stop": [],
            "n_indent": 4,
            "top_k": 40,
            "top_p": 0.90,
            "samplers": ["top_k", "top_p", "infill"],
            "t_max_predict_ms": 250,
            "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"],
        },
        # llama.vscode
        WARM_UP,
        {
            "n_predict": 128,
            "n_cmpl": 3,
            "top_k": 40,
            "top_p": 0.99,
            "samplers": ["top_k", "top_p", "infill"],
            "n_indent": 4,
            "t_max_predict_ms": 2500,
            "lora": [{"id": 0, "scale": 0.5}],
        },
    ],
)
def test_what_editors_ask_of_infill(asked: dict[str, Any]):
    runtime = FakeRuntime()
    assert ask(make_app(runtime), "POST", "/infill", json=EDITOR | asked).status_code == 200
    assert [submit.sampling.max_tokens for submit in runtime.submits] == [asked["n_predict"]] * asked.get("n_cmpl", 1)


def test_what_llama_vim_asks_of_a_chat():
    beside: dict[str, Any] = {"id_slot": 1, "cache_prompt": True}
    warm_up = chat(FakeRuntime(), **beside, samplers=[], n_predict=0, response_fields=[""])
    assert warm_up.status_code == 200
    runtime = FakeRuntime()
    edit = chat(runtime, **beside, min_p=0.1, temperature=0.1, samplers=["min_p", "temperature"], stream=True)
    assert edit.status_code == 200
    params = runtime.submits[0].sampling
    assert (params.min_p, params.temperature, params.samplers) == (0.1, 0.1, ("min_p", "temperature"))


XTC_EARLY = [*USUAL[:5], "xtc", *USUAL[5:7], "temperature"]


@pytest.mark.parametrize("samplers", [USUAL, [*USUAL, "adaptive_p"], USUAL[:2] + USUAL[3:], XTC_EARLY])
def test_what_sillytavern_asks(samplers: list[str]):
    body: dict[str, Any] = {
        "max_new_tokens": 8,
        "max_tokens": 8,
        "n_predict": 8,
        "num_predict": 8,
        "temperature": 0.7,
        "top_p": 0.5,
        "typical_p": 1,
        "min_p": 0,
        "repetition_penalty": 1.2,
        "repeat_penalty": 1.2,
        "repeat_last_n": 0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "top_k": 40,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 0,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "xtc_threshold": 0.1,
        "xtc_probability": 0,
        "top_n_sigma": 0,
        "min_keep": 0,
        "adaptive_target": -0.01,
        "adaptive_decay": 0.9,
        "mirostat": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.1,
        "grammar": "",
        "logit_bias": [],
        "ignore_eos": False,
        "tfs_z": 1,
        "n_probs": 10,
        "stop": ["\nUser:"],
    }
    params = sampling(samplers, **body)
    assert params == replace(sampling(None, **body), samplers=samplers)
    assert (params.adaptive_target, params.min_keep) == (-0.01, 0)
