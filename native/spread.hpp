// Heads are spread before they are kept in few bits: then no element is much larger than the others of its group. Queries and
// keys alike, so that their products stay what they were; values too, and what attention makes of them is spread back.
//
// The same operations in the same order on every CPU, so the same bits: sums and differences, then one product for each.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention.hpp"

namespace stoker {

constexpr bool is_spread(KvType type) { return is_grouped(type); }

// x = H x / sqrt(m) for each run of m elements, where m is the largest power of two that divides n, and H the Hadamard matrix of
// that size. Done twice, it is x again, but for rounding.
inline void spread(float* x, int32_t n) {
    const int32_t m = n & -n;
    const float factor = 1.0f / std::sqrt(float(m));
    for (int32_t half = 1; half < m; half *= 2) {
        for (int32_t first = 0; first < n; first += 2 * half) {
            float *low = x + first, *high = low + half;
            for (int32_t i = 0; i < half; ++i) {
                const float a = low[i], b = high[i];
                low[i] = a + b;
                high[i] = a - b;
            }
        }
    }
    for (int32_t i = 0; i < n; ++i) {
        x[i] *= factor;
    }
}

}  // namespace stoker
