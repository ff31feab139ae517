// The scan of Mamba 1 (arXiv:2312.00752): every channel has a state of its own, whose elements forget at rates of their own. All
// channels of a row share B and C, which papers call what writes to a state and what reads from it.
//
//   state    | element 0 of channels 0, 1, 2, ... | element 1 of channels 0, 1, 2, ... | ...
//
//   step     = softplus(steps)
//   S[n]     = e^(step * decay_rates[n]) * S[n] + B[n] * step * x            of each channel, for each element n
//   out      = (C[0] S[0] + C[1] S[1] + ... + skip * x) * SiLU(gate)
//
// Sixteen channels lie in the lanes of a vector and go through all rows of a chunk, one after the other; so a row's results depend on
// the rows before it alone, and sums have one order in every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoker {

// Some channels of consecutive rows of one sequence.
struct ScannedChannels {
    float* state;               // [size][stride]
    const float* decay_rates;   // [size][stride]
    size_t stride;              // all channels
    const float* skips;         // [channels]
    const float *x, *gates;     // [row][ld]
    size_t ld;
    const float* steps;         // [row][lds]
    size_t lds;
    const float *b, *c;         // [row][ldb], `size` numbers each
    size_t ldb;
    float* out;                 // [row][ldo]
    size_t ldo;
    int32_t num_rows, channels, size;  // of channels and of size a multiple of 16
};

}  // namespace stoker
