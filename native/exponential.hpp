// e^x in double precision for x <= 0, by the same operations as sampling/exponential.py: the same bits on every machine.
#pragma once

#include <bit>
#include <cstdint>

namespace stoker {

constexpr double kLeastExponent = -708;  // below it the result is 0

// x = n ln 2 + r, then Taylor's polynomial for e^r with |r| <= ln(2)/2; within 2 units in the last place. No branch, so that
// loops over it become vector instructions.
inline double exp_of_negative(double x) {
    constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: what is added to it becomes an integer
    const bool vanishes = x < kLeastExponent;
    const double y = vanishes ? kLeastExponent : x;
    const double turns = y * 1.4426950408889634 + kRound;
    const double n = turns - kRound;
    const double r = (y - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const uint64_t exponent = (std::bit_cast<uint64_t>(turns) + 1023) << 52;
    return vanishes ? 0.0 : p * std::bit_cast<double>(exponent);
}

}  // namespace stoker
