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
constexpr int kTilesAtOnce = 8;     // they share the rows' codes of a panel's blocks while the second-level cache has them
constexpr int32_t kLeastRows = 32;  // below, AVX-512 alone is as fast: its second 512-bit unit rests while tiles are in use

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

// Loads the operands and multiplies them into tile C of number i. One of four, so that a product has time to end.
template <int i> inline void multiply_tiles(const int8_t* a, const uint8_t* b) {
#define STOKER_PRODUCT(i, ta, tb)  \
    _tile_loadd(ta, a, 32);        \
    _tile_loadd(tb, b, 64);        \
    _tile_zero(i);                 \
    _tile_dpbssd(i, ta, tb)
    if constexpr (i == 0) {
        STOKER_PRODUCT(0, 4, 6);
    } else if constexpr (i == 1) {
        STOKER_PRODUCT(1, 5, 7);
    } else if constexpr (i == 2) {
        STOKER_PRODUCT(2, 4, 6);
    } else {
        STOKER_PRODUCT(3, 5, 7);
    }
#undef STOKER_PRODUCT
}

template <int i> inline void store_tile(int32_t* c) {
    if constexpr (i == 0) {
        _tile_stored(0, c, 64);
    } else if constexpr (i == 1) {
        _tile_stored(1, c, 64);
    } else if constexpr (i == 2) {
        _tile_stored(2, c, 64);
    } else {
        _tile_stored(3, c, 64);
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

// sums [tiles][16][16] += the products of the first R rows of each of `tiles` row tiles, `stride` rows of blocks apart, with
// `blocks` blocks of a panel. Fresh: sums are not read.
// One pipeline over all of them: while a block is multiplied, the third one before it leaves its tile and the fifth is added up.
template <Format F, int R>
STOKER_FLATTEN void multiply(RowTile tile, const int tiles, const size_t stride, const PanelTile<F> panel, const int blocks,
                             const bool fresh, float* sums) {
    constexpr int store_lag = 3, add_lag = 5;
    alignas(64) int32_t c[8][256];
    f32x16 acc[R];
    const int total = tiles * blocks;
    const size_t to_next = stride - size_t(blocks) * tile.rows;
    int multiplied = 0, added = 0;  // blocks of the row tile there
    const auto multiply_next = [&](auto i) {
        multiply_tiles<i.value>(tile.q, panel.codes_at + 512 * multiplied);
        tile.q += tile.rows * kBlock;
        if (++multiplied == blocks) {
            multiplied = 0;
            tile.q += to_next * kBlock;
        }
    };
    const auto add_next = [&](const int32_t* product) {
        for (int r = 0; added == 0 && r < R; ++r) {
            acc[r] = fresh ? set1(0) : load(sums + 16 * r);
        }
        add_block<F, R>(acc, panel.block(added), product, tile.scale, tile.sum);
        tile.scale += tile.rows;
        tile.sum += F.has_min() ? tile.rows : 0;
        if (++added == blocks) {
            for (int r = 0; r < R; ++r) {
                store(sums + 16 * r, acc[r]);
            }
            added = 0;
            sums += 256;
            tile.scale += to_next;
            tile.sum += F.has_min() ? to_next : 0;
        }
    };
    __asm__ volatile("" ::: "memory");  // the intrinsics do not say that they read memory
    int n = 0;
    const auto step = [&](auto i, bool may_multiply, bool may_store, bool may_add) {
        const int at = n + i.value;
        if (may_multiply) {
            multiply_next(i);
        }
        if (may_store) {
            store_tile<(i.value + 4 - store_lag) % 4>(c[(at - store_lag) % 8]);
        }
        if (may_add) {
            add_next(c[(at - add_lag) % 8]);
        }
    };
    const auto edge = [&] {
        unroll<4>([&](auto i) {
            const int at = n + i.value, stored = at - store_lag, summed = at - add_lag;
            step(i, at < total, stored >= 0 && stored < total, summed >= 0 && summed < total);
        });
    };
    for (; n < 8; n += 4) {
        edge();
    }
    for (; n + 4 <= total; n += 4) {
        unroll<4>([&](auto i) { step(i, true, true, true); });
    }
    for (; n < total + add_lag; n += 4) {
        edge();
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
                for (int i = 0; i < kBlock; ++i) {
                    q[to * kBlock + i] = r < have ? a.q[from * kBlock + i] : 0;
                }
                scale[to] = r < have ? a.scale[from] : 0;
                sum[to] = r < have && sums != nullptr ? sums[from] : 0;
            }
        }
        return {rows, q, scale, sum};
    }
};

RowTile from_block(const RowTile& tile, int block) {
    const size_t at = size_t(block) * tile.rows;
    return {tile.rows, tile.q + at * kBlock, tile.scale + at, tile.sum + (tile.sum ? at : 0)};
}

template <Format F>
void multiply_rows(int rows, const RowTile& tile, const PanelTile<F>& panel, int blocks, bool fresh, float* sums) {
    const size_t stride = size_t(blocks) * tile.rows;
    switch (rows) {
        case 4: return multiply<F, 4>(tile, 1, stride, panel, blocks, fresh, sums);
        case 8: return multiply<F, 8>(tile, 1, stride, panel, blocks, fresh, sums);
        case 12: return multiply<F, 12>(tile, 1, stride, panel, blocks, fresh, sums);
        default: return multiply<F, 16>(tile, 1, stride, panel, blocks, fresh, sums);
    }
}

// Scratch: corrections | padded row tile | codes of a panel | its scales | sums [kTilesAtOnce][rows, padded][16]
size_t scratch_bytes(int32_t, int32_t rows, int32_t cols) {
    return correction_bytes(rows, cols) + PaddedTile::bytes(cols) + kPanelBlocks * (512 + 4 * 96) +
           kTilesAtOnce * (size_t(rows) + 16) * 64;
}

template <Format F>
void matmul_tiles(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy, void* scratch) {
    const auto* row_sums = static_cast<const float*>(correct<F, false>(a, scratch).plane[0]);
    uint8_t* padded = static_cast<uint8_t*>(scratch) + correction_bytes(a.rows, a.cols);
    uint8_t* code = padded + PaddedTile::bytes(a.cols);
    auto* scale = reinterpret_cast<float*>(code + kPanelBlocks * 512);
    auto* sums = scale + kPanelBlocks * 96;
    const int32_t whole = a.rows / 16 * 16;
    const int last_rows = (a.rows - whole + 3) / 4 * 4;
    const int tile_rows = whole ? 16 : last_rows;
    const RowTile last = last_rows ? PaddedTile::fill(a, row_sums, whole, tile_rows, padded) : RowTile{};
    const RowTile all = {16, a.q, a.scale, row_sums};  // the first one; the others follow
    configure(tile_rows);
    const size_t tile_sums = (size_t(a.rows) + 16) * 16;
    const PanelTile<F> panel = {code, scale};
    for (int32_t first = tile0; first < tile1; first += kTilesAtOnce) {
        const int32_t end = first + kTilesAtOnce < tile1 ? first + kTilesAtOnce : tile1;
        for (int b0 = 0; b0 < a.blocks(); b0 += kPanelBlocks) {
            const int blocks = b0 + kPanelBlocks < a.blocks() ? kPanelBlocks : a.blocks() - b0;
            for (int32_t tile = first; tile < end; ++tile) {
                float* to = sums + (tile - first) * tile_sums;
                panel.fill(PackedTile<F, false>(w, tile), b0, b0 + blocks);
                if (whole) {
                    multiply<F, 16>(from_block(all, b0), whole / 16, size_t(16) * a.blocks(), panel,
                                    blocks, b0 == 0, to);
                }
                if (last_rows) {
                    multiply_rows<F>(last_rows, from_block(last, b0), panel, blocks, b0 == 0, to + whole * 16);
                }
            }
        }
        for (int32_t tile = first; tile < end; ++tile) {
            write_outputs(sums + (tile - first) * tile_sums, 1, a.rows, 0, tile, w.rows, y, ldy);
        }
    }
}

void matmul(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy, void* scratch) {
    with_format(w.type, [&](auto format) {
        constexpr Format F = kFormats[format.value];
        if constexpr (!F.is_float() && F.subs() == 1) {
            if (a.rows >= kLeastRows) {
                matmul_tiles<F>(w, a, tile0, tile1, y, ldy, scratch);
                _tile_release();
                return;
            }
        }
        avx512_kernels.matmul(w, a, tile0, tile1, y, ldy, scratch);
    });
}

size_t matmul_scratch_bytes(int32_t type, int32_t rows, int32_t cols) {
    const size_t tiles = scratch_bytes(type, rows, cols), streams = avx512_kernels.matmul_scratch_bytes(type, rows, cols);
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
