// Attention by the type of keys and values, and what is left of its rows. Included once per instruction set, last of its files.
namespace stoker::STOKER_ISA {

inline int32_t attend(const AttentionRows& a, int32_t span, float* partials, float* scratch) {
    switch (a.kv.type) {
        case KvType::f32: attend_span<KvType::f32>(a, span, partials, scratch); break;
        case KvType::f16: attend_span<KvType::f16>(a, span, partials, scratch); break;
        case KvType::q8: return attend_coded<Groups<KvType::q8>>(a, span, partials, scratch);
        case KvType::q4: return attend_coded<Groups<KvType::q4>>(a, span, partials, scratch);
        case KvType::q16: return attend_coded<Fours>(a, span, partials, scratch);
        case KvType::i16: return attend_coded<Pairs>(a, span, partials, scratch);
    }
    const int32_t from = seen_in_span(a, a.rows() - 1, span).from, to = seen_in_span(a, 0, span).to;  // what all rows see
    const int32_t pages = from < to ? (to + kPageTokens - 1) / kPageTokens - from / kPageTokens : 0;
    return pages < a.ahead.count ? pages : a.ahead.count;
}

// With m = max(a, b):  sum = sum_a e^(a-m) + sum_b e^(b-m), likewise the weights.
inline void merge(float* partial, const float* later, int32_t head_size) {
    if (later[head_size + 1] == 0) {
        return;
    }
    if (partial[head_size + 1] == 0) {
        for (int32_t d = 0; d < partial_floats(head_size); d += 16) {
            store(partial + d, load(later + d));
        }
        return;
    }
    const float a = partial[head_size], b = later[head_size], m = a > b ? a : b;
    const f32x16 keep = exp(set1(a - m)), take = exp(set1(b - m));
    for (int32_t d = 0; d < head_size; d += 16) {
        store(partial + d, fma(load(later + d), take, mul(load(partial + d), keep)));
    }
    alignas(64) float lane[16];
    store(lane, fma(set1(later[head_size + 1]), take, mul(set1(partial[head_size + 1]), keep)));
    partial[head_size] = m;
    partial[head_size + 1] = lane[0];
}

inline void finish(const float* partial, int32_t head_size, float* out) {
    const f32x16 weight = set1(partial[head_size + 1]);
    for (int32_t d = 0; d < head_size; d += 16) {
        store(out + d, div(load(partial + d), weight));
    }
}

inline int32_t rows_at_once(KvType type) {
    switch (type) {
        case KvType::q8:
        case KvType::q4: return kGroupRows;
        case KvType::q16: return Fours::rows;
        case KvType::i16: return Pairs::rows;
        default: return kAttentionRows;
    }
}

inline size_t scratch_floats(const KvLayout& kv) {
    const bool is_in_floats = !is_coded(kv.type) && !is_grouped(kv.type);
    return is_in_floats ? size_t(kScoreStride) * kAttentionRows : SpanScratch::floats(kv.head_size);
}

constexpr AttentionKernels kAttentionKernels = {rows_at_once, scratch_floats, fetch, write, attend, merge, finish};

}  // namespace stoker::STOKER_ISA
