// Sixteen lanes in one AVX-512 register (F, BW, VL, DQ, VNNI, VBMI not needed). Names and meaning: simd_scalar.hpp.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own headers, PR 105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstdint>

#include "kernels.hpp"

#ifndef STOKER_FLATTEN
#define STOKER_FLATTEN [[gnu::flatten]]  // what a hot loop calls is inlined whole
#endif
#ifndef STOKER_ISA  // AMX has the same sixteen lanes, under a name of its own
#define STOKER_ISA avx512
#endif
namespace stoker::STOKER_ISA {

constexpr int kLanes = 16;
constexpr bool kUnsignedCodes(int) { return true; }
constexpr int kSmallRows = 8;
constexpr int kPanelRows = 4;
constexpr int kPanelTiles = 2;

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
struct mask16 { __mmask16 v; };
struct codes { __m512i v; };

inline f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, f32x16 x) { _mm512_storeu_ps(p, x.v); }
inline f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
inline f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }

inline i32x16 set1_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline i32x16 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_i32(int32_t* p, i32x16 x) { _mm512_storeu_si512(p, x.v); }
inline i32x16 add_i32(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline i32x16 sub_i32(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline i32x16 max_i32(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline i32x16 and_i32(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int n> inline i32x16 shl_i32(i32x16 a) { return {_mm512_slli_epi32(a.v, n)}; }
template <int n> inline i32x16 shr_i32(i32x16 a) { return {_mm512_srli_epi32(a.v, n)}; }
inline f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline i32x16 to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline f32x16 as_f32(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline i32x16 as_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
inline i32x16 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline i32x16 load_i8(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_i8(int8_t* p, i32x16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
// Like the one in matmul.inl, from the bytes: eight are summed at once, each 128 too large.
#define STOKER_STORE_BLOCK
inline void store_block(int8_t* p, i32x16 low, i32x16 high, int32_t (&sums)[2]) {
    const __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(low.v)),
                                              _mm512_cvtepi32_epi8(high.v), 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
    const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(x, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
    sums[0] = _mm256_cvtsi256_si32(halves) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - 16 * 128;
}

inline float reduce_max(f32x16 a) { return _mm512_reduce_max_ps(a.v); }
inline int32_t reduce_add_i32(i32x16 a) { return _mm512_reduce_add_epi32(a.v); }

inline mask16 less(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline uint32_t bits(mask16 m) { return m.v; }
inline f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }

inline f32x16 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(uint16_t* p, f32x16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline f32x16 load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

inline codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_codes(uint8_t* p, codes x) { _mm512_storeu_si512(p, x.v); }
template <int shift, int mask> inline codes field(codes x) {
    __m512i moved = x.v;
    if constexpr (shift > 0) moved = _mm512_srli_epi16(moved, shift);
    if constexpr (shift < 0) moved = _mm512_slli_epi16(moved, -shift);
    return {_mm512_and_si512(moved, _mm512_set1_epi8(char(mask)))};
}
inline codes merge(codes a, codes b) { return {_mm512_or_si512(a.v, b.v)}; }
inline codes minus(codes a, int offset) { return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(char(offset)))}; }
inline codes look_up(codes index, const uint8_t* table) {
    const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), index.v)};
}

struct quad { __m512i v; };
inline quad broadcast4(const int8_t* p) {
    int32_t bits;
    __builtin_memcpy(&bits, p, 4);
    return {_mm512_set1_epi32(bits)};
}
template <int max_code, bool is_unsigned> inline i32x16 dot(i32x16 acc, codes w, quad a) {
    static_assert(is_unsigned);
    return {_mm512_dpbusd_epi32(acc.v, w.v, a.v)};
}

inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace stoker::STOKER_ISA
