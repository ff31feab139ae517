// Changes of low rank, and the kernels that apply them. How they lie in memory and in which order they are added: adapters.hpp.
#pragma once

#include <cstdint>

namespace stoker {

constexpr int32_t kRankBlock = 8;

// What one adapter does to one matrix.
struct LowRank {
    int32_t rank = 0;      // a multiple of kRankBlock, filled up with zeros; 0 = the matrix stays as it is
    bool is_half = false;  // a and b are half floats, otherwise floats
    float scale = 0;
    const void* a = nullptr;
    const void* b = nullptr;
};

struct AdapterKernels {
    // t[i][r] = a[r] · x[i] for the ranks [rank0, rank1), multiples of kRankBlock.
    void (*project)(const LowRank& change, int32_t inputs, int32_t rank0, int32_t rank1, const float* const* x,
                    float* const* t, int32_t rows);
    // y[i][n] += scale[i] * (b[n] · t[i]) for the outputs n of some tiles, as far as there are outputs.
    void (*expand)(const LowRank& change, int32_t outputs, int32_t tile0, int32_t tile1, const float* const* t,
                   const float* scale, float* const* y, int32_t rows);
};

}  // namespace stoker
