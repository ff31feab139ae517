// Kernels of layers that keep a state instead of keys and values. A row's results depend on the rows before it in its sequence
// alone: every row is computed by itself, one after the other, so that how a sequence is cut into chunks does not show.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoker {

constexpr int32_t kMaxTaps = 8;

// Some channels of consecutive rows of one sequence. Each channel is convolved by itself with its last inputs:
//
//   sum[row] = weights[0] * in[row - taps + 1] + ... + weights[taps - 1] * in[row]
struct ConvolvedRows {
    int32_t taps;                // 1 ... kMaxTaps
    const float* weights;        // [taps][stride], the present row's last
    float* state;                // [taps - 1][stride]: the inputs before row 0, which become those before the row behind the last
    size_t stride;               // all channels
    bool is_first;               // row 0 begins the sequence: what is in the state is not looked at
    int32_t num_rows, channels;  // of these a multiple of 16
};

struct RecurrentKernels {
    // in = b * x; out = c * sum. b, c and x are [row][ld], out is [row][ldo].
    void (*convolve_gated)(const ConvolvedRows& rows, const float* b, const float* c, const float* x, size_t ld, float* out,
                           size_t ldo);
};

}  // namespace stoker
