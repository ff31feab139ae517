// Attention of a few rows to one span of positions in integers, which are exact in any order: each table may take its own, and
// AMX tiles (attention_amx.inl) compute the same bits. Included once per instruction set, after attention_codes.inl.
//
//   codes of queries [row][head_size]   x keys   -> scores  [row][512]         lanes are positions
//   codes of weights [row][512]         x values -> sum     [row][head_size]   lanes are elements of the head
//
//   weight = e^score x scale of the value, relative to the largest of the row
//
// A code is 256 * high + low, both signed bytes. Of the product of two codes, high x high and both high x low are summed up, in
// 32 bits; low x low is less than what rounding to codes costs. 3 x 2 x 2 x head_size operations on bytes for each row and
// position, four at a time, and one exponential. What a row does not see has weight 0, and 0 times any code is 0: so neither
// another sequence's leftovers nor later tokens can touch it.
namespace stoker::STOKER_ISA {

constexpr int32_t kDotRows = kSmallRows >= 8 ? 6 : 2;     // of a block of dot products: by the number of registers
constexpr int32_t kDotVectors = kSmallRows >= 8 ? 2 : 1;  // of 16 positions, or elements, that share them
constexpr bool kTakesBytes = kUnsignedCodes(255);         // dot() multiplies what is stored: 128 too large

template <bool takes_bytes = kTakesBytes> inline codes load_bytes(const uint8_t* p) {
    if constexpr (takes_bytes) {
        return load_codes(p);
    } else {
        return minus(load_codes(p), 128);
    }
}

template <bool takes_bytes = kTakesBytes> inline i32x16 dot_bytes(i32x16 acc, codes bytes, quad a) {
    return dot<takes_bytes ? 255 : 128, takes_bytes>(acc, bytes, a);
}

// Sums of products of R rows with V x 16 positions or elements. Every loop over them is unrolled, or they would lie in memory.
template <int R, int V> struct DotSums {
    i32x16 high[R][V], middle[R][V];
};

template <int R, int V> inline __attribute__((always_inline)) void begin_sums(DotSums<R, V>& sums, const CodeRows& rows) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const int32_t sum_high = kTakesBytes ? rows.sum_high[r] : 0, sum_low = kTakesBytes ? rows.sum_low[r] : 0;
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            sums.high[r][v] = set1_i32(-128 * sum_high);
            sums.middle[r][v] = set1_i32(-128 * (sum_high + sum_low));
        }
    }
}

// Four products each: of the rows' codes at `at`, and of bytes [v * stride], high and low ones `plane` apart. Of rows and bytes
// the fewer stay in registers; more would push sums out of them.
template <int R, int V>
inline __attribute__((always_inline)) void add_products(DotSums<R, V>& sums, const CodeRows& rows, int32_t at,
                                                        const uint8_t* bytes, size_t stride, size_t plane) {
    const auto high_at = [&](int v) { return load_bytes(bytes + v * stride); };
    const auto low_at = [&](int v) { return load_bytes(bytes + v * stride + plane); };
    const auto high_of = [&](int r) { return broadcast4(rows.high + r * rows.stride + at); };
    const auto low_of = [&](int r) { return broadcast4(rows.low + r * rows.stride + at); };
    const auto add = [&](int r, int v, codes high, codes low, quad a) __attribute__((always_inline)) {
        sums.high[r][v] = dot_bytes(sums.high[r][v], high, a);
        sums.middle[r][v] = dot_bytes(dot_bytes(sums.middle[r][v], low, a), high, low_of(r));
    };
    if constexpr (2 * V < R) {
        codes high[V], low[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            high[v] = high_at(v);
            low[v] = low_at(v);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const quad a = high_of(r);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) {
                add(r, v, high[v], low[v], a);
            }
        }
    } else {
        quad a[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            a[r] = high_of(r);
        }
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            const codes high = high_at(v), low = low_at(v);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                add(r, v, high, low, a[r]);
            }
        }
    }
}

// write(row, v, the sums in units of 256).
template <int R, int V, class Write> inline __attribute__((always_inline)) void end_sums(const DotSums<R, V>& sums, Write write) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            write(r, v, add_i32(shl_i32<8>(sums.high[r][v]), sums.middle[r][v]));
        }
    }
}

// The keys of a page, and the way of its values to the cache.
template <int R, int V> STOKER_FLATTEN void score_page(const SpanRows& b, int32_t page, const Fetch fetch) {
    const int32_t n = b.a.kv.head_size;
    const uint8_t* keys = b.keys(page);
    const CodeRows queries = b.scratch.queries;
    for (int32_t lane = 0; lane < kPageTokens; lane += 16 * V) {
        DotSums<R, V> sums;
        begin_sums(sums, queries);
        for (int32_t d = 0; d < n; d += 4) {
            fetch.steps<KvType::q16>(d, lane == 0 ? d + 4 : d);
            add_products(sums, queries, d, keys + d * 2 * kPageTokens + lane * 4, 64, 4 * kPageTokens);
        }
        end_sums(sums, [&](int r, int v, i32x16 sum) {
            store_i32(reinterpret_cast<int32_t*>(b.scratch.scores(r)) + page * kPageTokens + lane + 16 * v, sum);
        });
    }
}

// V x 16 elements of the head from d on: sums over the positions of all pages.
template <int R, int V> STOKER_FLATTEN void weigh_elements(const SpanRows& b, int32_t d, float* partials) {
    const CodeRows weights = b.scratch.weights;
    const AttentionAhead ahead = b.is_last() ? b.a.ahead : AttentionAhead{};
    DotSums<R, V> sums;
    begin_sums(sums, weights);
    for (int32_t page = b.first_page; page < b.end_page; ++page) {
        const uint8_t* values = b.values(page);
        const int32_t i = page - b.first_page;
        const Fetch fetch(b.a.kv, i < ahead.count ? ahead.memory + ahead.pages[i] * b.a.kv.page_bytes : values, true);
        for (int32_t t = 0; t < kPageTokens; t += 4) {
            fetch.steps<KvType::q16>(d + V * t / 2, d + V * t / 2 + 2 * V);
            const uint8_t* bytes = values + d * 2 * kPageTokens + t * 32;
            add_products(sums, weights, page * kPageTokens + t, bytes, 32 * kPageTokens, 64);
        }
    }
    float* to = partials + d;
    const int32_t stride = partial_floats(b.a.kv.head_size);
    end_sums(sums, [&](int r, int v, i32x16 sum) { store(to + r * stride + 16 * v, mul(to_f32(sum), set1(256))); });
}

// Products for blocks of rows.
struct Fours {
    static constexpr KvType type = KvType::q16;
    static constexpr int rows = kDotRows;

    template <int R> static void score(const SpanRows& b, int32_t page, const Fetch& fetch) {
        score_page<R, kDotVectors>(b, page, fetch);
    }
    static void soften(const SpanRows& b, int32_t r, float highest, float* partial) { soften_row<type>(b, r, highest, partial); }
    template <int R> static void weigh(const SpanRows& b, float* partials) {
        const int32_t n = b.a.kv.head_size;
        int32_t d = 0;
        if constexpr (kDotVectors == 2 && R <= 3) {
            for (; d + 64 <= n; d += 64) {
                weigh_elements<R, 4>(b, d, partials);
            }
        }
        for (; d + 16 * kDotVectors <= n; d += 16 * kDotVectors) {
            weigh_elements<R, kDotVectors>(b, d, partials);
        }
        if (d < n) {
            weigh_elements<R, 1>(b, d, partials);
        }
    }
};

}  // namespace stoker::STOKER_ISA
