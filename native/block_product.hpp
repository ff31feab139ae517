// Products of rows of floats with a matrix of integer codes in blocks, as ONNX Runtime's `MatMulNBits` describes it, on the
// kernels of the native executor. No threads: whoever multiplies says which part is whose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "buffer.hpp"
#include "kernels.hpp"

namespace stoker {

// Rows are rounded twice: to 8 bits, and what that leaves of them to 8 bits again, so that about 15 bits of each input count.
// Both lie side by side as rows of their own, and the weights are decoded once for them.
//
//   x[r]  ->  a[2 r] = round(x[r]), a[2 r + 1] = round(x[r] - a[2 r])  ->  y[r] = w a[2 r] + w a[2 r + 1]
class BlockProduct {
public:
    // Whether there are kernels for codes of so many bits with a scale for each `block` inputs.
    static bool can_multiply(int32_t outputs, int32_t inputs, int bits, int block);

    // codes: [outputs][inputs / block][block * bits / 8], of two codes in a byte the low half first; half of their range
    // stands for zero. scales: [outputs][inputs / block]. Neither is needed afterwards. Requires can_multiply.
    BlockProduct(int32_t outputs, int32_t inputs, int bits, int block, const uint8_t* codes, const float* scales);

    int32_t outputs() const { return matrix_.rows; }
    int32_t inputs() const { return matrix_.cols; }

    // Memory of one call for `rows` rows, 64-byte aligned: what `round` writes and `multiply` reads.
    size_t rounded_bytes(int32_t rows) const;

    // Rounds 8 rows of x [rows][inputs()] into `rounded`. 0 <= part < rounding_parts(rows).
    static int32_t rounding_parts(int32_t rows) { return divided_up(rows, kRowsOfPart); }
    void round(const float* x, int32_t rows, void* rounded, int32_t part) const;

    // Writes some columns of y [rows][outputs()], when all rows have been rounded. 0 <= part < parts().
    int32_t parts() const { return divided_up(matrix_.tiles(), tiles_of_part_); }
    void multiply(const void* rounded, int32_t rows, float* y, int32_t part) const;

private:
    static constexpr int32_t kRowsOfPart = kTile / 2;  // their rounded ones fill a row tile

    Matrix matrix_;
    Buffer<uint8_t> packed_;
    int32_t tiles_of_part_;
};

}  // namespace stoker
