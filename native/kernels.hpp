// What the executor may ask of a CPU: one table of kernels per instruction set, and the views they work on.
// No threads, no allocation, no policy: the caller brings the memory and says which rows and tiles are whose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats.hpp"

namespace stoker {

constexpr int32_t kTile = 16;   // outputs in a weight tile, and rows in an activation tile
constexpr int32_t kBlock = 32;  // inputs that share one activation scale

constexpr int32_t divided_up(int32_t n, int32_t by) { return (n + by - 1) / by; }

// A packed weight matrix (see pack.hpp): `rows` outputs of `cols` inputs, GGUF type number `type`. The memory is the caller's.
struct Matrix {
    int32_t type;
    int32_t rows;
    int32_t cols;
    const uint8_t* data;  // 64-byte aligned

    int32_t tiles() const { return divided_up(rows, kTile); }
    bool is_float() const { return find_format(type)->is_float(); }
};

// Rows of activations, quantised per block of 32, for the products with quantised weights; and as they were, for the others.
//
//   q      [row tile][block][row in tile][32]   int8, -127..127      a row tile has 16 rows, the last one what is left:
//   scale  [row tile][block][row in tile]       float                so one row alone lies contiguously, and 16 rows of a
//   sum[h] [row tile][block][row in tile]       int32                block are one AMX operand
//
// `sum[h]` is the sum of the codes of half h (16 inputs) of a block; it corrects offsets and minima exactly.
struct Activations {
    int32_t rows = 0;
    int32_t cols = 0;
    int8_t* q = nullptr;
    float* scale = nullptr;
    int32_t* sum[2] = {nullptr, nullptr};
    const float* x = nullptr;  // [rows][ldx], only needed by F32, F16 and BF16 weights
    int32_t ldx = 0;

    int32_t blocks() const { return cols / kBlock; }
    int32_t rows_in_tile(int32_t row) const {
        const int32_t left = rows - row / kTile * kTile;
        return left < kTile ? left : kTile;
    }
    // Index of (row, block) in `scale` and `sum`; times kBlock in `q`.
    size_t at(int32_t row, int32_t block) const {
        const int32_t first = row / kTile * kTile;
        return size_t(first) * blocks() + size_t(block) * rows_in_tile(row) + (row - first);
    }
    static constexpr size_t bytes(int32_t rows, int32_t cols) {
        return size_t(rows) * cols + 3 * (sizeof(float) * size_t(rows) * (cols / kBlock) + 64) + 64;
    }
    // Views into `memory` (64-byte aligned, at least `bytes(rows, cols)`); x is not set.
    static Activations place(void* memory, int32_t rows, int32_t cols) {
        const auto aligned = [](size_t n) { return (n + 63) / 64 * 64; };
        Activations a;
        a.rows = rows;
        a.cols = cols;
        auto* base = static_cast<uint8_t*>(memory);
        const size_t codes = aligned(size_t(rows) * cols);
        const size_t plane = aligned(sizeof(float) * size_t(rows) * a.blocks());
        a.q = reinterpret_cast<int8_t*>(base);
        a.scale = reinterpret_cast<float*>(base + codes);
        a.sum[0] = reinterpret_cast<int32_t*>(base + codes + plane);
        a.sum[1] = reinterpret_cast<int32_t*>(base + codes + 2 * plane);
        return a;
    }
};

struct RowKernels;        // rows.hpp
struct AttentionKernels;  // attention.hpp
struct RecurrentKernels;  // recurrent.hpp
struct SamplingKernels;   // sampling.hpp
struct AdapterKernels;    // adapters.hpp

// Every function computes the same bits in every table, whatever rows and tiles it is called for at a time.
struct Kernels {
    const char* name;
    // Quantises rows [row0, row1) and blocks [block0, block1) of x [rows][ldx] into `out`. Rows of one row tile share cache
    // lines: threads that work at the same time should take row tiles, or blocks, of their own.
    void (*quantize)(const float* x, int32_t ldx, int32_t row0, int32_t row1, int32_t block0, int32_t block1,
                     const Activations& out);
    // y[row * ldy + n] = sum over k of w[n][k] * a[row][k], for all rows of `a` and the outputs of tiles [tile0, tile1).
    // `scratch` is this thread's own: matmul_scratch_bytes(...) bytes, 64-byte aligned.
    void (*matmul)(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy,
                   void* scratch);
    size_t (*matmul_scratch_bytes)(int32_t type, int32_t rows, int32_t cols);
    // Row `row` of the matrix as floats: exactly what dequantising the file's row gives.
    void (*unpack_row)(const Matrix& w, int32_t row, float* out);
    const RowKernels* rows;
    const AttentionKernels* attention;
    const RecurrentKernels* recurrent;
    const SamplingKernels* sampling;
    const AdapterKernels* adapters;
};

}  // namespace stoker
