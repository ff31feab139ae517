from __future__ import annotations

from stoker.sampling.draws import _GOLDEN, Draws, Purpose, _mix


def test_a_draw_is_a_function_of_seed_purpose_and_index() -> None:
    draws = Draws(seed=42, index=7)
    first = draws.uniform(Purpose.TOKEN)
    draws.uniform(Purpose.XTC)
    assert draws.uniform(Purpose.TOKEN) == first == Draws(42, 7).uniform(Purpose.TOKEN)


def test_draws_of_different_seeds_purposes_and_indices_differ() -> None:
    seeds = (0, 1, 2, 2**32, 2**64 - 1)
    numbers = [Draws(s, i).uniform(purpose) for s in seeds for i in range(200) for purpose in Purpose]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)


def test_draws_fill_the_interval_evenly_along_the_indices_and_along_the_seeds() -> None:
    for numbers in (
        [Draws(0, i).uniform(Purpose.TOKEN) for i in range(20_000)],
        [Draws(s, 0).uniform(Purpose.TOKEN) for s in range(20_000)],
    ):
        counts = [0] * 20
        for number in numbers:
            counts[int(number * 20)] += 1
        # Chi-square with 19 degrees of freedom, 99.9 %.
        assert sum((count - 1000) ** 2 / 1000 for count in counts) < 43.8


def test_the_generator_is_splitmix64() -> None:
    """The first outputs of the published generator for the state 0."""
    assert [_mix((i + 1) * _GOLDEN) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_same_seed_gives_the_same_numbers_in_every_version() -> None:
    assert Draws(0, 0).uniform(Purpose.TOKEN) == 0.6524484863740322
    assert Draws(42, 5).uniform(Purpose.TOKEN) == 0.12473167689429798
    assert Draws(42, 5).uniform(Purpose.XTC) == 0.29799280177098986
