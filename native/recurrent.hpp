// Kernels of layers that keep a state instead of keys and values. A row's results depend on the rows before it in its sequence
// alone: every row is computed by itself, one after the other, so that how a sequence is cut into chunks does not show.
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel_scan.hpp"

namespace stoker {

constexpr int32_t kMaxTaps = 8;

// Some channels of consecutive rows of one sequence. Each channel is convolved by itself with its last inputs:
//
//   sum[row] = weights[0] * in[row - taps + 1] + ... + weights[taps - 1] * in[row]
struct ConvolvedRows {
    int32_t taps;                // 1 ... kMaxTaps
    const float* weights;        // [taps][stride], the present row's last
    const float* bias;           // [channels], or nullptr
    float* state;                // [taps - 1][stride]: the inputs before row 0, which become those before the row behind the last
    size_t stride;               // all channels
    int32_t num_rows, channels;  // of these a multiple of 16
};

// What decides how far a row changes the state of one head. Lengths of rows are filled up to a multiple of 16 with anything.
struct ScanSteps {
    float *remains, *recalls, *writes, *reads;  // [row], see ScannedRows; recalls: nullptr if nothing is recalled
};

// Consecutive rows of one head of a sequence. Its state S is key_size x value_size, 32 columns behind one another, so that memory is
// read as it lies; with T for transposed, of each row
//
//   state    | columns 0 ... 31: [key_size][32] | columns 32 ... 63 | ... | the last 16, if they are left: [key_size][16]
//
//   change = writes * (value - recalls * S^T key)
//   S      = remains * S + key change^T
//   out    = reads * S^T query + skip * value
//
// Where each row of S has a decay of its own, as in KDA, that comes first, and what is recalled and changed is what it leaves:
//
//   S[i]   = decays[i] * S[i]                      remains: 1
struct ScannedRows {
    float* state;
    const float *queries, *keys, *values;  // [row][ld]
    size_t ld;
    float* out;  // [row][ldo]
    size_t ldo;
    ScanSteps steps;
    float* decays;  // [row][ldd], of each element of a key; or nullptr
    size_t ldd;
    float skip;
    int32_t num_rows, key_size, value_size;  // sizes are multiples of 16
};

// What the steps of a head are made of: in each row a number for each head, `decays` and `betas` being this head's.
struct ScanInputs {
    const float *decays, *betas;  // [row][ld]
    float step_bias, decay_rate;
    float norm_eps;  // of queries and keys
    const float* step_biases;  // of each element of a key, in place of step_bias; or nullptr
};

struct RecurrentKernels {
    // in = b * x; out = c * sum. b, c and x are [row][ld], out is [row][ldo].
    void (*convolve_gated)(const ConvolvedRows& rows, const float* b, const float* c, const float* x, size_t ld, float* out,
                           size_t ldo);
    // x = SiLU(sum of x + bias)
    void (*convolve_silu)(const ConvolvedRows& rows, float* x, size_t ld);
    // Both write rows.steps. Of a delta net: queries and keys are as if their length were 1, and beta goes through a sigmoid.
    void (*delta_steps)(const ScanInputs& inputs, const ScannedRows& rows);
    void (*mamba_steps)(const ScanInputs& inputs, const ScannedRows& rows);
    // A delta net whose keys have a decay for each element: rows.decays become what remains.
    void (*kda_steps)(const ScanInputs& inputs, const ScannedRows& rows);
    void (*scan)(const ScannedRows& rows);
    void (*scan_channels)(const ScannedChannels& rows);
};

}  // namespace stoker
