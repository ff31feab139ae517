#include "block_product.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "cpu.hpp"
#include "pack.hpp"

namespace stoker {

namespace {

constexpr int32_t kMaxTilesOfPart = 16;
constexpr int32_t kPartsOfThread = 4;

// GGUF has no types like these; with blocks of 64 or 128 inputs, a scale is there for each 32.
int32_t type_of(int bits, int block) {
    const bool is_coarse = block == 32 || block == 64 || block == 128;
    if (bits == 4 && is_coarse) return kNibbles;
    if (bits == 8 && is_coarse) return kBytes;
    return bits == 8 && block == 16 ? kBytes16 : -1;
}

// A block of 32 inputs as `pack` reads it: scales, then codes.
uint8_t* write_block(int32_t type, const uint8_t* codes, const float* scales, uint8_t* out) {
    const size_t scale_bytes = type == kBytes16 ? 8 : 4;
    std::memcpy(out, scales, scale_bytes);
    out += scale_bytes;
    if (type == kNibbles) {
        const auto code = [&](int i) { return codes[i / 2] >> (i % 2 * 4) & 15; };
        for (int i = 0; i < 16; ++i) *out++ = uint8_t(code(i) | code(i + 16) << 4);
        return out;
    }
    for (int i = 0; i < 32; ++i) *out++ = codes[i] ^ 0x80;
    return out;
}

constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The rows of a call, each with what is left of it behind it; and both rounded.
struct Rounded {
    float* x;  // [2 rows][cols]
    Activations a;

    static size_t bytes(int32_t rows, int32_t cols) {
        return aligned(sizeof(float) * 2 * rows * cols) + Activations::bytes(2 * rows, cols);
    }
    Rounded(void* memory, int32_t rows, int32_t cols)
        : x(static_cast<float*>(memory)),
          a(Activations::place(static_cast<uint8_t*>(memory) + aligned(sizeof(float) * 2 * rows * cols), 2 * rows, cols)) {
        a.x = x;
        a.ldx = cols;
    }
};

}  // namespace

bool BlockProduct::can_multiply(int32_t outputs, int32_t inputs, int bits, int block) {
    const int32_t type = type_of(bits, block);
    return type >= 0 && outputs > 0 && inputs % std::max(block, kBlock) == 0 && can_pack(type, inputs);
}

BlockProduct::BlockProduct(int32_t outputs, int32_t inputs, int bits, int block, const uint8_t* codes, const float* scales)
    : matrix_{type_of(bits, block), outputs, inputs, nullptr}, packed_(packed_bytes(matrix_.type, outputs, inputs)) {
    matrix_.data = packed_.get();
    const int32_t threads = std::max(1, int32_t(std::thread::hardware_concurrency()));
    tiles_of_part_ = std::clamp(matrix_.tiles() / (kPartsOfThread * threads), 1, kMaxTilesOfPart);
    const size_t tile_bytes = find_format(matrix_.type)->tile_bytes(inputs), code_bytes = size_t(inputs) * bits / 8;
    const int32_t scales_of_row = inputs / block;
    std::vector<uint8_t> rows(file_row_bytes(matrix_.type, inputs) * kTile);
    for (int32_t first = 0; first < outputs; first += kTile) {
        const int32_t n = std::min(kTile, outputs - first);
        uint8_t* to = rows.data();
        for (int32_t row = first; row < first + n; ++row) {
            for (int32_t at = 0; at < inputs; at += kBlock) {
                to = write_block(matrix_.type, codes + row * code_bytes + size_t(at) * bits / 8,
                                 scales + size_t(row) * scales_of_row + at / block, to);
            }
        }
        pack(matrix_.type, rows.data(), n, inputs, packed_.get() + first / kTile * tile_bytes);
    }
}

size_t BlockProduct::rounded_bytes(int32_t rows) const { return Rounded::bytes(rows, inputs()); }

void BlockProduct::round(const float* x, int32_t rows, void* rounded, int32_t part) const {
    const Kernels& kernels = best_kernels();
    const Rounded r(rounded, rows, inputs());
    const int32_t blocks = r.a.blocks();
    for (int32_t row = part * kRowsOfPart; row < std::min(rows, (part + 1) * kRowsOfPart); ++row) {
        float* whole = r.x + size_t(2) * row * inputs();
        float* rest = whole + inputs();
        std::copy_n(x + size_t(row) * inputs(), inputs(), whole);
        kernels.quantize(r.x, inputs(), 2 * row, 2 * row + 1, 0, blocks, r.a);
        for (int32_t b = 0; b < blocks; ++b) {
            const size_t at = r.a.at(2 * row, b);
            for (int i = 0; i < kBlock; ++i) {
                rest[b * kBlock + i] = whole[b * kBlock + i] - r.a.scale[at] * float(r.a.q[at * kBlock + i]);
            }
        }
        kernels.quantize(r.x, inputs(), 2 * row + 1, 2 * row + 2, 0, blocks, r.a);
    }
}

void BlockProduct::multiply(const void* rounded, int32_t rows, float* y, int32_t part) const {
    const Kernels& kernels = best_kernels();
    const Rounded r(const_cast<void*>(rounded), rows, inputs());
    const int32_t first = part * tiles_of_part_, tiles = std::min(tiles_of_part_, matrix_.tiles() - first);
    Matrix columns = matrix_;
    columns.data += first * find_format(matrix_.type)->tile_bytes(inputs());
    columns.rows = std::min(tiles * kTile, outputs() - first * kTile);
    thread_local Buffer<float> products;
    thread_local Buffer<uint8_t> scratch;
    float* sums = products.at_least(size_t(2) * rows * columns.rows);
    kernels.matmul(columns, r.a, 0, tiles, sums, columns.rows,
                   scratch.at_least(kernels.matmul_scratch_bytes(matrix_.type, 2 * rows, inputs())));
    for (int32_t row = 0; row < rows; ++row) {
        const float* whole = sums + size_t(2) * row * columns.rows;
        const float* rest = whole + columns.rows;
        float* to = y + size_t(row) * outputs() + first * kTile;
        for (int32_t o = 0; o < columns.rows; ++o) {
            to[o] = whole[o] + rest[o];
        }
    }
}

}  // namespace stoker
