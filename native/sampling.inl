// Passes over a row of logits. Included once per instruction set, after simd_*.hpp.
#include <algorithm>
#include <bit>
#include <limits>

#include "exponential.hpp"
#include "sampling.hpp"

namespace stoker::STOKER_ISA {

constexpr int32_t kMagnitude = 0x7fffffff, kInfinite = 0x7f800000;  // of the bits of a float

// Of any logits: +inf if one of them is no number.
inline float maximum(const float* x, int32_t n) {
    float largest = x[0];
    for (int32_t i = 0; i < n; ++i) {
        if ((std::bit_cast<int32_t>(x[i]) & kMagnitude) > kInfinite) {
            return std::numeric_limits<float>::infinity();
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
    const bool are_numbers = *std::max_element(magnitudes, magnitudes + 16) <= kInfinite;
    for (int32_t block = are_numbers ? whole : 0; block < num_maxima(n); ++block) {
        const int32_t from = block * kMaximaBlock;
        maxima[block] = maximum(row + from, std::min(kMaximaBlock, n - from));
    }
}

// Few do, so that sixteen are looked at together.
inline int32_t reaching(const float* row, int32_t n, float bound, int32_t* found) {
    const f32x16 least = set1(bound);
    int32_t count = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        for (uint32_t hits = ~bits(less(load(row + i), least)) & 0xffff; hits != 0; hits &= hits - 1) {
            found[count++] = i + std::countr_zero(hits);
        }
    }
    for (; i < n; ++i) {
        if (row[i] >= bound) {
            found[count++] = i;
        }
    }
    return count;
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

constexpr SamplingKernels kSamplingKernels = {block_maxima, reaching, exp_sum, exp_all};

}  // namespace stoker::STOKER_ISA
