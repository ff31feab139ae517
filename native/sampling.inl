// Passes over a row of logits. Included once per instruction set; plain loops, which the compiler makes vectors of.
#include <bit>
#include <limits>

#include "exponential.hpp"
#include "sampling.hpp"

namespace stoker::STOKER_ISA {

// Floats as integers of the same order: negative ones have their magnitude turned round. Integers have a maximum that is one
// instruction, and in which no number that is none gets lost. 5 operations a logit.
inline float maximum(const float* x, int32_t n) {
    constexpr int32_t kMagnitude = 0x7fffffff, kInfinite = 0x7f800000;
    int32_t largest = std::numeric_limits<int32_t>::min(), widest = 0;
    for (int32_t i = 0; i < n; ++i) {
        const int32_t bits = std::bit_cast<int32_t>(x[i]), magnitude = bits & kMagnitude;
        const int32_t ordered = bits ^ ((bits >> 31) & kMagnitude);
        largest = ordered > largest ? ordered : largest;
        widest = magnitude > widest ? magnitude : widest;
    }
    const int32_t bits = largest ^ ((largest >> 31) & kMagnitude);
    return widest > kInfinite ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(bits);
}

inline void block_maxima(const float* row, int32_t n, float* maxima) {
    const int32_t whole = n / kMaximaBlock;
    for (int32_t i = 0; i < whole; ++i) {
        maxima[i] = maximum(row + size_t(i) * kMaximaBlock, kMaximaBlock);
    }
    if (whole * kMaximaBlock < n) {
        maxima[whole] = maximum(row + size_t(whole) * kMaximaBlock, n - whole * kMaximaBlock);
    }
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

constexpr SamplingKernels kSamplingKernels = {block_maxima, exp_sum};

}  // namespace stoker::STOKER_ISA
