from math import inf

import pytest

from stoker.errors import InvalidInput
from stoker.runtime.keep_alive import parse_keep_alive


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("2us3ns", 2.003e-6),
        ("10", 10),
        (300, 300),
        (0.5, 0.5),
        (0, 0),
        ("0m0s", 0),
        ("-0", 0),
        (-1, inf),
        ("-1", inf),
        ("-1m", inf),
    ],
)
def test_durations(value: str | float, seconds: float):
    assert parse_keep_alive(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "soon", "5 m", "m", "1e3s", "--1", "5m ", "nan", float("nan"), float("inf")])
def test_what_is_no_duration(value: str | float):
    with pytest.raises(InvalidInput, match="keep_alive") as caught:
        parse_keep_alive(value)
    assert caught.value.fields == {"parameter": "keep_alive"}
