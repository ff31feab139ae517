// Attention over paged keys and values: how a page lies in memory, and the kernels that write and read it.
//
// A page holds 32 consecutive positions of one sequence, for all layers and KV heads:
//
//   page   | layer 0: head 0: keys | values | head 1: keys | values | ... | layer 1: ... |
//   keys   [head_size][32 positions]          values [32 positions][head_size]
//
// As f32 or f16. Or as codes, so that attention is computed in integers. As q8: a code of 8 bits for each element, 128 more than
// it is, and a float scale for each group of 32 (or 16) consecutive elements of a head; in the order in which dot products of
// four bytes take them:
//
//   keys   [head_size/4][32 positions][4 elements]                         then scales [group][32 positions]
//   values [head_size/16][8 x 4 positions][16 elements][4 positions]       likewise
//
// Or as q4: keys as q8, because what they lose is lost in every score; values as codes of 4 bits, 8 more than they are, and bf16
// scales. Elements i and i + 16 of 32 share a byte, the first in its lower half; none is in the upper halves where 16 are left:
//
//   values [head_size/32][8 x 4 positions][16 elements][4 positions]       likewise
//
// Or as q16: a code of 16 bits for each element and a scale for each key and value. A code is 256 * high + low; its bytes lie
// apart, 128 more than they are, as AMX tiles take them, too:
//
//   keys   [head_size/4][high, low][32 positions][4 elements]              then bf16 scales [32 positions]
//   values [head_size/16][8 x 4 positions][high, low][16 elements][4 positions]          likewise
//
// Or as i16: whole codes, as dot products of pairs take them:
//
//   keys   [head_size/2][32 positions][2 elements]                         then bf16 scales [32 positions]
//   values [head_size/16][16 x 2 positions][16 elements][2 positions]      likewise
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace stoker {

constexpr int32_t kPageTokens = 32;
constexpr int32_t kSpanTokens = 512;  // positions that share one maximum and one sum; spans begin at multiples of it

// Largest head of type q16: so many products of codes add up in 32 bits, of a head's elements as of a span's positions.
constexpr int32_t kMaxCodedHead = 512;
constexpr int32_t kMaxGroupedHead = 576;  // likewise of q8 and q4: a latent vector and what is rotated
static_assert(kSpanTokens <= kMaxCodedHead && (256ll + 2) * 127 * 127 * kMaxCodedHead <= INT32_MAX);

enum class KvType : int32_t { f32, f16, q8, q16, i16, q4 };

constexpr bool is_coded(KvType type) { return type == KvType::q16 || type == KvType::i16; }    // of 16 bits, a scale for each head
constexpr bool is_grouped(KvType type) { return type == KvType::q8 || type == KvType::q4; }  // of fewer, a scale for each group

// The largest codes of numbers, but for those of values and queries of type i16. The weight of what is seen best is one, too.
constexpr int32_t kMostCode = 127 * 256 + 127;  // of type q16
constexpr int32_t kMostWhole = 32767;           // of type i16

// What a partial result has as the weight of a position with the largest score.
constexpr float weight_of_best(KvType type) {
    return type == KvType::q16 ? float(kMostCode) : type == KvType::i16 ? float(kMostWhole) : 1.0f;
}

struct KvLayout {
    KvType type;
    int32_t head_size;  // a multiple of 16
    size_t page_bytes;  // from a page to the next

    constexpr int32_t group() const { return head_size % 32 == 0 ? 32 : 16; }
    constexpr size_t groups() const { return size_t(head_size) / 16 >> (head_size % 32 == 0); }  // divisions would take longer
    constexpr size_t key_bytes() const {  // of one head
        const size_t n = size_t(head_size) * kPageTokens;
        switch (type) {
            case KvType::f32: return 4 * n;
            case KvType::f16: return 2 * n;
            case KvType::q8:
            case KvType::q4: return n + 4 * groups() * kPageTokens;
            default: return 2 * n + sizeof(uint16_t) * kPageTokens;
        }
    }
    constexpr size_t value_bytes() const {
        return type == KvType::q4 ? half_bytes() + sizeof(uint16_t) * groups() * kPageTokens : key_bytes();
    }
    constexpr size_t half_bytes() const { return size_t(head_size + 16) / 32 * 16 * kPageTokens; }  // of codes of 4 bits
    constexpr size_t head_bytes() const { return key_bytes() + value_bytes(); }
};

// Pages of one sequence that a thread reads next, to be fetched into its cache meanwhile.
struct AttentionAhead {
    const uint8_t* memory;  // as in AttentionRows
    const int32_t* pages;   // the first of them
    int32_t count;          // 0 = nothing is known
};

// Some consecutive tokens of one sequence and the query heads that share one KV head: row = token * group + query head.
struct AttentionRows {
    KvLayout kv;
    const uint8_t* memory;  // this layer's and KV head's part of page 0
    const int32_t* pages;   // page table of the sequence
    const float* queries;   // of the first token: [group][head_size], rotated and scaled
    int32_t ldq;            // floats from a token to the next
    int32_t group;          // query heads
    int32_t position;       // of the first token
    int32_t num_tokens;
    int32_t sees_to;  // all of them see the positions before this one, also those behind their own
    int32_t first;   // positions before this one are not seen, but by themselves
    int32_t window;  // a position sees itself and the window - 1 before it; 0 = all before it
    bool is_chunked;  // windows do not slide: a position sees those before it as far as the last multiple of `window`
    int32_t length;  // > 0: it sees all so many positions of the sequence, or window / 2 before it and as many behind
    const float* slopes;  // of the query heads: what a score loses with each position between; or nullptr
    float softcap;   // 0 = off
    AttentionAhead ahead;
    int32_t num_fetched;  // how many pages' keys were fetched, when these were what lay ahead

    int32_t rows() const { return num_tokens * group; }
    // With a window of 4, what position 6 sees:   sliding | 0 1 2 [3 4 5 6] 7 |   chunked | 0 1 2 3 | [4 5 6] 7 |
    int32_t first_seen(int32_t at) const {
        if (is_chunked) {
            return at - at % window;
        }
        const int32_t before = length > 0 ? window / 2 : window - 1;
        return std::min(at, window > 0 ? std::max(first, at - before) : first);
    }
    // Behind the last one that is seen.
    int32_t end_seen(int32_t at) const {
        return length == 0 ? std::max(at + 1, sees_to) : window > 0 ? std::min(length, at + window / 2 + 1) : length;
    }
    int32_t first_span() const { return first_seen(position) / kSpanTokens; }
    int32_t last_span() const { return (end_seen(position + num_tokens - 1) - 1) / kSpanTokens; }
    // Of a span, those in which some row sees something.
    AttentionAhead pages_of(int32_t span) const {
        const int32_t first = std::max(first_seen(position), span * kSpanTokens) / kPageTokens;
        const int32_t last = std::min(end_seen(position + num_tokens - 1), (span + 1) * kSpanTokens) - 1;
        return {memory, pages + first, last / kPageTokens - first + 1};
    }
};

// What attention over some spans left of a row: output = sum / weight, all weights being relative to that of e^max, which is
// weight_of_best.
//   sum [head_size], max, weight (0 = nothing was seen yet, the rest means nothing), 14 unused
constexpr int32_t partial_floats(int32_t head_size) { return head_size + 16; }

struct AttentionKernels {
    // How many rows are a good size for a piece of work.
    int32_t (*rows_at_once)(KvType type);
    // Floats of scratch for `attend`, 64-byte aligned.
    size_t (*scratch_floats)(const KvLayout& kv);
    // Has the keys of these pages on their way to this thread's cache.
    void (*fetch)(const KvLayout& kv, const AttentionAhead& pages);
    // Writes the key and value of one head at one position; `head` is the head's part of the page.
    void (*write)(const KvLayout& kv, uint8_t* head, int32_t slot, const float* key, const float* value);
    // Attends to one span; `partials` [rows][partial_floats], written. Returns of how many pages ahead it fetched the keys.
    int32_t (*attend)(const AttentionRows& rows, int32_t span, float* partials, float* scratch);
    // Adds the result of a later span to that of earlier ones.
    void (*merge)(float* partial, const float* later, int32_t head_size);
    void (*finish)(const float* partial, int32_t head_size, float* out);
};

}  // namespace stoker
