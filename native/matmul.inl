// Products of packed weights with quantised rows. Included once per instruction set, after its simd_*.hpp.
//
//   one block of a tile:       w  [8 groups][16 outputs][4 inputs]   u8      d, m [16 outputs]
//   one row of activations:    a  [8 groups]            [4 inputs]   s8      s
//
//   c[o] = sum of w * a - offset * sum(a)          exact in 32 bits; 8 dot instructions of 64 products
//   acc[o] = fma(c[o] * d[o], s, acc[o])           2 operations for 512 products (operands.inl: kMagic)
//   acc[o] = fma(m[o], s * sum(a), acc[o])         1 more for formats with a minimum
//
// with a scale for each half of the block: c0[o] * d0[o] + c1[o] * d1[o], every operation rounded, and two minima;
//
// block after block in order. That sequence is the definition of the product: rows, tiles, threads, instruction sets and
// the two paths below (few rows: decode while streaming; many rows: decode a panel, then reuse it) only group it.

#include "operands.inl"
#if defined(__ARM_FEATURE_MATMUL_INT8)
#include "pairs_i8mm.inl"
#endif

namespace stoker::STOKER_ISA {

constexpr int kPanelBlocks = 20;   // blocks of a decoded panel: two tiles of them stay in the first-level cache
constexpr size_t kRowBytes = 1 << 20;  // codes of activations that stay in the second-level cache

// Up to so many rows the weights are decoded for every pass of rows, unless they have two scales a block, which costs more.
template <Format F> constexpr int most_streamed() { return F.subs() == 1 ? kStreamRows : 16; }

template <Format F> constexpr bool takes_unsigned() { return F.offset == 0 || kUnsignedCodes(F.max_code); }

// R consecutive rows of one row tile, from block b0 on.
struct Rows {
    const int8_t* q;
    const float* scale;
    const int32_t* start[2];  // one of these two
    const float* sum[2];
    int stride;               // rows in the tile

    Rows(const Activations& a, const Corrections& c, int32_t row, int32_t b0) : stride(a.rows_in_tile(row)) {
        const size_t at = a.at(row, b0);
        q = a.q + at * kBlock;
        scale = a.scale + at;
        for (int h = 0; h < 2; ++h) {
            start[h] = static_cast<const int32_t*>(c.plane[h]) + (c.plane[h] ? at : 0);
            sum[h] = static_cast<const float*>(c.plane[h]) + (c.plane[h] ? at : 0);
        }
    }
};

// Products of run h of a block's inputs with R rows, T tiles: out[r][t] become the floats kMagic + c.
template <Format F, int T, int R, class Block>
inline void dot_rows(const Block (&block)[T], const Rows& rows, size_t at, int h, f32x16 (&out)[R][T]) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (R > 1) {
        return dot_pairs<F, T, R>(block, rows, at, h, out);
    }
#endif
    constexpr int groups = 8 / F.subs();
    constexpr bool is_unsigned = takes_unsigned<F>();
    i32x16 c[R][T];
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        const i32x16 start = set1_i32(F.offset != 0 && is_unsigned ? rows.start[h][at + r] : kMagicBits);
        for (int t = 0; t < T; ++t) {
            c[r][t] = start;
        }
    }
    STOKER_UNROLL for (int g = h * groups; g < (h + 1) * groups; ++g) {
        codes w[T];
        for (int t = 0; t < T; ++t) {
            w[t] = block[t].code(g);
        }
        STOKER_UNROLL for (int r = 0; r < R; ++r) {
            const quad a = broadcast4(rows.q + (at + r) * kBlock + 4 * g);
            for (int t = 0; t < T; ++t) {
                c[r][t] = dot<F.max_code, is_unsigned>(c[r][t], w[t], a);
            }
        }
    }
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            out[r][t] = as_f32(c[r][t]);
        }
    }
}

// The sequence of the picture for one block.
template <Format F, int T, int R, class Block>
inline void add_block(f32x16 (&acc)[R][T], const Block (&block)[T], const Rows& rows, size_t at) {
    f32x16 product[R][T];
    dot_rows<F, T, R>(block, rows, at, 0, product);
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            product[r][t] = fma(product[r][t], block[t].scale(0), block[t].minus_magic(0));
        }
    }
    if constexpr (F.subs() == 2) {
        f32x16 other[R][T];
        dot_rows<F, T, R>(block, rows, at, 1, other);
        STOKER_UNROLL for (int r = 0; r < R; ++r) {
            for (int t = 0; t < T; ++t) {
                product[r][t] = add(product[r][t], fma(other[r][t], block[t].scale(1), block[t].minus_magic(1)));
            }
        }
    }
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            acc[r][t] = fma(product[r][t], set1(rows.scale[at + r]), acc[r][t]);
            for (int h = 0; F.has_min() && h < F.subs(); ++h) {
                acc[r][t] = fma(block[t].minimum(h), set1(rows.sum[h][at + r]), acc[r][t]);
            }
        }
    }
}

// T tiles x R rows, `blocks` blocks. sums [R][T][16], of the blocks before these, or none; out [R][T][16], rows `ldo` apart.
template <Format F, int R, class Tile, int T>
STOKER_FLATTEN void multiply(const Tile (&tiles)[T], const Rows& rows, int blocks, const float* sums, float* out, int32_t ldo) {
    f32x16 acc[R][T];
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            acc[r][t] = sums ? load(sums + 16 * (r * T + t)) : set1(0);
        }
    }
    for (int b = 0; b < blocks; ++b) {
        decltype(tiles[0].block(0)) block[T];
        for (int t = 0; t < T; ++t) {
            block[t] = tiles[t].block(b);
        }
        add_block<F>(acc, block, rows, size_t(b) * rows.stride);
    }
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            store(out + r * ptrdiff_t(ldo) + 16 * t, acc[r][t]);
        }
    }
}

template <int most, class Body> inline void with_rows(int rows, const Body& body) {
    if constexpr (most > 1) {
        if (rows < most) {
            return with_rows<most - 1>(rows, body);
        }
    }
    body(Index<most>{});
}

// Few rows: every tile is read once from memory, and once more from the cache for each further pass of rows.
template <Format F>
void matmul_stream(const Matrix& w, const Activations& a, const Corrections& c, int32_t tile0, int32_t tile1, float* y,
                   int32_t ldy) {
    alignas(64) float sums[kSmallRows * 16];
    for (int32_t tile = tile0; tile < tile1; ++tile) {
        const PackedTile<F, takes_unsigned<F>()> packed[1] = {{w, tile}};
        const bool is_whole = (tile + 1) * 16 <= w.rows;
        for (int32_t row = 0, next; row < a.rows; row = next) {
            const int32_t end = row / kTile * kTile + a.rows_in_tile(row), left = end - row;
            const int32_t passes = (left + kSmallRows - 1) / kSmallRows;
            next = row + (left + passes - 1) / passes;
            with_rows<kSmallRows>(next - row, [&](auto n) {
                float* out = is_whole ? y + row * ptrdiff_t(ldy) + tile * 16 : sums;
                multiply<F, n.value>(packed, Rows(a, c, row, 0), a.blocks(), nullptr, out, is_whole ? ldy : 16);
            });
            if (!is_whole) {
                write_outputs(sums, 1, next - row, row, tile, w.rows, y, ldy);
            }
        }
    }
}

// Many rows, T tiles: for each run of kPanelBlocks blocks decode a panel, then run all rows of the block of rows over it.
template <Format F, int T>
void matmul_panel(const Matrix& w, const Activations& a, const Corrections& c, int32_t tile, int32_t row0, int32_t row1,
                  float* y, int32_t ldy, uint8_t* code, float* scale, float* sums) {
    PanelTile<F> panel[T];
    const bool is_whole = (tile + T) * 16 <= w.rows;
    const int runs = (a.blocks() + kPanelBlocks - 1) / kPanelBlocks, run = (a.blocks() + runs - 1) / runs;
    for (int b0 = 0; b0 < a.blocks(); b0 += run) {
        const int b1 = b0 + run < a.blocks() ? b0 + run : a.blocks();
        for (int t = 0; t < T; ++t) {
            panel[t] = {code + t * kPanelBlocks * 512, scale + t * kPanelBlocks * PanelBlock<F>::kFloats};
            panel[t].fill(PackedTile<F, takes_unsigned<F>()>(w, tile + t), b0, b1);
        }
        for (int32_t row = row0, n; row < row1; row += n) {
            const int32_t left = row / kTile * kTile + a.rows_in_tile(row) - row;
            const int32_t passes = (left + kPanelRows - 1) / kPanelRows;
            n = (left + passes - 1) / passes;
            float* own = sums + size_t(row - row0) * T * 16;
            const bool is_last = is_whole && b1 == a.blocks();
            with_rows<kPanelRows>(n, [&](auto rows) {
                multiply<F, rows.value>(panel, Rows(a, c, row, b0), b1 - b0, b0 > 0 ? own : nullptr,
                                        is_last ? y + row * ptrdiff_t(ldy) + tile * 16 : own, is_last ? ldy : T * 16);
            });
        }
    }
    if (!is_whole) {
        write_outputs(sums, T, row1 - row0, row0, tile, w.rows, y, ldy);
    }
}

// How many rows go over a panel: what the second-level cache holds of their codes, in whole row tiles.
inline int32_t panel_row_block(int32_t rows, int32_t cols) {
    const int32_t fitting = int32_t(kRowBytes / cols) / kTile * kTile;
    const int32_t block = fitting < 4 * kTile ? 4 * kTile : fitting;
    return rows < block ? rows : block;
}

constexpr size_t kPanelCodeBytes = size_t(kPanelTiles) * kPanelBlocks * 512;
constexpr size_t kPanelScaleBytes = size_t(kPanelTiles) * kPanelBlocks * 96 * 4;

template <Format F>
void matmul_quantised(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy,
                      void* scratch) {
    const Corrections c = correct<F, takes_unsigned<F>()>(a, scratch);
    if (a.rows <= most_streamed<F>()) {
        return matmul_stream<F>(w, a, c, tile0, tile1, y, ldy);
    }
    uint8_t* code = static_cast<uint8_t*>(scratch) + correction_bytes(a.rows, a.cols);
    auto* scale = reinterpret_cast<float*>(code + kPanelCodeBytes);
    auto* sums = reinterpret_cast<float*>(code + kPanelCodeBytes + kPanelScaleBytes);
    const int32_t row_block = panel_row_block(a.rows, a.cols);
    for (int32_t row = 0; row < a.rows; row += row_block) {
        const int32_t row_end = row + row_block < a.rows ? row + row_block : a.rows;
        int32_t tile = tile0;
        for (; tile + kPanelTiles <= tile1; tile += kPanelTiles) {
            matmul_panel<F, kPanelTiles>(w, a, c, tile, row, row_end, y, ldy, code, scale, sums);
        }
        for (; tile < tile1; ++tile) {
            matmul_panel<F, 1>(w, a, c, tile, row, row_end, y, ldy, code, scale, sums);
        }
    }
}

// Float weights
// ---------------------------------------------------------------------------------------------------------------------

constexpr int kFloatTiles = kSmallRows >= 8 ? 4 : 2;  // chains of dependent additions, with one row
constexpr int kFloatRows = kSmallRows >= 8 ? 6 : 4;   // what 32 registers hold beside a weight and as many inputs

template <Format F> inline f32x16 load_weights(const uint8_t* p) {
    if constexpr (F.codes == Codes::f32) {
        return load(reinterpret_cast<const float*>(p));
    } else if constexpr (F.codes == Codes::f16) {
        return load_f16(reinterpret_cast<const uint16_t*>(p));
    } else {
        return load_bf16(reinterpret_cast<const uint16_t*>(p));
    }
}

// acc[o] = fma(w[k][o], x[k], acc[o]) for k in order.
template <Format F, int T, int R>
void multiply_floats(const Matrix& w, const Activations& a, int32_t tile, int32_t row, float* sums) {
    f32x16 acc[R][T];
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            acc[r][t] = set1(0);
        }
    }
    const uint8_t* p = w.data + tile * F.tile_bytes(w.cols);
    const float* x = a.x + size_t(row) * a.ldx;
    for (int32_t k = 0; k < w.cols; ++k) {
        for (int t = 0; t < T; ++t) {
            const uint8_t* at = p + t * F.tile_bytes(w.cols) + size_t(k) * F.code_bytes();
            prefetch(at + 1024);
            const f32x16 weights = load_weights<F>(at);
            for (int r = 0; r < R; ++r) {
                acc[r][t] = fma(weights, set1(x[size_t(r) * a.ldx + k]), acc[r][t]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
            store(sums + 16 * (r * T + t), acc[r][t]);
        }
    }
}

template <Format F>
void matmul_floats(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy) {
    alignas(64) float sums[kFloatRows * kFloatTiles * 16];
    for (int32_t tile = tile0; tile < tile1;) {
        const bool wide = tile + kFloatTiles <= tile1;
        for (int32_t row = 0, n; row < a.rows; row += n) {
            const int32_t left = a.rows - row, passes = (left + kFloatRows - 1) / kFloatRows;
            n = (left + passes - 1) / passes;
            with_rows<kFloatRows>(n, [&](auto rows) {
                wide ? multiply_floats<F, kFloatTiles, rows.value>(w, a, tile, row, sums)
                     : multiply_floats<F, 1, rows.value>(w, a, tile, row, sums);
            });
            write_outputs(sums, wide ? kFloatTiles : 1, n, row, tile, w.rows, y, ldy);
        }
        tile += wide ? kFloatTiles : 1;
    }
}

// The table's functions
// ---------------------------------------------------------------------------------------------------------------------

inline void matmul(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy,
                   void* scratch) {
    with_format(w.type, [&](auto format) {
        constexpr Format F = kFormats[format.value];
        if constexpr (F.is_float()) {
            matmul_floats<F>(w, a, tile0, tile1, y, ldy);
        } else {
            matmul_quantised<F>(w, a, tile0, tile1, y, ldy, scratch);
        }
    });
}

inline size_t matmul_scratch_bytes(int32_t, int32_t rows, int32_t cols) {
    const size_t sums = size_t(panel_row_block(rows, cols)) * kPanelTiles * 16 * sizeof(float);
    return correction_bytes(rows, cols) + kPanelCodeBytes + kPanelScaleBytes + sums;
}

template <Format F> void unpack_block(const PackedTile<F, true>& tile, int b, int output, float* out) {
    const Block<F> block = tile.block(b);
    alignas(64) uint8_t code[8][64];
    alignas(64) float d[2][16], m[2][16];
    for (int g = 0; g < 8; ++g) {
        store_codes(code[g], block.w[g]);
    }
    for (int h = 0; h < F.subs(); ++h) {
        store(d[h], block.d[h]);
        store(m[h], F.has_min() ? block.m[h] : set1(0));
    }
    for (int k = 0; k < 32; ++k) {
        const int h = k * F.subs() / 32;
        out[k] = __builtin_fmaf(d[h][output], float(int(code[k / 4][4 * output + k % 4]) - F.offset), m[h][output]);
    }
}

inline void unpack_row(const Matrix& w, int32_t row, float* out) {
    with_format(w.type, [&](auto format) {
        constexpr Format F = kFormats[format.value];
        if constexpr (F.is_float()) {
            const uint8_t* p = w.data + row / kTile * F.tile_bytes(w.cols);
            for (int32_t k = 0; k < w.cols; ++k) {
                alignas(64) float outputs[16];
                store(outputs, load_weights<F>(p + size_t(k) * F.code_bytes()));
                out[k] = outputs[row % kTile];
            }
        } else {
            const PackedTile<F, true> tile(w, row / kTile);
            for (int b = 0; b < w.cols / kBlock; ++b) {
                unpack_block<F>(tile, b, row % kTile, out + b * kBlock);
            }
        }
    });
}

// Quantisation of activations: scale = max |x| / 127 over a block of 32, codes rounded to nearest even.
// ---------------------------------------------------------------------------------------------------------------------

#ifndef STOKER_STORE_BLOCK  // the instruction set has no better one
// Stores 32 codes from -127 to 127 as bytes; sums of each 16.
inline void store_block(int8_t* p, i32x16 low, i32x16 high, int32_t (&sums)[2]) {
    store_i8(p, low);
    store_i8(p + 16, high);
    sums[0] = reduce_add_i32(low);
    sums[1] = reduce_add_i32(high);
}
#endif

inline void quantize_block(const float* x, const Activations& out, size_t at) {
    const f32x16 low = load(x), high = load(x + 16);
    const float amax = reduce_max(max(abs(low), abs(high)));
    const f32x16 inverse = set1(amax > 1e-30f ? 127.0f / amax : 0.0f);
    // What is not a number converts to the least integer, whose sums would overflow; the scale is not a number either then.
    const i32x16 least = set1_i32(-127);
    out.scale[at] = amax * (1.0f / 127.0f);
    int32_t sums[2];
    store_block(out.q + at * kBlock, max_i32(to_i32(mul(low, inverse)), least),
                max_i32(to_i32(mul(high, inverse)), least), sums);
    out.sum[0][at] = sums[0];
    out.sum[1][at] = sums[1];
}

inline void quantize(const float* x, int32_t ldx, int32_t row0, int32_t row1, int32_t block0, int32_t block1,
                     const Activations& out) {
    for (int32_t row = row0; row < row1; ++row) {
        const float* from = x + size_t(row) * ldx;
        const size_t first = out.at(row, 0), stride = size_t(out.rows_in_tile(row));
        for (int32_t b = block0; b < block1; ++b) {
            quantize_block(from + size_t(b) * kBlock, out, first + b * stride);
        }
    }
}

}  // namespace stoker::STOKER_ISA
