// Attention of a few rows to one span of positions, whose keys and values are codes of 8 or 4 bits with a scale for each group of
// elements. Queries and weights are codes of 16 bits. Included once per instruction set, after attention_i16.inl.
//
//   codes of queries [row][head_size]   x keys   -> [row][32 positions]  in 32 bits over a group of elements, in floats over groups
//   codes of weights [row][512]         x values -> [row][group]         in 32 bits over all positions
//
// The scales of values are in the weights: each group has codes of its own, relative to the largest product of a weight and a
// scale among the positions that its row sees. 2 x 2 x 2 x head_size operations on bytes for each row and position, four at a
// time, or half as many on pairs of 16 bits where CPUs multiply those faster: both are exact, so tables give the same bits. What
// a row does not see has weight 0, and adds 0.
namespace stoker::STOKER_ISA {

constexpr int32_t kGroupRows = kSmallRows >= 8 ? 12 : kDotsBytes ? 3 : 6;  // by the number of registers
constexpr int32_t kCodeOffset = kDotsBytes && !kTakesBytes ? 0 : 128;      // by so much codes are too large when multiplied
constexpr int32_t kHalfOffset = 8;                                         // likewise those of 4 bits
static_assert(int64_t(kSpanTokens) * kMostCode * 128 <= INT32_MAX);

// Sums of products of R rows with V x 16 positions or elements: of high and of low bytes, or of whole codes in place of the low.
template <int R, int V> struct GroupSums {
    i32x16 low[R][V], high[kDotsBytes ? R : 1][V];

    i32x16 total(int r, int v) const {
        if constexpr (kDotsBytes) {
            return add_i32(shl_i32<8>(high[r][v]), low[r][v]);
        } else {
            return low[r][v];
        }
    }
};

template <int R, int V>
inline __attribute__((always_inline)) void begin_sums(GroupSums<R, V>& sums, const int32_t* row_sums, int32_t offset) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        const i32x16 excess = set1_i32(int32_t(-uint32_t(offset) * uint32_t(row_sums[r])));
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            sums.low[r][v] = excess;
            sums.high[kDotsBytes ? r : 0][v] = set1_i32(0);
        }
    }
}

// Four products each: of the rows' codes at `at`, and of bytes.
template <int R, int V>
inline __attribute__((always_inline)) void add_products(GroupSums<R, V>& sums, const CodeRows& rows, int32_t at, const codes (&x)[V]) {
    if constexpr (kDotsBytes) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const quad high = broadcast4(rows.high + r * rows.stride + at), low = broadcast4(rows.low + r * rows.stride + at);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
                sums.high[r][v] = dot_bytes(sums.high[r][v], x[v], high);
                sums.low[r][v] = dot_bytes(sums.low[r][v], x[v], low);
            }
        }
        return;
    }
    const auto add_pairs = [&](const auto& widen, int32_t first) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            const codes pairs = widen(x[v]);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                sums.low[r][v] = dot_whole(sums.low[r][v], pairs, pair_at(rows.whole(r) + at + first));
            }
        }
    };
    add_pairs([](const codes& bytes) { return widened<0>(bytes); }, 0);
    add_pairs([](const codes& bytes) { return widened<2>(bytes); }, 2);
}

// Whole lines, to the second-level cache.
template <int32_t bytes> inline __attribute__((always_inline)) void fetch_lines(const uint8_t* p) {
    for (int32_t at = 0; at < bytes; at += 64) {
        prefetch_far(p + at);
    }
}

// As they are multiplied.
inline codes load_group_codes(const uint8_t* p) {
    if constexpr (kDotsBytes) {
        return load_bytes(p);
    } else {
        return load_codes(p);
    }
}

// The keys of a page, and the way of its values to the cache.
template <KvType type, int R, int V> STOKER_FLATTEN void score_groups(const SpanRows& b, int32_t page, const Fetch fetch) {
    constexpr int32_t step = type == KvType::q4 ? 16 : 32, scale = type == KvType::q4 ? 64 : 128;  // of an element and a group of values
    const int32_t n = b.a.kv.head_size, size = b.a.kv.group();
    const uint8_t *keys = b.keys(page), *value_scales = fetch.plane + (type == KvType::q4 ? b.a.kv.half_bytes() : size_t(n) * kPageTokens);
    const CodeRows queries = b.scratch.queries;
    const int32_t* query_sums = b.scratch.query_sums;
    for (int32_t lane = 0; lane < kPageTokens; lane += 16 * V) {
        float* products = b.scratch.scores(0) + page * kPageTokens + lane;
        const float* scales = reinterpret_cast<const float*>(keys + size_t(n) * kPageTokens) + lane;
        for (int32_t first = 0, group = 0; first < n; first += size, ++group, scales += kPageTokens) {
            if (lane == 0) {
                fetch_lines<scale>(value_scales + group * scale);
            }
            GroupSums<R, V> sums;
            begin_sums(sums, query_sums + group * kScoredRows, kCodeOffset);
            for (int32_t d = first; d < first + size; d += 4) {
                if (lane == 0) {
                    fetch_lines<4 * step>(fetch.plane + d * step);
                }
                codes x[V];
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) {
                    x[v] = load_group_codes(keys + d * kPageTokens + (lane + 16 * v) * 4);
                }
                add_products(sums, queries, d, x);
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) {
                    float* to = products + r * kScoreStride + 16 * v;
                    const f32x16 before = first == 0 ? set1(0) : load(to);
                    store(to, fma(to_f32(sums.total(r, v)), load(scales + 16 * v), before));
                }
            }
        }
    }
}

// Row r's scores, the largest of which is given, become weights where they lie, 0 beside what is seen; writes the maximum and the
// sum of its partial result.
STOKER_FLATTEN inline void soften_in_place(const SpanRows& b, int32_t r, float highest, float* partial) {
    const Seen seen = b.seen[r];
    float* scores = b.scratch.scores(r);
    f32x16 total = set1(0);
    for (int32_t t = b.first_coded(), end = b.end_coded(); t < end; t += 16) {
        if (t + 16 <= seen.from || t >= seen.to) {
            store(scores + t, set1(0));
            continue;
        }
        const f32x16 weight = only_seen(weight_of<1, -60>(sub(load(scores + t), set1(highest))), t, seen, 0);
        store(scores + t, weight);
        total = add(total, weight);
    }
    partial[0] = highest * 0.693147180559945f;
    partial[1] = reduce_add(total);
}

// The keys that this thread reads next, on their way to the second-level cache, line by line: so that memory is never idle while
// weights are computed, and follows whole pages.
class KeyLines {
public:
    explicit KeyLines(const SpanRows& b)
        : ahead(b.is_last() ? b.a.ahead : AttentionAhead{}), page_bytes(b.a.kv.page_bytes), key_bytes(b.a.kv.key_bytes()) {}
    inline __attribute__((always_inline)) bool fetch() {
        if (at >= end) {
            if (page == ahead.count) {
                return false;
            }
            at = ahead.memory + ahead.pages[page++] * page_bytes;
            end = at + key_bytes;
        }
        prefetch_far(at);
        at += 64;
        return true;
    }

private:
    AttentionAhead ahead;
    size_t page_bytes, key_bytes;
    int32_t page = 0;
    const uint8_t *at = nullptr, *end = nullptr;
};

// Where the scales of values are, page by page; anywhere for a page that no row sees.
template <KvType type> class ValueScales {
public:
    explicit ValueScales(const SpanRows& b) {
        const size_t codes = type == KvType::q4 ? b.a.kv.half_bytes() : size_t(b.a.kv.head_size) * kPageTokens;
        const int32_t last = b.end_page - 1, end = b.end_coded() / kPageTokens;
        for (int32_t page = b.first_coded() / kPageTokens; page < end; ++page) {
            pages[page] = b.values(page < b.first_page ? b.first_page : page > last ? last : page) + codes;
        }
    }
    // Of a group at 16 positions.
    f32x16 at(int32_t group, int32_t t) const {
        const uint8_t* page = pages[t / kPageTokens];
        const int32_t i = group * kPageTokens + t % kPageTokens;
        if constexpr (type == KvType::q4) {
            return load_bf16(reinterpret_cast<const uint16_t*>(page) + i);
        } else {
            return load(reinterpret_cast<const float*>(page) + i);
        }
    }

private:
    const uint8_t* pages[kSpanTokens / kPageTokens];
};

// The rows' weights times the scales of a group become codes; `steps`: what a step of them is worth.
template <KvType type, int R>
STOKER_FLATTEN void take_weights(const SpanRows& b, const ValueScales<type>& scales, int32_t group, float* steps, KeyLines& lines) {
    alignas(64) float products[R * kScoreStride];
    const int32_t begin = b.first_coded(), end = b.end_coded();
    const float* weights = b.scratch.scores(0);
    KeyLines next = lines;  // a copy: stores could change what a reference leads to
    i32x16 largest[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        largest[r] = set1_i32(0);
    }
    for (int32_t t = begin; t < end; t += 16) {
        const f32x16 scale = scales.at(group, t);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const f32x16 weight = load(weights + r * kScoreStride + t);
            const f32x16 product = if_positive(weight, mul(weight, scale), set1(0));  // 0 times what is seen by others
            largest[r] = larger(largest[r], product);
            store(products + r * kScoreStride + t, product);
            next.fetch();
        }
    }
    lines = next;
    for (int r = 0; r < R; ++r) {
        steps[r] = largest_of(largest[r]) / kMostCode;
        const f32x16 per_step = steps_per_unit(steps[r]);
        fill_codes<type>(b.scratch.weights, r, begin, end,
                         [&](int32_t t) { return to_i32(mul(load(products + r * kScoreStride + t), per_step)); });
    }
}

// V x 16 elements of the head from d on, at four positions.
template <KvType type, int V>
inline __attribute__((always_inline)) void load_values(codes (&x)[V], const uint8_t* values, int32_t d, int32_t t) {
    if constexpr (type == KvType::q8) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            x[v] = load_group_codes(values + (d + 16 * v) * kPageTokens + t * 16);
        }
        return;
    }
    const codes both = load_codes(values + d / 32 * 16 * kPageTokens + t * 16);
    x[0] = V == 1 && d % 32 > 0 ? field<4, 15>(both) : field<0, 15>(both);
    if constexpr (V == 2) {
        x[1] = field<4, 15>(both);
    }
}

// Sums of those elements over the positions of all pages.
template <KvType type, int R, int V>
STOKER_FLATTEN void weigh_group(const SpanRows& b, int32_t d, const float* steps, KeyLines& lines, float* partials) {
    const CodeRows weights = b.scratch.weights;
    const int32_t stride = partial_floats(b.a.kv.head_size);
    KeyLines next = lines;  // a copy: stores could change what a reference leads to
    int32_t row_sums[R];
    for (int r = 0; r < R; ++r) {
        row_sums[r] = weights.sum(r);
    }
    GroupSums<R, V> sums;
    begin_sums(sums, row_sums, type == KvType::q4 ? kHalfOffset : kCodeOffset);
    for (int32_t page = b.first_page; page < b.end_page; ++page) {
        const uint8_t* values = b.values(page);
        for (int32_t t = 0; t < kPageTokens; t += 4) {
            for (int i = 0; i < (R > 2 ? 1 : 2); ++i) {
                next.fetch();
            }
            codes x[V];
            load_values<type>(x, values, d, t);
            add_products(sums, weights, page * kPageTokens + t, x);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            store(partials + r * stride + d + 16 * v, mul(to_f32(sums.total(r, v)), set1(steps[r])));
        }
    }
    lines = next;
}

// Products for blocks of rows.
template <KvType kv_type> struct Groups {
    static constexpr KvType type = kv_type;
    static constexpr int rows = kGroupRows;

    template <int R> static void score(const SpanRows& b, int32_t page, const Fetch& fetch) {
        score_groups<type, R, vectors(R)>(b, page, fetch);
    }
    static void soften(const SpanRows& b, int32_t r, float highest, float* partial) { soften_in_place(b, r, highest, partial); }
    template <int R> static void weigh(const SpanRows& b, float* partials) {
        const int32_t size = b.a.kv.group();
        float steps[R];
        KeyLines lines(b);
        const ValueScales<type> scales(b);
        for (int32_t first = 0, group = 0; first < b.a.kv.head_size; first += size, ++group) {
            take_weights<type, R>(b, scales, group, steps, lines);
            int32_t d = first;
            for (; d + 16 * vectors(R) <= first + size; d += 16 * vectors(R)) {
                weigh_group<type, R, vectors(R)>(b, d, steps, lines, partials);
            }
            for (; d < first + size; d += 16) {
                weigh_group<type, R, 1>(b, d, steps, lines, partials);
            }
        }
        while (lines.fetch()) {
        }
    }

private:
    static constexpr int vectors(int R) { return kSmallRows >= 8 && R <= 6 ? 2 : 1; }
};

}  // namespace stoker::STOKER_ISA
