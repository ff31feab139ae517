"""Slow, obvious versions of every sampling transform, on plain lists of (token id, logit), in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, fsum, inf, log

Pairs = list[tuple[int, float]]


def sort(pairs: Pairs) -> Pairs:
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def probabilities(pairs: Pairs) -> list[float]:
    peak = max(logit for _, logit in pairs)
    weights = [exp(logit - peak) for _, logit in pairs]
    total = fsum(weights)
    return [w / total for w in weights]


def entropy(pairs: Pairs) -> float:
    return -fsum(p * log(p) for p in probabilities(pairs) if p > 0)


def logit_bias(pairs: Pairs, biases: dict[int, float]) -> Pairs:
    return [(i, logit + biases.get(i, 0)) for i, logit in pairs]


def penalties(
    pairs: Pairs, history: Sequence[int], last_n: int, repetition: float, presence: float, frequency: float
) -> Pairs:
    window = list(history) if last_n == -1 else list(history)[len(history) - min(last_n, len(history)) :]
    counts = Counter(window)
    result: Pairs = []
    for i, logit in pairs:
        if counts[i]:
            logit = logit * repetition if logit <= 0 else logit / repetition
            logit -= counts[i] * frequency + presence
        result.append((i, logit))
    return result


def dry_lengths(
    history: Sequence[int], last_n: int, allowed_length: int, num_since_breaker: int | None
) -> dict[int, int]:
    """Per token, the length of the longest repetition that it would continue."""
    window = list(history) if last_n == -1 else list(history)[len(history) - min(last_n, len(history)) :]
    limit = len(window) if num_since_breaker is None else min(len(window), num_since_breaker)
    longest: dict[int, int] = {}
    if len(window) <= allowed_length:
        return longest
    for end in range(len(window) - 1):
        length = 0
        while length <= end and window[end - length] == window[-1 - length]:
            length += 1
        length = min(length, limit)
        if length >= allowed_length <= limit:
            following = window[end + 1]
            longest[following] = max(longest.get(following, 0), length)
    return longest


def num_since_breaker(history: Sequence[int], text_of: Callable[[int], bytes], breakers: Sequence[bytes]) -> int | None:
    """Tokens after the one in which a breaker last ended; `None` if there was none."""
    text, last = b"", None
    for position, token_id in enumerate(history):
        before, text = len(text), text + text_of(token_id)
        if any(text.find(b, max(0, before - len(b) + 1)) >= 0 for b in breakers):
            last = position
    return None if last is None else len(history) - 1 - last


def top_n_sigma(pairs: Pairs, n: float) -> Pairs:
    logits = [logit for _, logit in pairs if logit > -inf]
    mean = fsum(logits) / len(logits)
    sigma = (fsum((x - mean) ** 2 for x in logits) / len(logits)) ** 0.5
    least = max(logits) - n * sigma
    return [pair for pair in pairs if pair[1] >= least]


def top_k(pairs: Pairs, k: int) -> Pairs:
    return sort(pairs)[:k]


def typical_p(pairs: Pairs, p: float, min_keep: int = 0) -> Pairs:
    pairs = sort([pair for pair in pairs if pair[1] > -inf])
    probs, surprise = probabilities(pairs), entropy(pairs)
    order = sorted(range(len(pairs)), key=lambda j: abs(-log(probs[j]) - surprise))
    kept, mass = [], 0.0
    for j in order:
        kept.append(pairs[j])
        mass += probs[j]
        if mass > p and len(kept) >= min_keep:
            break
    return kept


def top_p(pairs: Pairs, p: float, min_keep: int = 0) -> Pairs:
    pairs = sort(pairs)
    kept, mass = [], 0.0
    for pair, prob in zip(pairs, probabilities(pairs), strict=True):
        kept.append(pair)
        mass += prob
        if mass >= p and len(kept) >= min_keep:
            break
    return kept


def min_p(pairs: Pairs, p: float, min_keep: int = 0) -> Pairs:
    probs = probabilities(pairs)
    least = p * max(probs)
    kept = [pair for pair, prob in zip(pairs, probs, strict=True) if prob >= least]
    return kept if len(kept) >= min_keep else sort(pairs)[:min_keep]


def xtc(pairs: Pairs, threshold: float, min_keep: int = 0) -> Pairs:
    pairs = sort(pairs)
    num_dropped = max(0, sum(prob >= threshold for prob in probabilities(pairs)) - 1)
    return pairs[num_dropped:] if len(pairs) - num_dropped >= min_keep else pairs


def temperature(pairs: Pairs, value: float) -> Pairs:
    if value == 0:
        return sort(pairs)[:1]
    return [(i, logit / value) for i, logit in pairs]


def dynamic_temperature(pairs: Pairs, value: float, spread: float, exponent: float) -> Pairs:
    if len(pairs) == 1:
        return pairs
    low, high = max(0.0, value - spread), value + spread
    return temperature(pairs, low + (high - low) * (entropy(pairs) / log(len(pairs))) ** exponent)


def mirostat2(pairs: Pairs, mu: float) -> Pairs:
    pairs = sort(pairs)
    return [pair for pair, p in zip(pairs, probabilities(pairs), strict=True) if p >= 2**-mu] or pairs[:1]


def mirostat1(pairs: Pairs, mu: float, vocab_size: int) -> Pairs:
    pairs = sort([pair for pair in pairs if pair[1] > -inf])
    probs = probabilities(pairs)[:100]
    steps = [(log((i + 2) / (i + 1)), log(probs[i] / probs[i + 1])) for i in range(len(probs) - 1)]
    if not steps:
        return pairs
    exponent = fsum(t * b for t, b in steps) / fsum(t * t for t, _ in steps)
    excess = exponent - 1
    k = (excess * 2**mu / (1 - vocab_size**-excess)) ** (1 / exponent)
    return pairs[: max(1, int(k))]


def adaptive_p(pairs: Pairs, target: float, mean: float) -> Pairs:
    aim = min(max(2 * target - mean, 0.0), 1.0)
    distances = [abs(p - aim) / 0.3 for p in probabilities(pairs)]
    return [(i, 5 - 10 * d * d / (1 + d)) for (i, _), d in zip(pairs, distances, strict=True)]
