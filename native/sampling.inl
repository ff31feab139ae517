// Passes over a row of logits. Included once per instruction set, after simd_*.hpp.
#include "sampling.hpp"

namespace stoker::STOKER_ISA {

constexpr int32_t kMagnitude = 0x7fffffff, kInfinite = 0x7f800000;  // of the bits of a float

// Of any logits: +inf if one of them is no number.
inline float maximum(const float* x, int32_t n) {
    float largest = x[0];
    for (int32_t i = 0; i < n; ++i) {
        if (x[i] != x[i]) {
            return __builtin_inff();
        }
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

// 3 operations for 16 logits. Whether all were numbers is looked at once, behind them: they always are.
inline void block_maxima(const float* row, int32_t n, float* maxima) {
    const int32_t whole = n / kMaximaBlock;
    i32x16 widest = set1_i32(0);
    for (int32_t block = 0; block < whole; ++block) {
        f32x16 largest = load(row + size_t(block) * kMaximaBlock);
        for (int32_t i = 0; i < kMaximaBlock; i += 16) {
            const f32x16 x = load(row + size_t(block) * kMaximaBlock + i);
            largest = max(largest, x);
            widest = max_i32(widest, and_i32(as_i32(x), set1_i32(kMagnitude)));
        }
        maxima[block] = reduce_max(largest);
    }
    int32_t magnitudes[16];
    store_i32(magnitudes, widest);
    bool are_numbers = true;
    for (const int32_t magnitude : magnitudes) {
        are_numbers = are_numbers && magnitude <= kInfinite;
    }
    for (int32_t block = are_numbers ? whole : 0; block < num_maxima(n); ++block) {
        const int32_t from = block * kMaximaBlock, left = n - from;
        maxima[block] = maximum(row + from, left < kMaximaBlock ? left : kMaximaBlock);
    }
}

// Few do, so that sixteen are looked at together.
inline int32_t reaching(const float* row, int32_t n, float bound, int32_t* found) {
    const f32x16 least = set1(bound);
    int32_t count = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        for (uint32_t hits = ~lanes_below(load(row + i), least) & 0xffff; hits != 0; hits &= hits - 1) {
            found[count++] = i + __builtin_ctz(hits);
        }
    }
    for (; i < n; ++i) {
        if (row[i] >= bound) {
            found[count++] = i;
        }
    }
    return count;
}

constexpr double kLeastExponent = -708;  // below it the result is 0

// e^x in double precision for x <= 0, by the same operations as sampling/exponential.py: x = n ln 2 + r, then Taylor's
// polynomial for e^r with |r| <= ln(2)/2; within 2 units in the last place. No branch, so that
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
    const uint64_t exponent = (__builtin_bit_cast(uint64_t, turns) + 1023) << 52;
    return vanishes ? 0.0 : p * __builtin_bit_cast(double, exponent);
}

// Sixteen sums side by side for each part of a row, then those of the parts, then the sixteen one after the other:
//
//   part 0   lane[i] = w[i] + w[16 + i] + w[32 + i] + ...       total[i] = lane of part 0 + lane of part 1 + ...
inline double exp_sum(const float* row, int32_t n, float peak) {
    constexpr int32_t kLanes = 16, kPart = 1024;
    double total[kLanes] = {}, weights[kPart];
    for (int32_t start = 0; start < n; start += kPart) {
        const int32_t count = n - start < kPart ? n - start : kPart;
        for (int32_t i = 0; i < count; ++i) {
            weights[i] = exp_of_negative(double(row[start + i]) - double(peak));
        }
        for (int32_t i = count; i < (count + kLanes - 1) / kLanes * kLanes; ++i) {
            weights[i] = 0;
        }
        double lane[kLanes] = {};
        for (int32_t i = 0; i < count; i += kLanes) {
            for (int32_t j = 0; j < kLanes; ++j) {
                lane[j] += weights[i + j];
            }
        }
        for (int32_t j = 0; j < kLanes; ++j) {
            total[j] += lane[j];
        }
    }
    double sum = 0;
    for (const double lane : total) {
        sum += lane;
    }
    return sum;
}

inline void exp_all(double* x, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        x[i] = exp_of_negative(x[i]);
    }
}

inline void mask(const float* row, int32_t n, const uint32_t* words, int32_t num_words, float* out) {
    constexpr float kNever = -__builtin_inff();
    for (int32_t from = 0; from < n; from += 32) {
        const uint32_t word = from / 32 < num_words ? words[from / 32] : 0;
        const int32_t count = n - from < 32 ? n - from : 32;
        for (int32_t i = 0; i < count; ++i) {
            out[from + i] = (word >> i & 1) != 0 ? row[from + i] : kNever;
        }
    }
}

constexpr SamplingKernels kSamplingKernels = {block_maxima, reaching, exp_sum, exp_all, mask};

}  // namespace stoker::STOKER_ISA
