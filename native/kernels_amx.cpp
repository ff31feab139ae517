// Products on AMX tiles: the same numbers as matmul.inl, up to sixteen rows at a time. Everything else is the AVX-512 table's.
//
//   A  [R rows][32 inputs]               s8   a row tile of a block, as quantised
//   B  [8 groups][16 outputs][4 inputs]  s8   a block of a weight tile, its offset taken off
//   C  [R rows][16 outputs]              s32  A x B: 8,192 products in 16 cycles
//
// C goes through memory into the registers that hold the sums, an addition and 2 float operations for each of its rows.
// These and the stores are what takes the time, and while tiles are in use the CPU runs float operations on one 512-bit unit
// instead of two. Formats with a scale for each 16 inputs would need twice as many: they stay with AVX-512.
#define STOKER_ISA amx
#include "simd_avx512.hpp"
// clang-format off: the layer comes first
#include "operands.inl"
#if defined(STOKER_SOFTWARE_TILES)
#include "software_tiles.hpp"
#endif

namespace stoker {

const Kernels& avx512_kernels();

namespace amx {

constexpr int32_t kRowsAtOnce = 128;  // a column of outputs of more rows would fight for the same sets of the caches
constexpr int32_t kRowTiles = kRowsAtOnce / kTile;
constexpr int32_t kHalfTile = 8;          // rows of the smaller one of two pipelines
constexpr size_t kWeightBytes = 1 << 20;  // of tiles that the second-level cache keeps until all rows have had them
constexpr int kRing = 8;                  // decoded pairs of blocks, if none is needed twice

inline int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }

// Bytes lie as an operand already; others are decoded first.
template <Format F> constexpr bool lies_ready() { return F.codes == Codes::byte; }

// Below, AVX-512 alone is as fast.
template <Format F> constexpr int32_t least_rows() { return lies_ready<F>() ? 7 : 9; }

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

// A row tile: q [block][rows][32], the others [block][rows].
struct RowTile {
    const int8_t* q;
    const float* scale;
    const float* sum;  // of formats with a minimum
    int32_t rows;      // that are there
};

// Weight tiles [tile0, tile1) times all row tiles.
template <Format F> struct Work {
    const Matrix& w;
    int32_t tile0, tile1;
    RowTile row_tiles[kRowTiles];
    int num_row_tiles, blocks;
    PanelTile<F> panel;

    int pairs() const { return (blocks + 1) / 2; }
    // Where the pairs of blocks of a weight tile lie in the panel, from the returned number on. One row tile needs them once.
    // More need them again, while the next weight tile is being decoded.
    int slot(int32_t tile) const { return pairs() * (num_row_tiles == 1 ? tile - tile0 : (tile - tile0) % 2); }
    int slot_mask() const { return num_row_tiles == 1 ? kRing - 1 : -1; }
    static int max_slots(int blocks) { return blocks + 1 + kRing; }
};

// Decodes what will be multiplied, two pairs of blocks ahead. While row tiles after the first one are multiplied, it waits.
template <Format F> struct Decoding {
    PackedTile<F, false> packed;
    int32_t tile;
    int pair = 0, wait = 0;

    explicit Decoding(const Work<F>& work) : packed(work.w, work.tile0), tile(work.tile0) {}

    void next(const Work<F>& work) {
        if (wait > 0) {
            --wait;
        } else if (tile < work.tile1) {
            const PanelTile<F> to = work.panel.from(2 * ((work.slot(tile) + pair) & work.slot_mask()));
            to.template put<!lies_ready<F>()>(packed.block(2 * pair));
            if (2 * pair + 1 < work.blocks) {
                to.from(1).template put<!lies_ready<F>()>(packed.block(2 * pair + 1));
            }
            __asm__ volatile("" ::: "memory");  // the intrinsics do not say that they read memory
            if (++pair == work.pairs()) {
                packed = PackedTile<F, false>(work.w, ++tile);
                pair = 0;
                wait = (work.num_row_tiles - 1) * work.pairs();
            }
        }
    }
};

// One pipeline over everything, a pair of blocks a turn: while a block is multiplied, the one before it leaves its tile and the
// one before that is added up. The loop is flat and its tiles are constants: in anything else GCC keeps `acc` in memory, or
// the instructions around the tiles' own, which are many, take longer than the work.
template <Format F, int R> STOKER_FLATTEN void multiply(const Work<F>& work, int32_t row0, float* y, int32_t ldy) {
    alignas(64) int32_t c[2][16 * R] = {};  // the first turn adds up what nobody multiplied, and forgets it
    alignas(64) float edge[16 * R];
    const int pairs = work.pairs(), mask = work.slot_mask();
    const bool is_odd = work.blocks % 2 != 0;
    Decoding<F> decoding(work);
    decoding.next(work);
    decoding.next(work);
    int32_t tile = work.tile0, last_tile = tile;
    int row_tile = 0, last_row_tile = 0;
    PanelTile<F> last = work.panel;
    const float *scale = work.row_tiles[0].scale, *sum = work.row_tiles[0].sum;  // of the pair that is added up
    f32x16 acc[R];
    STOKER_UNROLL for (int r = 0; r < R; ++r) {
        acc[r] = set1(0);
    }
    for (;;) {
        const bool is_end = tile == work.tile1;
        const int8_t* a = work.row_tiles[row_tile].q;
        const uint8_t* ready = PackedTile<F, false>(work.w, is_end ? work.tile0 : tile).code_plane;
        int slot = work.slot(tile);
        for (int pair = 0; pair < pairs; ++pair, ++slot) {
            const PanelTile<F> now = work.panel.from(2 * (slot & mask));
            const uint8_t* b = lies_ready<F>() ? ready : now.codes_at;
            const bool has_second = !is_odd || pair + 1 < pairs;
            _tile_loadd(4, a, 32);
            _tile_loadd(6, b, 64);
            _tile_zero(0);
            _tile_dpbssd(0, 4, 6);
            _tile_stored(1, c[1], 64);
            add_block<F, R>(acc, last.block(0), c[0], scale, sum);
            if (has_second) {
                _tile_loadd(5, a + R * kBlock, 32);
                _tile_loadd(7, b + 512, 64);
                _tile_zero(1);
                _tile_dpbssd(1, 5, 7);
            }
            _tile_stored(0, c[0], 64);
            if (pair > 0 || !is_odd) {
                add_block<F, R>(acc, last.block(1), c[1], scale + R, sum + (F.has_min() ? R : 0));
            }
            a += 2 * R * kBlock;
            ready += 2 * 512;
            scale += 2 * R;
            sum += F.has_min() ? 2 * R : 0;
            last = now;
            decoding.next(work);
            if (pair > 0) {
                continue;
            }
            // The row tile before this one has all its blocks now.
            if (tile > work.tile0 || row_tile > 0) {
                const int32_t rows = work.row_tiles[last_row_tile].rows, row = row0 + kTile * last_row_tile;
                const bool is_whole = rows == R && (last_tile + 1) * kTile <= work.w.rows;
                float* to = is_whole ? y + size_t(row) * ldy + last_tile * kTile : edge;
                const size_t ld = is_whole ? ldy : 16;
                STOKER_UNROLL for (int r = 0; r < R; ++r) {
                    store(to + r * ld, acc[r]);
                }
                if (!is_whole) {
                    write_outputs(edge, 1, rows, row, last_tile, work.w.rows, y, ldy);
                }
            }
            if (is_end) {
                return;
            }
            STOKER_UNROLL for (int r = 0; r < R; ++r) {
                acc[r] = set1(0);
            }
            scale = work.row_tiles[row_tile].scale;
            sum = work.row_tiles[row_tile].sum;
        }
        last_tile = tile;
        last_row_tile = row_tile;
        if (++row_tile == work.num_row_tiles) {
            row_tile = 0;
            ++tile;
        }
    }
}

// A row tile of which rows are missing, with zeros instead of them.
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
        return {q, scale, sum, have};
    }
};

// Rows whose codes the second-level cache has again for each weight tile. Up to eight at the end are left to smaller tiles.
int32_t end_of_rows(const Activations& a, int32_t row) {
    const int32_t fitting = (1 << 20) / a.cols / kTile * kTile, most = fitting < 2 * kTile ? 2 * kTile : fitting;
    const int32_t rows = min(min(most, kRowsAtOnce), a.rows - row), tail = rows % kTile;
    return row + (rows > kTile && tail <= kHalfTile ? rows - tail : rows);
}

// Scratch: corrections | padded row tile | panel: codes, then floats
template <Format F>
void matmul_tiles(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy, void* scratch) {
    const auto* sums = static_cast<const float*>(correct<F, false>(a, scratch).plane[0]);
    uint8_t* padded = static_cast<uint8_t*>(scratch) + correction_bytes(a.rows, a.cols);
    uint8_t* codes = padded + PaddedTile::bytes(a.cols);
    const PanelTile<F> panel = {codes, reinterpret_cast<float*>(codes + 2 * 512 * size_t(Work<F>::max_slots(a.blocks())))};
    const int32_t tiles = 1 + int32_t(kWeightBytes / F.tile_bytes(a.cols));
    for (int32_t tile = tile0; tile < tile1; tile += tiles) {
        for (int32_t row = 0, end; row < a.rows; row = end) {
            end = end_of_rows(a, row);
            const int32_t tile_rows = end - row <= kHalfTile ? kHalfTile : kTile;
            Work<F> work = {w, tile, min(tile + tiles, tile1), {}, 0, a.blocks(), panel};
            for (int32_t first = row; first < end; first += kTile) {
                const size_t at = a.at(first, 0);
                work.row_tiles[work.num_row_tiles++] =
                    a.rows_in_tile(first) == tile_rows
                        ? RowTile{a.q + at * kBlock, a.scale + at, sums + (sums ? at : 0), tile_rows}
                        : PaddedTile::fill(a, sums, first, tile_rows, padded);
            }
            configure(tile_rows);
            tile_rows == kTile ? multiply<F, kTile>(work, row, y, ldy) : multiply<F, kHalfTile>(work, row, y, ldy);
        }
    }
    _tile_release();
}

void matmul(const Matrix& w, const Activations& a, int32_t tile0, int32_t tile1, float* y, int32_t ldy, void* scratch) {
    with_format(w.type, [&](auto format) {
        constexpr Format F = kFormats[format.value];
        if constexpr (!F.is_float() && F.subs() == 1) {
            if (a.rows >= least_rows<F>()) {
                return matmul_tiles<F>(w, a, tile0, tile1, y, ldy, scratch);
            }
        }
        avx512_kernels().matmul(w, a, tile0, tile1, y, ldy, scratch);
    });
}

size_t matmul_scratch_bytes(int32_t type, int32_t rows, int32_t cols) {
    const size_t panel = Work<kFormats[0]>::max_slots(cols / kBlock) * 2 * (512 + 3 * 64);
    const size_t tiles = correction_bytes(rows, cols) + PaddedTile::bytes(cols) + panel;
    const size_t streams = avx512_kernels().matmul_scratch_bytes(type, rows, cols);
    return tiles > streams ? tiles : streams;
}

}  // namespace amx
}  // namespace stoker

#include "math.inl"
#include "attention.inl"
#include "attention_codes.inl"
#include "attention_amx.inl"

namespace stoker {

const Kernels& amx_kernels();
const Kernels& amx_kernels() {
    static const Kernels table = [] {
        Kernels own = avx512_kernels();
        own.name = "amx";
        own.matmul = amx::matmul;
        own.matmul_scratch_bytes = amx::matmul_scratch_bytes;
        own.attention = &amx::attention_kernels();
        return own;
    }();
    return table;
}

}  // namespace stoker
