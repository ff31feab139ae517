// Attention in integers: codes of 16 bits of queries and of weights, the memory that they lie in, and how scores become
// weights. What multiplies codes is in attention_q16.inl, attention_i16.inl, attention_groups.inl and attention_amx.inl. Included
// once per instruction set, after attention.inl.
//
//   code x scale, the scale being that of a query's head, or one step of a weight
//   q16: code = 256 * high + low, signed bytes both, which lie apart         i16: code whole         q8, q4: either, by the CPU
namespace stoker::STOKER_ISA {

constexpr int32_t kMostValue = 8191;              // of values of type i16, and
constexpr int32_t kMostLength = 46300;            // the length of those of a query or key, as a vector
constexpr int32_t kScoredRows = 16;                // whose scores are there at a time: those of a tile
constexpr int32_t kMostRows = 2 * kScoredRows;     // of a block: their weights are there at a time
constexpr int32_t kCodeStride = kSpanTokens + 64;  // not a power of two, like kScoreStride
static_assert(kMaxCodedHead <= kCodeStride && kMaxGroupedHead <= kCodeStride);

// Do queries and weights lie as whole codes?
constexpr bool is_whole(KvType type) { return type == KvType::i16 || (is_grouped(type) && !kDotsBytes); }

// Rows of codes: bytes, the sums of which correct what is 128 too large, or whole ones, which take the place of both planes.
struct CodeRows {
    static constexpr int32_t stride = kCodeStride;  // known when compiled: one register leads to all rows
    int8_t *high, *low;                             // [row][stride]; low ones follow high ones
    int32_t *sum_high, *sum_low;  // [row]

    int32_t sum(int32_t row) const { return 256 * sum_high[row] + sum_low[row]; }
    int16_t* whole(int32_t row) const { return reinterpret_cast<int16_t*>(high) + size_t(row) * stride; }
    CodeRows from(int32_t row) const {
        return {high + size_t(row) * stride, low + size_t(row) * stride, sum_high + row, sum_low + row};
    }
};

// What a thread has of a block of rows, in the scratch of `attend`.
struct SpanScratch {
    float* all_scores;        // [kScoredRows][kScoreStride]
    float* key_scales;        // [kSpanTokens]
    float* value_scales;      // [kSpanTokens]: of a group
    float* value_exponents;   // [kSpanTokens]: log2 of their scales
    float* values_per_scale;  // [kSpanTokens]: 1 / scale
    float* query_scales;      // [kScoredRows]: times what a step of a sum is worth, and log2(e)
    int32_t* query_sums;      // [group][kScoredRows]: of codes in groups
    CodeRows queries;  // of kScoredRows
    CodeRows weights;  // of kMostRows

    static constexpr size_t floats(int32_t head_size) {
        return kScoredRows * (size_t(kScoreStride) + 1 + head_size / 16) + 3 * kSpanTokens +
               (kMostRows + kScoredRows) * (size_t(kCodeStride) / 2 + 2);
    }
    SpanScratch(float* memory, int32_t head_size) {
        const auto take = [&](size_t n) { return (memory += n) - n; };
        const auto integers = [&](size_t n) { return reinterpret_cast<int32_t*>(take(n)); };
        const auto take_codes = [&](int32_t rows) {
            int8_t* high = reinterpret_cast<int8_t*>(take(rows * size_t(kCodeStride) / 4));
            int8_t* low = reinterpret_cast<int8_t*>(take(rows * size_t(kCodeStride) / 4));
            int32_t* sum_high = integers(rows);
            return CodeRows{high, low, sum_high, integers(rows)};
        };
        all_scores = take(kScoredRows * size_t(kScoreStride));
        key_scales = take(kSpanTokens);
        value_scales = key_scales;  // never both
        value_exponents = take(kSpanTokens);
        values_per_scale = take(kSpanTokens);
        query_scales = take(kScoredRows);
        weights = take_codes(kMostRows);
        queries = take_codes(kScoredRows);
        query_sums = integers(kScoredRows * size_t(head_size) / 16);
    }
    float* scores(int32_t row) const { return all_scores + row * kScoreStride; }
};

// Some rows of a piece, the part of a span that some of them see, and the memory to compute in.
struct SpanRows {
    const AttentionRows& a;
    SpanScratch scratch;
    int32_t span, row, rows;
    Seen seen[kMostRows];
    int32_t first_page = kSpanTokens / kPageTokens, end_page = 0;  // of the span

    SpanRows(const AttentionRows& a, int32_t span, int32_t row, int32_t rows, float* memory)
        : a(a), scratch(memory, a.kv.head_size), span(span), row(row), rows(rows) {
        for (int32_t r = 0; r < rows; ++r) {
            seen[r] = seen_in_span(a, row + r, span);
            if (seen[r].from < seen[r].to) {
                const int32_t first = seen[r].from / kPageTokens, end = (seen[r].to - 1) / kPageTokens + 1;
                first_page = first < first_page ? first : first_page;
                end_page = end > end_page ? end : end_page;
            }
        }
    }
    const uint8_t* keys(int32_t page) const {
        return a.memory + a.pages[span * (kSpanTokens / kPageTokens) + page] * a.kv.page_bytes;
    }
    const uint8_t* values(int32_t page) const { return keys(page) + a.kv.key_bytes(); }
    bool is_last() const { return row + rows == a.rows(); }
    // Of kMostRows those that are scored together, `part` 0 or 1, with the pages of all.
    SpanRows scored(int32_t part) const {
        SpanRows out = *this;
        const int32_t first = part * kScoredRows, left = rows - first;
        out.row += first;
        out.rows = left < kScoredRows ? left : kScoredRows;
        out.scratch.weights = scratch.weights.from(first);
        for (int32_t r = 0; r < out.rows; ++r) {
            out.seen[r] = seen[first + r];
        }
        return out;
    }
    // The positions in these pages; codes are made of 64 at a time.
    int32_t first_coded() const { return first_page * kPageTokens / 64 * 64; }
    int32_t end_coded() const { return (end_page * kPageTokens + 63) / 64 * 64; }
};

// Codes
// ---------------------------------------------------------------------------------------------------------------------

inline const uint16_t* scales_of(const KvLayout& kv, const uint8_t* plane) {
    return reinterpret_cast<const uint16_t*>(plane + 2 * size_t(kv.head_size) * kPageTokens);
}

inline f32x16 steps_per_unit(float scale) { return set1(scale > 1e-35f ? 1.0f / scale : 0.0f); }

// The largest of sixteen magnitudes, as bits; not a number if one of them is not finite: that has the largest bits.
inline float largest_of(i32x16 magnitudes) {
    const f32x16 x = as_f32(magnitudes);
    return lanes_below(x, set1(__builtin_inff())) == 0xffff ? reduce_max(x) : __builtin_nanf("");
}

inline i32x16 larger(i32x16 largest, f32x16 x) { return max_i32(as_i32(abs(x)), largest); }

// The largest magnitude in x, likewise.
inline float largest_of(const float* x, int32_t n) {
    i32x16 largest = set1_i32(0);
    for (int32_t i = 0; i < n; i += 16) {
        largest = larger(largest, load(x + i));
    }
    return largest_of(largest);
}

// What one step of the codes of x, a query or key, is worth.
template <KvType type> inline float code_scale(const float* x, int32_t n) {
    const float largest = largest_of(x, n);
    if constexpr (type != KvType::i16) {
        return largest / kMostCode;
    }
    const f32x16 per_largest = steps_per_unit(largest);
    f32x16 squares = set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 part = mul(load(x + i), per_largest);
        squares = fma(part, part, squares);
    }
    const float by_length = largest * (__builtin_sqrtf(reduce_add(squares)) / kMostLength), by_largest = largest / kMostWhole;
    return by_length > by_largest ? by_length : by_largest;
}

// The power of two above a scale, from 2^-60 on: weights have its logarithm in them, and must not leave the range of floats
// where there are values of 1e20 besides.
inline float power_above(float scale) {
    uint32_t bits;
    __builtin_memcpy(&bits, &scale, 4);
    bits = (bits & 0x7f800000) + 0x00800000;
    bits = bits > 67u << 23 ? bits : 67u << 23;
    float power;
    __builtin_memcpy(&power, &bits, 4);
    return scale == scale ? power : scale;
}

// The next bf16 that is not smaller.
inline float rounded_up(float scale) {
    uint32_t bits;
    __builtin_memcpy(&bits, &scale, 4);
    bits = (bits + 0xffff) & 0xffff0000;
    __builtin_memcpy(&scale, &bits, 4);
    return scale;
}

#ifndef STOKER_STORE_SPLIT
// 64 codes as bytes; a low one is not below `least`, which is -127 if products of two are to add up in 16 bits. Adds them to `sums`
// of high and low. What was not a number becomes any code.
template <int least> inline void store_split(int8_t* high, int8_t* low, const i32x16 (&x)[4], i32x16 (&sums)[2]) {
    for (int i = 0; i < 4; ++i) {
        const i32x16 code = max_i32(x[i], set1_i32(-kMostCode));
        const i32x16 h = sub_i32(shr_i32<8>(add_i32(code, set1_i32(128 * 256 + 128))), set1_i32(128));
        const i32x16 l = max_i32(sub_i32(code, shl_i32<8>(h)), set1_i32(least));
        store_i8(high + 16 * i, h);
        store_i8(low + 16 * i, l);
        sums[0] = add_i32(sums[0], h);
        sums[1] = add_i32(sums[1], l);
    }
}
#endif

// Row `row` of `rows` at elements [begin, end), multiples of 64, from codes(element), of 16.
template <KvType type, class Codes>
inline void fill_codes(const CodeRows& rows, int32_t row, int32_t begin, int32_t end, Codes codes) {
    if constexpr (is_whole(type)) {
        i32x16 sum = set1_i32(0);
        for (int32_t i = begin; i < end; i += 16) {
            const i32x16 code = codes(i);
            store_i16(rows.whole(row) + i, code);
            sum = add_i32(sum, code);
        }
        rows.sum_high[row] = 0;
        rows.sum_low[row] = is_grouped(type) ? reduce_add_i32(sum) : 0;
        return;
    }
    const size_t at = size_t(row) * rows.stride;
    i32x16 sums[2] = {set1_i32(0), set1_i32(0)};
    for (int32_t i = begin; i < end; i += 64) {
        const i32x16 four[4] = {codes(i), codes(i + 16), codes(i + 32), codes(i + 48)};
        store_split<is_grouped(type) ? -128 : -127>(rows.high + at + i, rows.low + at + i, four, sums);
    }
    rows.sum_high[row] = reduce_add_i32(sums[0]);
    rows.sum_low[row] = reduce_add_i32(sums[1]);
}

constexpr float kLog2E = 1.44269504088896341f;

template <KvType type> STOKER_FLATTEN void take_queries(const SpanRows& b) {
    constexpr float unit = type == KvType::q16 ? 256 : 1;  // of the sums of products
    const int32_t n = b.a.kv.head_size;
    for (int32_t r = 0; r < b.rows; ++r) {
        const int32_t row = b.row + r;
        const float* x = b.a.queries + size_t(row / b.a.group) * b.a.ldq + size_t(row % b.a.group) * n;
        const float scale = code_scale<type>(x, n);
        const f32x16 steps = steps_per_unit(scale);
        fill_codes<type>(b.scratch.queries, r, 0, (n + 63) / 64 * 64,
                   [&](int32_t d) { return d < n ? to_i32(mul(load(x + d), steps)) : set1_i32(0); });
        b.scratch.query_scales[r] = scale * unit * (b.a.softcap > 0 ? 1 : kLog2E);
        int32_t* sums = b.scratch.query_sums + r;
        for (int32_t d = 0; is_grouped(type) && d < n; d += b.a.kv.group(), sums += kScoredRows) {
            i32x16 sum = to_i32(mul(load(x + d), steps));
            if (b.a.kv.group() == 32) {
                sum = add_i32(sum, to_i32(mul(load(x + d + 16), steps)));
            }
            *sums = reduce_add_i32(sum);
        }
    }
}

// Scores to weights
// ---------------------------------------------------------------------------------------------------------------------

constexpr float kUnseen = -3.4e38f;  // a score below all

// The weight that is 2^x of the largest one, x <= 0, within 3e-6 of itself; below `least` it stays the same; not a number stays
// one. The largest is most_code, so a weight is its code. Scores have nothing added to them for that: among huge ones the sum
// would round to more. A polynomial of what is left of x behind its integer. 11 operations.
template <int32_t most_code, int32_t least = -140> inline f32x16 weight_of(f32x16 x) {
    constexpr float most = most_code / 32768.0f;        // the rest of it, 2^15, is in the exponent
    const f32x16 magic = set1(12582912.0f + 127 + 15);  // adding it rounds, and the last bits are an exponent's
    const f32x16 t = max(set1(least), x);
    const f32x16 n = add(t, magic), r = sub(t, sub(n, magic));
    f32x16 p = set1(most * 0.009570100344717503f);
    p = fma(p, r, set1(most * 0.05591785907745361f));
    p = fma(p, r, set1(most * 0.240247443318367f));
    p = fma(p, r, set1(most * 0.6931217908859253f));
    p = fma(p, r, set1(most * 0.9999992847442627f));
    return mul(p, as_f32(shl_i32<23>(as_i32(n))));
}

// Of the pages that some row sees, once for all of them.
inline void copy_scales(const SpanRows& b) {
    for (int32_t t = b.first_page * kPageTokens; t < b.end_page * kPageTokens; t += 16) {
        const int32_t page = t / kPageTokens, lane = t % kPageTokens;
        store(b.scratch.key_scales + t, load_bf16(scales_of(b.a.kv, b.keys(page)) + lane));
        const f32x16 scale = load_bf16(scales_of(b.a.kv, b.values(page)) + lane);
        const f32x16 exponent = to_f32(sub_i32(shr_i32<23>(as_i32(scale)), set1_i32(127)));
        store(b.scratch.value_exponents + t, add(exponent, sub(scale, scale)));  // what is not a number stays none
        store(b.scratch.values_per_scale + t, as_f32(sub_i32(set1_i32(254 << 23), as_i32(scale))));
    }
}

// x, with `value` in the lanes beside what is seen, if `t` is the position of the first.
inline f32x16 only_seen(f32x16 x, int32_t t, Seen seen, float value) {
    if (t >= seen.from && t + 16 <= seen.to) {
        return x;
    }
    alignas(64) float lane[16];
    store(lane, x);
    for (int i = 0; i < 16; ++i) {
        lane[i] = t + i >= seen.from && t + i < seen.to ? lane[i] : value;
    }
    return load(lane);
}

// Products of row r with 16 positions from t on become scores, in units of log2, with what is to be added to them.
inline f32x16 score(const SpanRows& b, int32_t r, int32_t t, f32x16 x, f32x16 scale, f32x16 added) {
    if (b.a.softcap > 0) {
        x = tanh(div(mul(x, scale), set1(b.a.softcap)));
        scale = set1(b.a.softcap * kLog2E);
    }
    x = fma(x, scale, added);
    if (b.a.slopes != nullptr) {
        x = fma(by_distance(b.a, b.row + r, b.span * kSpanTokens + t), set1(kLog2E), x);
    }
    return only_seen(x, t, b.seen[r], kUnseen);
}

// Where a key and a value have one scale each, that of the value is in the score.
inline f32x16 score(const SpanRows& b, int32_t r, int32_t t, i32x16 sum) {
    const SpanScratch& s = b.scratch;
    return score(b, r, t, to_f32(sum), mul(load(s.key_scales + t), set1(s.query_scales[r])), load(s.value_exponents + t));
}

// Row r's scores, the largest of which is given, become codes of its weights; writes the maximum and the sum of its partial
// result.
template <KvType type> STOKER_FLATTEN void soften_row(const SpanRows& b, int32_t r, float highest, float* partial) {
    constexpr int32_t most_code = type == KvType::i16 ? kMostWhole : kMostCode;
    const SpanScratch& s = b.scratch;
    const Seen seen = b.seen[r];
    const bool sees = seen.from < seen.to;
    const int32_t first = sees ? seen.from / 16 * 16 : 0, last = sees ? (seen.to + 15) / 16 * 16 : 0;
    const f32x16 largest = set1(highest);
    const float* scores = s.scores(r);
    f32x16 total = set1(0);
    fill_codes<type>(s.weights, r, b.first_coded(), b.end_coded(), [&](int32_t t) {
        if (t < first || t >= last) {
            return set1_i32(0);
        }
        const f32x16 weight = weight_of<most_code>(sub(load(scores + t), largest));
        total = fma(weight, only_seen(load(s.values_per_scale + t), t, seen, 0), total);
        return to_i32(weight);
    });
    partial[0] = highest * 0.693147180559945f;
    partial[1] = sees ? reduce_add(total) : 0;
}

// Blocks of rows
// ---------------------------------------------------------------------------------------------------------------------

// Keys of later pages come from memory, as in `score` of attention.inl.
inline void fetch_keys(const SpanRows& b, int32_t page) {
    const int32_t unfetched = b.first_page + b.a.num_fetched, next = page == b.first_page ? page : page + kFetchedPages;
    for (int32_t i = next > unfetched ? next : unfetched; i <= page + kFetchedPages && i < b.end_page; ++i) {
        Fetch(b.a.kv, b.keys(i), true).steps<KvType::q16>(0, b.a.kv.head_size);
    }
}

// Row r's sums, or products, become scores where they lie; returns the largest.
template <KvType type> STOKER_FLATTEN inline float score_row(const SpanRows& b, int32_t r) {
    const Seen seen = b.seen[r];
    const f32x16 scale = set1(b.scratch.query_scales[r]);
    const bool is_plain = b.a.softcap <= 0 && b.a.slopes == nullptr;
    float* scores = b.scratch.scores(r);
    f32x16 highest = set1(kUnseen);
    for (int32_t t = seen.from / 16 * 16; t < seen.to; t += 16) {
        f32x16 x;
        if constexpr (is_grouped(type)) {
            x = is_plain ? only_seen(fma(load(scores + t), scale, set1(0)), t, seen, kUnseen)
                         : score(b, r, t, load(scores + t), scale, set1(0));
        } else {
            x = score(b, r, t, load_i32(reinterpret_cast<const int32_t*>(scores) + t));
        }
        highest = max(x, highest);
        store(scores + t, x);
    }
    return reduce_max(highest);
}

// By `Products` of one type of codes, of at most so many rows that R is known when compiled.
template <class Products, int R = Products::rows> void attend_rows_of(const SpanRows& b, float* partials) {
    if constexpr (R > 1) {
        if (b.rows < R) {
            return attend_rows_of<Products, R - 1>(b, partials);
        }
    }
    take_queries<Products::type>(b);
    for (int32_t page = b.first_page; page < b.end_page; ++page) {
        if (b.row == 0) {
            fetch_keys(b, page);
        }
        Products::template score<R>(b, page, Fetch(b.a.kv, b.values(page), false));
    }
    if constexpr (is_coded(Products::type)) {
        copy_scales(b);
    }
    const int32_t n = b.a.kv.head_size;
    for (int32_t r = 0; r < R; ++r) {
        Products::soften(b, r, score_row<Products::type>(b, r), partials + r * partial_floats(n) + n);
    }
    Products::template weigh<R>(b, partials);
}

// In blocks of at most `rows_at_once` rows, each by `attend`. Returns of how many pages ahead the keys were fetched.
template <class Attend>
inline int32_t attend_blocks(const AttentionRows& a, int32_t span, float* partials, float* scratch, int32_t rows_at_once,
                             Attend attend) {
    int32_t pages = 0;
    for (int32_t row = 0, rows; row < a.rows(); row += rows) {
        rows = a.rows() - row < rows_at_once ? a.rows() - row : rows_at_once;
        const SpanRows block(a, span, row, rows, scratch);
        attend(block, partials + size_t(row) * partial_floats(a.kv.head_size));
        pages = block.end_page - block.first_page;
    }
    pages = pages > 0 ? pages : 0;
    return pages < a.ahead.count ? pages : a.ahead.count;
}

template <class Products>
inline int32_t attend_coded(const AttentionRows& a, int32_t span, float* partials, float* scratch) {
    return attend_blocks(a, span, partials, scratch, Products::rows,
                         [](const SpanRows& b, float* to) { attend_rows_of<Products>(b, to); });
}

}  // namespace stoker::STOKER_ISA
