// The lanes in one AVX-512 register (F, BW, VL, DQ, VNNI, VBMI not needed). Names and meaning: simd_scalar.hpp.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own headers, PR 105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#ifndef STOKER_FLATTEN
#define STOKER_FLATTEN [[gnu::flatten]]  // what a hot loop calls is inlined whole
#endif
#ifndef STOKER_ISA  // AMX has the same sixteen lanes, under a name of its own
#define STOKER_ISA avx512
#endif
#define STOKER_REGISTER_BYTES 64
#include "simd_lanes.hpp"

namespace stoker::STOKER_ISA {

constexpr bool kUnsignedCodes(int) { return true; }
constexpr bool kDotsBytes = true;
constexpr int kSmallRows = 8;
constexpr int kPanelRows = 4;
constexpr int kPanelTiles = 2;
constexpr int kStreamRows = 48;

STOKER_FIX f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {{_mm512_fmadd_ps(a.v[0], b.v[0], c.v[0])}}; }
STOKER_FIX f32x16 max(f32x16 a, f32x16 b) { return {{_mm512_max_ps(a.v[0], b.v[0])}}; }
STOKER_FIX f32x16 min(f32x16 a, f32x16 b) { return {{_mm512_min_ps(a.v[0], b.v[0])}}; }
STOKER_FIX i32x16 to_i32(f32x16 a) { return {{Integers(_mm512_cvtps_epi32(a.v[0]))}}; }
STOKER_FIX i32x16 load_u8(const uint8_t* p) {
    return {{Integers(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))}};
}
STOKER_FIX i32x16 load_i8(const int8_t* p) {
    return {{Integers(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))}};
}
STOKER_FIX void store_i8(int8_t* p, i32x16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(__m512i(x.v[0])));
}
// Like the one in matmul.inl, from the bytes: eight are summed at once, each 128 too large.
#define STOKER_STORE_BLOCK
inline void store_block(int8_t* p, i32x16 low, i32x16 high, int32_t (&sums)[2]) {
    const __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(__m512i(low.v[0]))),
                                              _mm512_cvtepi32_epi8(__m512i(high.v[0])), 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
    const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(x, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
    sums[0] = _mm256_cvtsi256_si32(halves) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - 16 * 128;
}
// Likewise the one in attention_codes.inl: two vectors of codes, then four, are packed into one.
#define STOKER_STORE_SPLIT
template <int least> inline void store_split(int8_t* high, int8_t* low, const i32x16 (&x)[4], i32x16 (&sums)[2]) {
    const auto pairs = [&](int i) { return _mm512_packs_epi32(__m512i(x[i].v[0]), __m512i(x[i + 1].v[0])); };
    const __m512i a = pairs(0), b = pairs(2), half = _mm512_set1_epi16(128);
    const auto high_of = [&](__m512i codes) { return _mm512_srai_epi16(_mm512_add_epi16(codes, half), 8); };
    const auto low_of = [&](__m512i codes) { return _mm512_and_si512(codes, _mm512_set1_epi16(255)); };
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i h = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(high_of(a), high_of(b)));
    const __m512i packed = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low_of(a), low_of(b)));
    const __m512i l = _mm512_max_epi8(packed, _mm512_set1_epi8(least));
    _mm512_storeu_si512(high, h);
    _mm512_storeu_si512(low, l);
    sums[0].v[0] = Integers(_mm512_dpbusd_epi32(__m512i(sums[0].v[0]), _mm512_set1_epi8(1), h));
    sums[1].v[0] = Integers(_mm512_dpbusd_epi32(__m512i(sums[1].v[0]), _mm512_set1_epi8(1), l));
}
#define STOKER_STORE_FOURTH
inline void store_fourth(uint8_t* line, int32_t first, i32x16 x) {
    _mm512_mask_storeu_epi8(line, 0x1111111111111111ull << first,
                            _mm512_sllv_epi32(__m512i(x.v[0]), _mm512_set1_epi32(8 * first)));
}

STOKER_FIX float reduce_max(f32x16 a) { return _mm512_reduce_max_ps(a.v[0]); }
STOKER_FIX int32_t reduce_add_i32(i32x16 a) { return _mm512_reduce_add_epi32(__m512i(a.v[0])); }
STOKER_FIX uint32_t lanes_below(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v[0], b.v[0], _CMP_LT_OQ); }

STOKER_FIX f32x16 load_f16(const uint16_t* p) {
    return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}};
}
STOKER_FIX void store_f16(uint16_t* p, f32x16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
STOKER_FIX f32x16 load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {{Floats(_mm512_slli_epi32(wide, 16))}};
}

template <int shift, int mask> STOKER_FIX codes field(codes x) {
    __m512i moved = __m512i(x.v[0]);
    if constexpr (shift > 0) moved = _mm512_srli_epi16(moved, shift);
    if constexpr (shift < 0) moved = _mm512_slli_epi16(moved, -shift);
    return {{Bytes(moved) & uint8_t(mask)}};
}
STOKER_FIX codes average(codes a, codes b) { return {{Bytes(_mm512_avg_epu8(__m512i(a.v[0]), __m512i(b.v[0])))}}; }
STOKER_FIX codes look_up(codes index, const uint8_t* table) {
    const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {{Bytes(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), __m512i(index.v[0])))}};
}
// Like the one in operands.inl, for 32 indices at once: 64 entries are two registers, and the upper bits choose among these.
#define STOKER_LOOK_UP_ENTRIES
template <int size> STOKER_FIX __m512i look_up_words(const uint16_t* grid, __m512i index) {
    if constexpr (size == 64) {
        return _mm512_permutex2var_epi16(_mm512_loadu_si512(grid), index, _mm512_loadu_si512(grid + 32));
    } else {
        const __mmask32 is_upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(size / 2));
        return _mm512_mask_blend_epi16(is_upper, look_up_words<size / 2>(grid, index),
                                       look_up_words<size / 2>(grid + size / 2, index));
    }
}
template <int size> STOKER_FIX void look_up_entries(const uint16_t* grid, i32x16& a, i32x16& b) {
    const __m512i both = _mm512_or_si512(__m512i(a.v[0]), _mm512_slli_epi32(__m512i(b.v[0]), 16));
    const __m512i found = look_up_words<size>(grid, both);
    a.v[0] = Integers(_mm512_and_si512(found, _mm512_set1_epi32(0xffff)));
    b.v[0] = Integers(_mm512_srli_epi32(found, 16));
}
template <int first> STOKER_FIX codes widened(codes x) {
    constexpr int a = first, b = first + 1;
    const __m128i order = _mm_setr_epi8(a, -1, b, -1, a + 4, -1, b + 4, -1, a + 8, -1, b + 8, -1, a + 12, -1, b + 12, -1);
    return {{Bytes(_mm512_shuffle_epi8(__m512i(x.v[0]), _mm512_broadcast_i32x4(order)))}};
}
template <int max_code, bool is_unsigned> STOKER_FIX i32x16 dot(i32x16 acc, codes w, quad a) {
    static_assert(is_unsigned);
    return {{Integers(_mm512_dpbusd_epi32(__m512i(acc.v[0]), __m512i(w.v[0]), __m512i(a.v)))}};
}
STOKER_FIX i32x16 dot_whole(i32x16 acc, codes w, quad a) {
    return {{Integers(_mm512_dpwssd_epi32(__m512i(acc.v[0]), __m512i(w.v[0]), __m512i(a.v)))}};
}

}  // namespace stoker::STOKER_ISA
