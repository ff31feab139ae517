// The products of q16 on AMX tiles, for up to sixteen rows at a time. Included by kernels_amx.cpp only.
//
//   scores   A [rows][64 elements]    x  B [64/4 elements][16 positions][4]   -> C [rows][16 positions]   s32, one C for
//   values   A [rows][32 positions]   x  B [32/4 positions][16 elements][4]   -> C [rows][16 elements]    each of two sums
//
// A are signed codes, B the pages as they lie in memory, each with a plane of high bytes and one of low ones: 3 products of two
// tiles for the two sums, 32,768 or 16,384 operations each in 16 cycles. Heads that are no multiple of 64 are taken 32 or 16
// elements at a time. While tiles are in use the CPU runs 512-bit operations on one unit instead of two, so scores become
// weights when they are not. Nothing is fetched ahead: loads of tiles follow each other in memory, which the CPU sees itself.
namespace stoker::amx {

constexpr int32_t kTileRows = 64;       // four blocks: whole tiles for most groups of heads
constexpr int32_t kLeastTileRows = 8;   // below, dot products of bytes are as fast

// Tiles 0..3: C; 4, 5: A of `depth` bytes; 6, 7: B. Those of a second row tile are 2, 3 and 5.
inline void shape_tiles(int rows, int second_rows, int depth) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
        config.rows[tile] = uint8_t(tile >= 6 ? depth / 4 : tile == 2 || tile == 3 || tile == 5 ? second_rows : rows);
        config.row_bytes[tile] = uint16_t(tile == 4 || tile == 5 ? depth : 64);
    }
    __asm__ volatile("" ::"r"(&config) : "memory");  // the intrinsic owns up to reading 8 bytes only
    _tile_loadconfig(&config);
}

inline void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Two sums of 16 columns each += A in tiles 4, 5 x B of two columns, `next` bytes apart, in planes `plane` bytes apart, rows
// `stride` bytes apart. A sum waits for its last product, so no two in turn are for the same.
inline void add_tile_products(const uint8_t* b, size_t next, size_t plane, size_t stride) {
    _tile_loadd(6, b, stride);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 5, 6);
    _tile_loadd(7, b + next, stride);
    _tile_dpbsud(2, 4, 7);
    _tile_dpbsud(3, 5, 7);
    _tile_loadd(6, b + plane, stride);
    _tile_dpbsud(1, 4, 6);
    _tile_loadd(7, b + next + plane, stride);
    _tile_dpbsud(3, 4, 7);
}

inline void load_codes_of(const CodeRows& rows, int32_t at) {
    _tile_loadd(4, rows.high + at, rows.stride);
    _tile_loadd(5, rows.low + at, rows.stride);
}

// What the sums are too large by, because bytes of pages are by 128.
inline int32_t excess(const CodeRows& rows, int32_t r) {
    return int32_t(128u * (257u * uint32_t(rows.sum_high[r]) + uint32_t(rows.sum_low[r])));
}

inline i32x16 joined(const int32_t* high, const int32_t* middle, i32x16 excess) {
    return sub_i32(add_i32(shl_i32<8>(load_i32(high)), load_i32(middle)), excess);
}

inline void store_sums(int32_t (&sums)[4][256]) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    __asm__ volatile("" ::: "memory");
}

// What turns sums of products into scores, by row.
struct RowScores {
    alignas(64) float highest[kScoredRows][16];  // so far, by lanes
    int32_t too_large[kScoredRows];
    Seen common = {0, kSpanTokens};  // what all rows see

    explicit RowScores(const SpanRows& b) {
        for (int32_t r = 0; r < b.rows; ++r) {
            store(highest[r], set1(kUnseen));
            too_large[r] = excess(b.scratch.queries, r);
            common.from = b.seen[r].from > common.from ? b.seen[r].from : common.from;
            common.to = b.seen[r].to < common.to ? b.seen[r].to : common.to;
        }
    }
};

// The sums of a page become scores. `is_plain`: without a soft cap or slopes, and all rows see all of it.
template <bool is_plain>
inline void score_page(const SpanRows& b, int32_t page, const int32_t (&sums)[4][256], RowScores& rows) {
    const int32_t t = page * kPageTokens, num_rows = b.rows;
    const SpanScratch s = b.scratch;  // a copy: what a reference leads to would be read again after every store
    const f32x16 scale0 = load(s.key_scales + t), scale1 = load(s.key_scales + t + 16);
    const f32x16 exponent0 = load(s.value_exponents + t), exponent1 = load(s.value_exponents + t + 16);
    float* to = s.scores(0) + t;
    for (int32_t r = 0; r < num_rows; ++r, to += kScoreStride) {
        const i32x16 too_large = set1_i32(rows.too_large[r]);
        const f32x16 scale = set1(s.query_scales[r]);
        const i32x16 sum0 = joined(sums[0] + 16 * r, sums[1] + 16 * r, too_large);
        const i32x16 sum1 = joined(sums[2] + 16 * r, sums[3] + 16 * r, too_large);
        f32x16 x0, x1;
        if constexpr (is_plain) {
            x0 = fma(to_f32(sum0), mul(scale0, scale), exponent0);
            x1 = fma(to_f32(sum1), mul(scale1, scale), exponent1);
        } else {
            x0 = score(b, r, t, sum0);
            x1 = score(b, r, t + 16, sum1);
        }
        store(to, x0);
        store(to + 16, x1);
        store(rows.highest[r], max(x1, max(x0, load(rows.highest[r]))));
    }
}

inline void score_page(const SpanRows& b, int32_t page, const int32_t (&sums)[4][256], RowScores& rows) {
    const bool sees_all = rows.common.from <= page * kPageTokens && rows.common.to >= (page + 1) * kPageTokens;
    b.a.softcap == 0 && b.a.slopes == nullptr && sees_all ? score_page<true>(b, page, sums, rows) : score_page<false>(b, page, sums, rows);
}

// While a page is multiplied, the one before it becomes scores.
STOKER_FLATTEN void score_tiles(const SpanRows& b, RowScores& rows) {
    const int32_t n = b.a.kv.head_size, depth = n % 64 == 0 ? 64 : n % 32 == 0 ? 32 : 16;
    const CodeRows& queries = b.scratch.queries;
    alignas(64) int32_t sums[2][4][256];
    shape_tiles(b.rows, b.rows, depth);
    __asm__ volatile("" ::: "memory");  // the intrinsics do not say that they read and write memory
    load_codes_of(queries, 0);
    for (int32_t page = b.first_page; page < b.end_page; ++page) {
        const uint8_t* keys = b.keys(page);
        clear_sums();
        for (int32_t d = 0; d < n; d += depth) {
            if (n > depth) {
                load_codes_of(queries, d);
            }
            add_tile_products(keys + d * 2 * kPageTokens, 64, 4 * kPageTokens, 8 * kPageTokens);
        }
        if (page > b.first_page) {
            score_page(b, page - 1, sums[(page - 1) & 1], rows);
        }
        store_sums(sums[page & 1]);
    }
    _tile_release();
    if (b.first_page < b.end_page) {
        score_page(b, b.end_page - 1, sums[(b.end_page - 1) & 1], rows);
    }
}

// Sixteen elements of the heads of some rows.
inline void write_sums(const CodeRows& weights, int32_t rows, const int32_t (*sums)[256], float* to, int32_t stride) {
    for (int32_t r = 0; r < rows; ++r) {
        const i32x16 sum = joined(sums[0] + 16 * r, sums[1] + 16 * r, set1_i32(excess(weights, r)));
        store(to + r * stride, mul(to_f32(sum), set1(256)));
    }
}

STOKER_FLATTEN void weigh_tiles(const SpanRows& b, float* partials) {
    const int32_t n = b.a.kv.head_size;
    const CodeRows& weights = b.scratch.weights;
    alignas(64) int32_t sums[4][256];
    shape_tiles(b.rows, b.rows, kPageTokens);
    __asm__ volatile("" ::: "memory");
    for (int32_t d = 0; d < n; d += 32) {
        const bool is_pair = d + 32 <= n;
        clear_sums();
        for (int32_t page = b.first_page; page < b.end_page; ++page) {
            load_codes_of(weights, page * kPageTokens);
            add_tile_products(b.values(page) + d * 2 * kPageTokens, is_pair ? 32 * kPageTokens : 0, 64, 128);
        }
        store_sums(sums);
        for (int32_t i = 0; i <= is_pair; ++i) {
            write_sums(weights, b.rows, sums + 2 * i, partials + d + 16 * i, partial_floats(n));
        }
    }
    _tile_release();
}

// Two row tiles share each line of values: it comes from the second-level cache, which takes longer than the products.
STOKER_FLATTEN void weigh_two_tiles(const SpanRows& b, float* partials) {
    const int32_t n = b.a.kv.head_size, stride = partial_floats(n);
    const CodeRows first = b.scratch.weights, second = first.from(kScoredRows);
    alignas(64) int32_t sums[4][256];
    shape_tiles(kScoredRows, b.rows - kScoredRows, kPageTokens);
    __asm__ volatile("" ::: "memory");
    for (int32_t d = 0; d < n; d += 16) {
        clear_sums();
        for (int32_t page = b.first_page; page < b.end_page; ++page) {
            const uint8_t* values = b.values(page) + d * 2 * kPageTokens;
            const int32_t at = page * kPageTokens;
            _tile_loadd(6, values, 128);
            _tile_loadd(4, first.high + at, kCodeStride);
            _tile_dpbsud(0, 4, 6);
            _tile_loadd(5, second.high + at, kCodeStride);
            _tile_dpbsud(2, 5, 6);
            _tile_loadd(7, values + 64, 128);
            _tile_dpbsud(1, 4, 7);
            _tile_dpbsud(3, 5, 7);
            _tile_loadd(4, first.low + at, kCodeStride);
            _tile_dpbsud(1, 4, 6);
            _tile_loadd(5, second.low + at, kCodeStride);
            _tile_dpbsud(3, 5, 6);
        }
        store_sums(sums);
        write_sums(first, kScoredRows, sums, partials + d, stride);
        write_sums(second, b.rows - kScoredRows, sums + 2, partials + kScoredRows * stride + d, stride);
    }
    _tile_release();
}

inline void attend_tiles(const SpanRows& b, float* partials) {
    const int32_t n = b.a.kv.head_size;
    copy_scales(b);
    for (int32_t part = 0; part * kScoredRows < b.rows; ++part) {
        const SpanRows scored = b.scored(part);
        take_queries<KvType::q16>(scored);
        RowScores row_scores(scored);
        score_tiles(scored, row_scores);
        for (int32_t r = 0; r < scored.rows; ++r) {
            float* partial = partials + (part * kScoredRows + r) * partial_floats(n);
            soften_row<KvType::q16>(scored, r, reduce_max(load(row_scores.highest[r])), partial + n);
        }
    }
    b.rows > kScoredRows ? weigh_two_tiles(b, partials) : weigh_tiles(b, partials);
}

inline int32_t attend(const AttentionRows& a, int32_t span, float* partials, float* scratch) {
    if (a.kv.type != KvType::q16 || a.rows() < kLeastTileRows) {
        return avx512_kernels().attention->attend(a, span, partials, scratch);
    }
    attend_blocks(a, span, partials, scratch, kMostRows, attend_tiles);
    return 0;
}

inline int32_t rows_at_once(KvType type) {
    return type == KvType::q16 ? kTileRows : avx512_kernels().attention->rows_at_once(type);
}

// Only for who has asked the CPU: nothing of this instruction set may run before, not even to fill a table.
inline const AttentionKernels& attention_kernels() {
    static const AttentionKernels table = [] {
        AttentionKernels own = *avx512_kernels().attention;
        own.rows_at_once = rows_at_once;
        own.attend = attend;
        return own;
    }();
    return table;
}

}  // namespace stoker::amx
