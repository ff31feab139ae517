// Attention of a few rows to one span of positions, in floats. Included once per instruction set, after simd_*.hpp and math.inl.
//
//   scores  [row][512]   = queries [row][head_size] x keys [head_size][32 per page]      lanes are positions
//   weights [row][512]   = e^(score - max of the row's scores)                           16 lanes, summed in order
//   sum     [row][head]  = weights [row][512] x values [512][head_size]                  lanes are elements of the head
//
// 2 x 2 x head_size operations for each row and position, and one exponential. A pass holds up to kAttentionRows rows x 2
// vectors of sums in registers. Every score is one chain of fused multiply-adds over the head's elements, every sum one
// chain over the positions that its row sees, and nothing else: not even with weight 0, so that what lies beyond (another
// sequence's leftovers, later tokens) cannot touch it.
#include "attention.hpp"

namespace stoker::STOKER_ISA {

constexpr int32_t kAttentionRows = kSmallRows >= 8 ? 12 : 3;  // by the number of registers
constexpr int32_t kScoreStride = kSpanTokens + 16;  // not a power of two: rows would share cache sets

// Two vectors of one page's keys or values as floats.
template <KvType type> struct Plane;

template <> struct Plane<KvType::f32> {
    const float* data;
    Plane(const KvLayout&, const uint8_t* p) : data(reinterpret_cast<const float*>(p)) {}
    inline f32x16 key(int32_t d, int32_t lane) const { return load(data + d * kPageTokens + lane); }
    inline f32x16 value(int32_t t, int32_t d, int32_t head_size) const { return load(data + t * head_size + d); }
};

template <> struct Plane<KvType::f16> {
    const uint16_t* data;
    Plane(const KvLayout&, const uint8_t* p) : data(reinterpret_cast<const uint16_t*>(p)) {}
    inline f32x16 key(int32_t d, int32_t lane) const { return load_f16(data + d * kPageTokens + lane); }
    inline f32x16 value(int32_t t, int32_t d, int32_t head_size) const { return load_f16(data + t * head_size + d); }
};

// Memory is far. The first level of a core's cache waits for sixteen lines at most, which is a third of what memory gives;
// the second one waits for more, but follows no sequence from page to page. So each plane that is read fetches another one
// there, step by step:
//
//   read    keys of page 0, 1, 2, ...      values of page 0, 1, 2, ...
//   fetch   values of page 0, 1, 2, ...    keys of page 0, 1, 2, ... of what this thread reads next
constexpr int32_t kFetchedPages = 2;  // ahead among the keys, where nobody has fetched them

// A plane in as many steps as a head has elements. A plane to fetch that is not there is one that was read just now.
struct Fetch {
    const uint8_t* plane;
    size_t step_bytes;  // 18 to 128
    size_t end_bytes;   // of the steps; scales for whole heads lie behind

    Fetch(const KvLayout& kv, const uint8_t* p, bool are_keys)
        : plane(p), step_bytes(is_coded(kv.type) ? 64 : (are_keys ? kv.key_bytes() : kv.value_bytes()) / kv.head_size),
          end_bytes(step_bytes * kv.head_size) {}
    template <KvType type> inline void step(int32_t index) const {
        prefetch_far(plane + index * step_bytes);
        if constexpr (type == KvType::f32) {
            prefetch_far(plane + index * step_bytes + 64);
        }
        if (is_coded(type) && index == 0) {
            prefetch_far(plane + end_bytes);
        }
    }
    template <KvType type> inline void steps(int32_t begin, int32_t end) const {
        for (int32_t i = begin; i < end; ++i) {
            step<type>(i);
        }
    }
};

// Scores of R rows with the 32 positions of a page.
template <KvType type, int R>
inline void score_page(const Plane<type>& keys, const Fetch& fetch, const float* const* queries, int32_t head_size,
                       float* scores) {
    f32x16 acc[R][2];
    for (int r = 0; r < R; ++r) {
        acc[r][0] = acc[r][1] = set1(0);
    }
    for (int32_t d = 0; d < head_size; ++d) {
        fetch.step<type>(d);
        const f32x16 k0 = keys.key(d, 0), k1 = keys.key(d, 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const f32x16 q = set1(queries[r][d]);
            acc[r][0] = fma(q, k0, acc[r][0]);
            acc[r][1] = fma(q, k1, acc[r][1]);
        }
    }
    for (int r = 0; r < R; ++r) {
        store(scores + r * kScoreStride, acc[r][0]);
        store(scores + r * kScoreStride + 16, acc[r][1]);
    }
}

// sums [R][partial_floats] += weights [R][kScoreStride] x values, over positions [from, to) of the span and V vectors of
// the head from element d on.
template <KvType type, int R, int V>
inline void weigh(const AttentionRows& a, const AttentionAhead& ahead, int32_t span, int32_t from, int32_t to,
                  const float* weights, int32_t d, float* sums) {
    const int32_t n = a.kv.head_size, stride = partial_floats(n);
    const size_t plane = a.kv.key_bytes();
    f32x16 acc[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
            acc[r][v] = load(sums + r * stride + d + 16 * v);
        }
    }
    const int32_t first = (span * kSpanTokens + from) / kPageTokens;
    for (int32_t t = from; t < to;) {
        const int32_t page = (span * kSpanTokens + t) / kPageTokens;
        const uint8_t* memory = a.memory + a.pages[page] * a.kv.page_bytes + plane;
        const Plane<type> values(a.kv, memory);
        const int32_t begin = t % kPageTokens, page_left = kPageTokens - begin;
        const int32_t count = to - t < page_left ? to - t : page_left;
        const bool fetches = page - first < ahead.count;
        const Fetch fetch(a.kv, fetches ? ahead.memory + ahead.pages[page - first] * a.kv.page_bytes : memory, fetches);
        const auto fetch_share = [&](int32_t i) {  // of V * 16 steps, a page's 32 positions
#pragma GCC unroll 2
            for (int s = 0; s < (V + 1) / 2; ++s) {
                fetch.step<type>(d + i * V / 2 + s);
            }
        };
        for (int32_t i = begin; i < begin + count; ++i) {
            fetch_share(i);
            f32x16 value[V];
            for (int v = 0; v < V; ++v) {
                value[v] = values.value(i, d + 16 * v, n);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const f32x16 w = set1(weights[r * kScoreStride + t + i - begin]);
                for (int v = 0; v < V; ++v) {
                    acc[r][v] = fma(w, value[v], acc[r][v]);
                }
            }
        }
        for (int32_t i = 0; fetches && i < kPageTokens; ++i) {  // a page that is read in part fetches a whole one
            if (i < begin || i >= begin + count) {
                fetch_share(i);
            }
        }
        t += count;
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
            store(sums + r * stride + d + 16 * v, acc[r][v]);
        }
    }
}

template <KvType type, int R>
inline void weigh_heads(const AttentionRows& a, const AttentionAhead& ahead, int32_t span, int32_t from, int32_t to,
                        const float* weights, float* sums) {
    if (from >= to) {
        return;
    }
    int32_t d = 0;
    if constexpr (kAttentionRows >= 12 && R <= 4) {
        for (; d + 64 <= a.kv.head_size; d += 64) {
            weigh<type, R, 4>(a, ahead, span, from, to, weights, d, sums);
        }
    }
    for (; d + 32 <= a.kv.head_size; d += 32) {
        weigh<type, R, 2>(a, ahead, span, from, to, weights, d, sums);
    }
    if (d < a.kv.head_size) {
        weigh<type, R, 1>(a, ahead, span, from, to, weights, d, sums);
    }
}

// Which positions of a span a row sees.
struct Seen {
    int32_t from, to;
};

inline Seen seen_in_span(const AttentionRows& a, int32_t row, int32_t span) {
    const int32_t at = a.position + row / a.group, begin = span * kSpanTokens;
    const int32_t from = a.first_seen(at) - begin, to = a.end_seen(at) - begin;
    return {from > 0 ? from : 0, to < kSpanTokens ? to : kSpanTokens};
}

// What the scores of a row with 16 positions from `position` on are changed by, for how far they are from it.
inline f32x16 by_distance(const AttentionRows& a, int32_t row, int32_t position) {
    alignas(64) static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int32_t at = a.position + row / a.group;
    return mul(abs(add(load(lanes), set1(float(position - at)))), set1(-a.slopes[row % a.group]));
}

// Scores to weights in place, only at the positions seen; returns their sum, and the maximum through `max_score`.
inline float soften(float* scores, Seen seen, float softcap, float* max_score) {
    const int32_t first = seen.from / 16 * 16, last = (seen.to + 15) / 16 * 16;
    const auto hide = [&](float value) {
        for (int32_t t = first; t < seen.from; ++t) scores[t] = value;
        for (int32_t t = seen.to; t < last; ++t) scores[t] = value;
    };
    if (softcap > 0) {
        hide(0);
        for (int32_t t = first; t < last; t += 16) {
            store(scores + t, mul(tanh(div(load(scores + t), set1(softcap))), set1(softcap)));
        }
    }
    hide(-3.4e38f);
    f32x16 highest = set1(-3.4e38f);
    for (int32_t t = first; t < last; t += 16) {
        highest = max(load(scores + t), highest);
    }
    *max_score = reduce_max(highest);
    f32x16 sum = set1(0);
    for (int32_t t = first; t < last; t += 16) {
        store(scores + t, exp(sub(load(scores + t), set1(*max_score))));
        if (t < seen.from || t + 16 > seen.to) {
            hide(0);
        }
        sum = add(sum, load(scores + t));
    }
    return reduce_add(sum);
}

// Scores of R rows with positions [first, last) of the span, and what else is in their pages.
template <KvType type, int R>
inline void score(const AttentionRows& a, int32_t span, int32_t first, int32_t last, const float* const* queries,
                  float* scores) {
    const int32_t* pages = a.pages + span * (kSpanTokens / kPageTokens);
    const auto plane = [&](int32_t page) { return a.memory + pages[page] * a.kv.page_bytes; };
    const int32_t begin = first / kPageTokens, end = (last + kPageTokens - 1) / kPageTokens;
    const int32_t num_fetched = a.num_fetched;
    for (int32_t page = begin + num_fetched; page < begin + kFetchedPages && page < end; ++page) {
        Fetch(a.kv, plane(page), true).steps<type>(0, a.kv.head_size);
    }
    for (int32_t page = begin; page < end; ++page) {
        if (page + kFetchedPages >= begin + num_fetched && page + kFetchedPages < end) {
            Fetch(a.kv, plane(page + kFetchedPages), true).steps<type>(0, a.kv.head_size);
        }
        const Fetch values(a.kv, plane(page) + a.kv.key_bytes(), false);
        score_page<type, R>(Plane<type>(a.kv, plane(page)), values, queries, a.kv.head_size, scores + page * kPageTokens);
    }
}

// R rows from `row` on.
template <KvType type, int R>
inline void attend_rows(const AttentionRows& a, int32_t row, int32_t span, float* partials, float* scores) {
    const int32_t n = a.kv.head_size;
    const AttentionAhead ahead = row + R == a.rows() ? a.ahead : AttentionAhead{};
    Seen seen[R], common = {0, kSpanTokens};
    const float* queries[R];
    int32_t first = kSpanTokens, last = 0;
    for (int r = 0; r < R; ++r) {
        seen[r] = seen_in_span(a, row + r, span);
        queries[r] = a.queries + size_t((row + r) / a.group) * a.ldq + size_t((row + r) % a.group) * n;
        common.from = seen[r].from > common.from ? seen[r].from : common.from;
        common.to = seen[r].to < common.to ? seen[r].to : common.to;
        first = seen[r].from < first ? seen[r].from : first;
        last = seen[r].to > last ? seen[r].to : last;
    }
    score<type, R>(a, span, first, last, queries, scores);
    float* sums = partials + size_t(row) * partial_floats(n);
    for (int r = 0; r < R; ++r) {
        float* partial = sums + r * partial_floats(n);
        for (int32_t d = 0; d < n; d += 16) {
            store(partial + d, set1(0));
        }
        partial[n] = partial[n + 1] = 0;
        if (seen[r].from < seen[r].to) {
            for (int32_t t = seen[r].from / 16 * 16; a.slopes != nullptr && t < seen[r].to; t += 16) {
                float* at = scores + r * kScoreStride + t;
                store(at, add(load(at), by_distance(a, row + r, span * kSpanTokens + t)));
            }
            partial[n + 1] = soften(scores + r * kScoreStride, seen[r], a.softcap, partial + n);
        }
    }
    const bool overlap = common.from < common.to;
    for (int r = 0; r < R; ++r) {
        weigh_heads<type, 1>(a, {}, span, seen[r].from, overlap ? common.from : seen[r].to, scores + r * kScoreStride,
                             sums + r * partial_floats(n));
    }
    if (overlap) {
        weigh_heads<type, R>(a, ahead, span, common.from, common.to, scores, sums);
        for (int r = 0; r < R; ++r) {
            weigh_heads<type, 1>(a, {}, span, common.to, seen[r].to, scores + r * kScoreStride,
                                 sums + r * partial_floats(n));
        }
    }
}

template <KvType type, int R>
inline int32_t attend_groups(const AttentionRows& a, int32_t row, int32_t span, float* partials, float* scores) {
    for (; row + R <= a.rows(); row += R) {
        attend_rows<type, R>(a, row, span, partials, scores);
    }
    return row;
}

template <KvType type> void attend_span(const AttentionRows& a, int32_t span, float* partials, float* scores) {
    int32_t row = 0;
    if constexpr (kAttentionRows >= 12) {
        row = attend_groups<type, 12>(a, row, span, partials, scores);
        row = attend_groups<type, 8>(a, row, span, partials, scores);
        row = attend_groups<type, 7>(a, row, span, partials, scores);
        row = attend_groups<type, 6>(a, row, span, partials, scores);
        row = attend_groups<type, 5>(a, row, span, partials, scores);
        row = attend_groups<type, 4>(a, row, span, partials, scores);
    }
    row = attend_groups<type, 3>(a, row, span, partials, scores);
    row = attend_groups<type, 2>(a, row, span, partials, scores);
    attend_groups<type, 1>(a, row, span, partials, scores);
}

}  // namespace stoker::STOKER_ISA
