// Attention of a few rows to one span of positions in whole codes of 16 bits, two products at a time: for CPUs that multiply
// pairs of them as fast as fours of bytes. Included once per instruction set, after attention_q16.inl.
//
//   codes of queries [row][head_size]   x keys   -> scores  [row][512]         in 32 bits; lanes are positions
//   codes of weights [row][512]         x values -> sum     [row][head_size]   lanes are elements of the head; in 32 bits over
//                                                                              8 positions, in floats over those
//
// 2 x 2 x head_size operations for each row and position, two at a time where q16 needs three for four. No sum of 32 bits
// overflows: a query's and a key's codes are shorter than 2^15.5 as vectors, so by Cauchy and Schwarz no part of their product
// exceeds 2^31; nor do 8 products of weights below 2^15 and values below 2^13. What a row does not see has weight 0, and adds 0.
namespace stoker::STOKER_ISA {

constexpr int32_t kPairRows = kSmallRows >= 8 ? 12 : 6;  // by the number of registers
constexpr int32_t kWeighedRows = kPairRows / 2;          // that share a vector of values: their sums take two registers
constexpr int32_t kFlushed = 8;                          // positions whose products are summed up in 32 bits
static_assert(int64_t(kMostLength + 12) * (kMostLength + 12) <= INT32_MAX);  // rounding makes 512 codes longer by 11.3
static_assert(int64_t(kFlushed) * kMostWhole * kMostValue <= INT32_MAX);

inline quad pair_at(const int16_t* codes) { return broadcast4(reinterpret_cast<const int8_t*>(codes)); }

// The keys of a page, and the way of its values to the cache.
template <int R, int V> STOKER_FLATTEN void score_pairs(const SpanRows& b, int32_t page, const Fetch fetch) {
    const int32_t n = b.a.kv.head_size;
    const uint8_t* keys = b.keys(page);
    const int16_t* queries = b.scratch.queries.whole(0);
    constexpr int32_t stride = CodeRows::stride;
    for (int32_t lane = 0; lane < kPageTokens; lane += 16 * V) {
        i32x16 sums[R][V] = {};
        for (int32_t d = 0; d < n; d += 2) {
            fetch.steps<KvType::i16>(d, lane == 0 ? d + 2 : d);
            codes key[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
                key[v] = load_codes(keys + d * 2 * kPageTokens + (lane + 16 * v) * 4);
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const quad query = pair_at(queries + r * stride + d);
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) {
                    sums[r][v] = dot_whole(sums[r][v], key[v], query);
                }
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
                store_i32(reinterpret_cast<int32_t*>(b.scratch.scores(r)) + page * kPageTokens + lane + 16 * v, sums[r][v]);
            }
        }
    }
}

// V x 16 elements of the head from d on: sums over the positions of all pages.
template <int R, int V> STOKER_FLATTEN void weigh_pairs(const SpanRows& b, int32_t row, int32_t d, float* partials) {
    const int16_t* weights = b.scratch.weights.whole(row);
    const AttentionAhead ahead = b.is_last() ? b.a.ahead : AttentionAhead{};
    f32x16 sums[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            sums[r][v] = set1(0);
        }
    }
    for (int32_t page = b.first_page; page < b.end_page; ++page) {
        const uint8_t* values = b.values(page);
        const int32_t i = page - b.first_page;
        const Fetch fetch(b.a.kv, i < ahead.count ? ahead.memory + ahead.pages[i] * b.a.kv.page_bytes : values, true);
        for (int32_t t = 0; t < kPageTokens; t += kFlushed) {
            fetch.steps<KvType::i16>(d + V * t / 2, d + V * (t + kFlushed) / 2);
            const int16_t* weight = weights + page * kPageTokens + t;
            i32x16 part[R][V] = {};
#pragma GCC unroll 4
            for (int j = 0; j < kFlushed / 2; ++j) {
                codes value[V];
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    value[v] = load_codes(values + (d + 16 * v) * 2 * kPageTokens + (t / 2 + j) * 64);
                }
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const quad pair = pair_at(weight + r * kCodeStride + 2 * j);
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) {
                        part[r][v] = dot_whole(part[r][v], value[v], pair);
                    }
                }
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    sums[r][v] = add(sums[r][v], to_f32(part[r][v]));
                }
            }
        }
    }
    const int32_t stride = partial_floats(b.a.kv.head_size);
    float* to = partials + row * stride + d;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            store(to + r * stride + 16 * v, sums[r][v]);
        }
    }
}

// Products for blocks of rows.
struct Pairs {
    static constexpr KvType type = KvType::i16;
    static constexpr int rows = kPairRows;

    template <int R> static void score(const SpanRows& b, int32_t page, const Fetch& fetch) {
        score_pairs<R, kDotVectors>(b, page, fetch);
    }
    static void soften(const SpanRows& b, int32_t r, float highest, float* partial) { soften_row<type>(b, r, highest, partial); }
    template <int R> static void weigh(const SpanRows& b, float* partials) {
        if constexpr (R > kWeighedRows) {
            weigh_rows<R - kWeighedRows>(b, kWeighedRows, partials);
        }
        weigh_rows<R < kWeighedRows ? R : kWeighedRows>(b, 0, partials);
    }

private:
    template <int R> static void weigh_rows(const SpanRows& b, int32_t row, float* partials) {
        constexpr int V = kDotVectors == 1 ? 1 : R > 3 ? 2 : 4;
        const int32_t n = b.a.kv.head_size;
        int32_t d = 0;
        for (; d + 16 * V <= n; d += 16 * V) {
            weigh_pairs<R, V>(b, row, d, partials);
        }
        for (; d < n; d += 16) {
            weigh_pairs<R, 1>(b, row, d, partials);
        }
    }
};

}  // namespace stoker::STOKER_ISA
