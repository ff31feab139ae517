// The lanes in two AVX2 registers, with the dot products of AVX-VNNI where the compiler is told to use them.
// Names and meaning: simd_scalar.hpp.
#pragma once

#include <immintrin.h>

#ifndef STOKER_FLATTEN
#define STOKER_FLATTEN [[gnu::flatten]]
#endif
#ifndef STOKER_ISA  // AVX-VNNI has the same lanes, under a name of its own
#define STOKER_ISA avx2
#endif
#define STOKER_REGISTER_BYTES 32
#include "simd_lanes.hpp"

namespace stoker::STOKER_ISA {

// Without VNNI pairs of products are added in 16 bits: exact for codes up to 127; others are made signed, and |w| <= 128.
constexpr bool kUnsignedCodes(int max_code) {
#if defined(__AVXVNNI__)
    return max_code <= 255;
#else
    return max_code <= 127;
#endif
}
#if defined(__AVXVNNI__)
constexpr bool kDotsBytes = true;
#else
constexpr bool kDotsBytes = false;
#endif
constexpr int kSmallRows = 4;
constexpr int kPanelRows = 4;
constexpr int kPanelTiles = 1;
constexpr int kStreamRows = 16;

STOKER_FIX f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { STOKER_EACH(f32x16, _mm256_fmadd_ps(a.v[i], b.v[i], c.v[i])); }
STOKER_FIX f32x16 max(f32x16 a, f32x16 b) { STOKER_EACH(f32x16, _mm256_max_ps(a.v[i], b.v[i])); }
STOKER_FIX f32x16 min(f32x16 a, f32x16 b) { STOKER_EACH(f32x16, _mm256_min_ps(a.v[i], b.v[i])); }
STOKER_FIX i32x16 to_i32(f32x16 a) { STOKER_EACH(i32x16, Integers(_mm256_cvtps_epi32(a.v[i]))); }
STOKER_FIX i32x16 load_u8(const uint8_t* p) {
    STOKER_EACH(i32x16, Integers(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i)))));
}
STOKER_FIX i32x16 load_i8(const int8_t* p) {
    STOKER_EACH(i32x16, Integers(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i)))));
}
STOKER_FIX void store_i8(int8_t* p, i32x16 x) {  // the low bytes of each lane, gathered by a shuffle
    const __m256i low = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1,
                                         -1, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int i = 0; i < 2; ++i) {
        const __m256i bytes = _mm256_shuffle_epi8(__m256i(x.v[i]), low);
        const int32_t parts[2] = {_mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4)};
        __builtin_memcpy(p + 8 * i, parts, 8);
    }
}

STOKER_FIX float reduce_max(f32x16 a) {
    const __m256 eight = _mm256_max_ps(a.v[0], a.v[1]);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
STOKER_FIX int32_t reduce_add_i32(i32x16 a) {
    const __m256i eight = __m256i(Naturals(a.v[0]) + Naturals(a.v[1]));  // wraps where the sum is of what is no number
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
STOKER_FIX uint32_t lanes_below(f32x16 a, f32x16 b) {
    const auto part = [&](int i) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.v[i], b.v[i], _CMP_LT_OQ))); };
    return part(0) | part(1) << 8;
}

STOKER_FIX f32x16 load_f16(const uint16_t* p) {
    STOKER_EACH(f32x16, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i))));
}
STOKER_FIX void store_f16(uint16_t* p, f32x16 x) {
    for (int i = 0; i < 2; ++i) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8 * i), _mm256_cvtps_ph(x.v[i], _MM_FROUND_TO_NEAREST_INT));
    }
}
STOKER_FIX f32x16 load_bf16(const uint16_t* p) {
    STOKER_EACH(f32x16, Floats(_mm256_slli_epi32(
                            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i))), 16)));
}

template <int shift, int mask> STOKER_FIX codes field(codes x) {
    codes out;
    for (int i = 0; i < 2; ++i) {
        __m256i moved = __m256i(x.v[i]);
        if constexpr (shift > 0) moved = _mm256_srli_epi16(moved, shift);
        if constexpr (shift < 0) moved = _mm256_slli_epi16(moved, -shift);
        out.v[i] = Bytes(moved) & uint8_t(mask);
    }
    return out;
}
STOKER_FIX codes average(codes a, codes b) {
    STOKER_EACH(codes, Bytes(_mm256_avg_epu8(__m256i(a.v[i]), __m256i(b.v[i]))));
}
STOKER_FIX codes look_up(codes index, const uint8_t* table) {
    const __m256i row = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    STOKER_EACH(codes, Bytes(_mm256_shuffle_epi8(row, __m256i(index.v[i]))));
}
template <int first> STOKER_FIX codes widened(codes x) {
    constexpr int a = first, b = first + 1;
    const __m128i order = _mm_setr_epi8(a, -1, b, -1, a + 4, -1, b + 4, -1, a + 8, -1, b + 8, -1, a + 12, -1, b + 12, -1);
    STOKER_EACH(codes, Bytes(_mm256_shuffle_epi8(__m256i(x.v[i]), _mm256_broadcastsi128_si256(order))));
}
template <int max_code, bool is_unsigned> STOKER_FIX i32x16 dot(i32x16 acc, codes w, quad a) {
#if defined(__AVXVNNI__)
    static_assert(is_unsigned);
    STOKER_EACH(i32x16, Integers(_mm256_dpbusd_avx_epi32(__m256i(acc.v[i]), __m256i(w.v[i]), __m256i(a.v))));
#else
    const __m256i ones = _mm256_set1_epi16(1), x = __m256i(a.v);
    i32x16 out;
    for (int i = 0; i < 2; ++i) {
        // u8 x s8, added in pairs: at most 2 * 127 * 127 or, with the sign moved to a, 2 * 128 * 127.
        const __m256i v = __m256i(w.v[i]);
        const __m256i pairs = is_unsigned ? _mm256_maddubs_epi16(v, x)
                                          : _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(x, v));
        out.v[i] = acc.v[i] + Integers(_mm256_madd_epi16(pairs, ones));
    }
    return out;
#endif
}
STOKER_FIX i32x16 dot_whole(i32x16 acc, codes w, quad a) {
#if defined(__AVXVNNI__)
    STOKER_EACH(i32x16, Integers(_mm256_dpwssd_avx_epi32(__m256i(acc.v[i]), __m256i(w.v[i]), __m256i(a.v))));
#else
    STOKER_EACH(i32x16, acc.v[i] + Integers(_mm256_madd_epi16(__m256i(w.v[i]), __m256i(a.v))));
#endif
}

}  // namespace stoker::STOKER_ISA
