// Products on AMX tiles: the same numbers as matmul.inl, sixteen rows at a time. Everything else is the AVX-512 table's.
//
//   A  [16 rows][32 inputs]              s8   a row tile of a block, as quantised
//   B  [8 groups][16 outputs][4 inputs]  s8   a block of a decoded panel, its offset taken off
//   C  [16 rows][16 outputs]             s32  A x B: 8,192 products in 16 cycles
//
// C goes through memory into the registers that hold the sums, an addition and 2 float operations for each of its rows.
// These, the loads and the stores are what takes the time, and while tiles are in use the CPU runs them on one 512-bit unit
// instead of two. Formats with a scale for each 16 inputs would need twice as many: they stay with AVX-512.
#define STOKER_ISA amx
#include "simd_avx512.hpp"
// clang-format off: the layer comes first
#include "operands.inl"

namespace stoker {

extern const Kernels avx512_kernels;

namespace amx {

constexpr int kPanelBlocks = 32;
constexpr int kTilesAtOnce = 8;       // they share the rows' codes of a panel's blocks while the second-level cache has them
constexpr int32_t kRowsAtOnce = 128;  // a column of outputs of more rows would fight for the same sets of the caches
constexpr int32_t kLeastRows = 12;    // below, AVX-512 alone is as fast: its second 512-bit unit rests while tiles are in use

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0..3: C; 4, 5: A; 6, 7: B.
void configure(int rows) {
    TileConfig config;
    const auto shape = [&](int tile, int num_rows, int bytes) {
        config.rows[tile] = uint8_t(num_rows);
        config.row_bytes[tile] = uint16_t(bytes);
    };
    for (int tile = 0; tile < 4; ++tile) {
        shape(tile, rows, 64);
    }
    for (int pair = 0; pair < 2; ++pair) {
        shape(4 + pair, rows, kBlock);
        shape(6 + pair, kBlock / 4, 64);
    }
    __asm__ volatile("" ::"r"(&config) : "memory");  // the intrinsic owns up to reading 8 bytes only
    _tile_loadconfig(&config);
}

// A row tile: q [block][rows][32], the others [block][rows]. `rows` are those of the configured tiles.
struct RowTile {
    int rows;
    const int8_t* q;
    const float* scale;
    const float* sum;  // of formats with a minimum
};

// Loads the operands and multiplies them into tile C of number i: one of four, so that a product has time to end.
inline void multiply_tiles(int i, const int8_t* a, const uint8_t* b) {
#define STOKER_PRODUCT(i, ta, tb) \
    _tile_loadd(ta, a, 32);       \
    _tile_loadd(tb, b, 64);       \
    _tile_zero(i);                \
    _tile_dpbssd(i, ta, tb);      \
    break
    switch (i) {
        case 0: STOKER_PRODUCT(0, 4, 6);
        case 1: STOKER_PRODUCT(1, 5, 7);
        case 2: STOKER_PRODUCT(2, 4, 6);
        default: STOKER_PRODUCT(3, 5, 7);
    }
#undef STOKER_PRODUCT
}

inline void store_tile(int i, int32_t* c) {
    switch (i) {
        case 0: _tile_stored(0, c, 64); break;
        case 1: _tile_stored(1, c, 64); break;
        case 2: _tile_stored(2, c, 64); break;
        default: _tile_stored(3, c, 64);
    }
}

// acc[r] += a block, whose products lie at `product` and whose rows' scales and sums at `scale` and `sum`.
template <Format F, int R>
inline void add_block(f32x16 (&acc)[R], const PanelBlock<F> block, const int32_t* product, const float* scale,
                      const float* sum) {
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        const f32x16 c = as_f32(add_i32(load_i32(product + 16 * r), set1_i32(kMagicBits)));
        const f32x16 x = fma(c, block.scale(0), block.minus_magic(0));
        acc[r] = fma(x, set1(scale[r]), acc[r]);
        if constexpr (F.has_min()) {
            acc[r] = fma(block.minimum(0), set1(sum[r]), acc[r]);
        }
    }
}

// Where a row tile's sums come from and go to: 16 floats of each row, `ld` floats apart; the next row tile's lie behind.
struct Sums {
    const float* from;  // [row][16]; nullptr: they begin with 0
    float* to;
    size_t ld;
};

template <int R> inline void load_sums(f32x16 (&acc)[R], const Sums& sums) {
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        acc[r] = sums.from ? load(sums.from + r * 16) : set1(0);
    }
}

// A run of `blocks` blocks of a weight tile, from `first` on, and the panel that they are decoded to.
template <Format F> struct Run {
    const PackedTile<F, false>& packed;
    int first;
    PanelTile<F> panel;
    int blocks;
};

// sums += the products of the first R rows of each of `tiles` row tiles, `stride` rows of blocks apart, with a run of blocks,
// `decoded` of which lie in the panel already.
// One pipeline over all of them: while a block is multiplied, the third one behind it is decoded, the third one before it
// leaves its tile and the fifth is added up. One flat loop: in anything more involved GCC keeps `acc` in memory.
template <Format F, int R>
STOKER_FLATTEN void multiply(const RowTile& tile, int tiles, size_t stride, const Run<F>& run, int decoded, Sums sums) {
    constexpr int decode_lead = 3, store_lag = 3, add_lag = 5;
    alignas(64) int32_t c[8][256];
    const PanelTile<F> panel = run.panel;
    const int blocks = run.blocks, total = tiles * blocks;
    const size_t step = tile.rows, to_next = stride - size_t(blocks) * step;
    const int8_t* q = tile.q;
    const float *scale = tile.scale, *sum = tile.sum;
    int multiplied = 0, added = 0;  // blocks of the row tile there
    f32x16 acc[R];
    load_sums(acc, sums);
    __asm__ volatile("" ::: "memory");  // the intrinsics do not say that they read memory
    for (int n = 0; n < total + add_lag; ++n) {
        for (; decoded < blocks && decoded <= n + decode_lead; ++decoded) {
            panel.from(decoded).fill(run.packed, run.first + decoded, run.first + decoded + 1);
            __asm__ volatile("" ::: "memory");
        }
        if (n < total) {
            multiply_tiles(n % 4, q, panel.codes_at + 512 * multiplied);
            q += step * kBlock;
            if (++multiplied == blocks) {
                multiplied = 0;
                q += to_next * kBlock;
            }
        }
        if (n >= store_lag && n < total + store_lag) {
            store_tile((n - store_lag) % 4, c[(n - store_lag) % 8]);
        }
        if (n < add_lag) {
            continue;
        }
        add_block<F, R>(acc, panel.block(added), c[(n - add_lag) % 8], scale, sum);
        scale += step;
        sum += F.has_min() ? step : 0;
        if (++added == blocks) {
            STOKER_UNROLL for (int r = 0; r < R; ++r) {
                store(sums.to + r * sums.ld, acc[r]);
            }
            sums.from += sums.from ? 256 : 0;
            sums.to += 16 * sums.ld;
            if (n + 1 < total + add_lag) {
                load_sums(acc, sums);
            }
            added = 0;
            scale += to_next;
            sum += F.has_min() ? to_next : 0;
        }
    }
}

// The last row tile, if rows are missing in it, with rows of zeros up to `rows`.
struct PaddedTile {
    static size_t bytes(int32_t cols) { return size_t(cols) * 16 + 2 * 64 * size_t(cols / kBlock); }

    static RowTile fill(const Activations& a, const float* sums, int32_t first, int rows, uint8_t* memory) {
        const int have = a.rows - first, blocks = a.blocks();
        auto* q = reinterpret_cast<int8_t*>(memory);
        auto* scale = reinterpret_cast<float*>(memory + size_t(blocks) * rows * kBlock);
        float* sum = scale + blocks * rows;
        for (int b = 0; b < blocks; ++b) {
            for (int r = 0; r < rows; ++r) {
                const size_t to = size_t(b) * rows + r, from = a.at(first, b) + r;
                const __m256i codes = r < have ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.q + from * kBlock))
                                               : _mm256_setzero_si256();
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + to * kBlock), codes);
                scale[to] = r < have ? a.scale[from] : 0;
                sum[to] = r < have && sums != nullptr ? sums[from] : 0;
            }
        }
        return {rows, q, scale, sum};
    }
};

// `blocks` blocks of a row tile (or whole row tiles before it) further on.
RowTile behind(const RowTile& tile, size_t blocks) {
    const size_t at = blocks * tile.rows;
    return {tile.rows, tile.q + at * kBlock, tile.scale + at, tile.sum + (tile.sum ? at : 0)};
}

template <Format F>
void multiply_rows(int rows, const RowTile& tile, const Run<F>& run, int decoded, const Sums& sums) {
    const size_t stride = size_t(run.blocks) * tile.rows;
    switch (rows) {
        case 4: return multiply<F, 4>(tile, 1, stride, run, decoded, sums);
        case 8: return multiply<F, 8>(tile, 1, stride, run, decoded, sums);
        case 12: return multiply<F, 12>(tile, 1, stride, run, decoded, sums);
        default: return multiply<F, 16>(tile, 1, stride, run, decoded, sums);
    }
}

// Scratch: corrections | padded row tile | codes of a panel | its scales | sums [kTilesAtOnce][kRowsAtOnce + 16][16]
constexpr size_t kTileSums = (size_t(kRowsAtOnce) + 16) * 16;

size_t scratch_bytes(int32_t rows, int32_t cols) {
    return correction_bytes(rows, cols) + PaddedTile::bytes(cols) + kPanelBlocks * (512 + 4 * 96) +
           kTilesAtOnce * kTileSums * sizeof(float);
}

// The row tiles [row0, row0 + whole) and behind them `last_rows` rows of `last`.
struct RowBlock {
    int32_t row0, whole, end;
    int last_rows;
    RowTile first, last;
};

// Sums of several panels lie in scratch; the last panel's go to y, where a row tile and a weight tile are whole.
template <Format F>
void matmul_rows(const Matrix& w, int32_t blocks, const RowBlock& rows, int32_t tile0, int32_t tile1, float* y, int32_t ldy,
                 const PanelTile<F>& panel, float* all_sums) {
    for (int32_t first = tile0; first < tile1; first += kTilesAtOnce) {
        const int32_t end = first + kTilesAtOnce < tile1 ? first + kTilesAtOnce : tile1;
        for (int b0 = 0; b0 < blocks; b0 += kPanelBlocks) {
            const int count = b0 + kPanelBlocks < blocks ? kPanelBlocks : blocks - b0;
            for (int32_t tile = first; tile < end; ++tile) {
                float* sums = all_sums + (tile - first) * kTileSums;
                float* last_sums = sums + rows.whole * 16;
                const PackedTile<F, false> packed(w, tile);
                const bool is_last = b0 + count == blocks, is_whole = (tile + 1) * kTile <= w.rows;
                const Run<F> run = {packed, b0, panel, count};
                if (rows.whole) {
                    float* result = y + size_t(rows.row0) * ldy + tile * kTile;
                    const Sums to = is_last && is_whole ? Sums{b0 ? sums : nullptr, result, size_t(ldy)}
                                                        : Sums{b0 ? sums : nullptr, sums, 16};
                    multiply<F, 16>(behind(rows.first, b0), rows.whole / 16, size_t(16) * blocks, run, 0, to);
                }
                if (rows.last_rows) {
                    multiply_rows<F>(rows.last_rows, behind(rows.last, b0), run, rows.whole ? count : 0,
                                     {b0 ? last_sums : nullptr, last_sums, 16});
                }
                if (is_last) {
                    const int32_t done = is_whole ? rows.whole : 0;
                    write_outputs(sums + done * 16, 1, rows.end - rows.row0 - done, rows.row0 + done, tile, w.rows, y, ldy);
                }
            }
        }
    }
}

template <Format F>
void matmul_tiles(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy, void* scratch) {
    const auto* row_sums = static_cast<const float*>(correct<F, false>(a, scratch).plane[0]);
    uint8_t* padded = static_cast<uint8_t*>(scratch) + correction_bytes(a.rows, a.cols);
    uint8_t* code = padded + PaddedTile::bytes(a.cols);
    auto* scale = reinterpret_cast<float*>(code + kPanelBlocks * 512);
    float* sums = scale + kPanelBlocks * 96;
    const int32_t whole = a.rows / 16 * 16;
    const int last_rows = (a.rows - whole + 3) / 4 * 4, tile_rows = whole ? 16 : last_rows;
    const RowTile last = last_rows ? PaddedTile::fill(a, row_sums, whole, tile_rows, padded) : RowTile{};
    const RowTile all = {16, a.q, a.scale, row_sums};
    configure(tile_rows);
    for (int32_t row = 0, end; row < a.rows; row = end) {
        end = row + kRowsAtOnce < a.rows ? row + kRowsAtOnce : a.rows;
        const int32_t whole_here = (end < whole ? end : whole) - row;
        const RowTile first = behind(all, size_t(row / 16) * a.blocks());
        const RowBlock rows = {row, whole_here, end, end > whole ? last_rows : 0, first, last};
        matmul_rows<F>(w, a.blocks(), rows, tile0, tile1, y, ldy, {code, scale}, sums);
    }
    _tile_release();
}

void matmul(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy, void* scratch) {
    with_format(w.type, [&](auto format) {
        constexpr Format F = kFormats[format.value];
        if constexpr (!F.is_float() && F.subs() == 1) {
            if (a.rows >= kLeastRows) {
                return matmul_tiles<F>(w, a, tile0, tile1, y, ldy, scratch);
            }
        }
        avx512_kernels.matmul(w, a, tile0, tile1, y, ldy, scratch);
    });
}

size_t matmul_scratch_bytes(int32_t type, int32_t rows, int32_t cols) {
    const size_t tiles = scratch_bytes(rows, cols), streams = avx512_kernels.matmul_scratch_bytes(type, rows, cols);
    return tiles > streams ? tiles : streams;
}

}  // namespace amx

extern const Kernels amx_kernels;
const Kernels amx_kernels = [] {
    Kernels table = avx512_kernels;
    table.name = "amx";
    table.matmul = amx::matmul;
    table.matmul_scratch_bytes = amx::matmul_scratch_bytes;
    return table;
}();

}  // namespace stoker
