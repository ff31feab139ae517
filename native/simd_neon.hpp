// Sixteen lanes in four registers of Arm's Advanced SIMD: plain, with dot products, or with those and 8-bit matrix products,
// by what the compiler is told to use. Names and meaning: simd_scalar.hpp.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels.hpp"

#ifndef STOKER_FLATTEN
#define STOKER_FLATTEN [[gnu::flatten]]
#endif
#ifndef STOKER_ISA  // the same lanes with more instructions have names of their own
#define STOKER_ISA neon
#endif
namespace stoker::STOKER_ISA {

constexpr int kLanes = 16;
// Without products of unsigned with signed bytes, codes up to 127 are both; others are made signed.
constexpr bool kUnsignedCodes(int max_code) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return max_code <= 255;
#else
    return max_code <= 127;
#endif
}
constexpr int kSmallRows = 4;  // their sums take half of the 32 registers
constexpr int kPanelRows = 4;
constexpr int kPanelTiles = 1;

struct f32x16 { float32x4_t v[4]; };
struct i32x16 { int32x4_t v[4]; };
struct mask16 { uint32x4_t v[4]; };
struct codes { uint8x16_t v[4]; };

#define STOKER_FOUR(type, expression)    \
    type out;                            \
    for (int i = 0; i < 4; ++i) {        \
        out.v[i] = (expression);         \
    }                                    \
    return out
#define STOKER_FIX inline __attribute__((always_inline))

STOKER_FIX f32x16 set1(float x) { STOKER_FOUR(f32x16, vdupq_n_f32(x)); }
STOKER_FIX f32x16 load(const float* p) { STOKER_FOUR(f32x16, vld1q_f32(p + 4 * i)); }
STOKER_FIX void store(float* p, f32x16 x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
STOKER_FIX f32x16 add(f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, vaddq_f32(a.v[i], b.v[i])); }
STOKER_FIX f32x16 sub(f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, vsubq_f32(a.v[i], b.v[i])); }
STOKER_FIX f32x16 mul(f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, vmulq_f32(a.v[i], b.v[i])); }
STOKER_FIX f32x16 div(f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, vdivq_f32(a.v[i], b.v[i])); }
STOKER_FIX f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { STOKER_FOUR(f32x16, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Not vmaxq and vminq: where one operand is not a number, the result is the second one.
STOKER_FIX float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
STOKER_FIX f32x16 max(f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, max4(a.v[i], b.v[i])); }
STOKER_FIX f32x16 min(f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
STOKER_FIX f32x16 abs(f32x16 a) { STOKER_FOUR(f32x16, vabsq_f32(a.v[i])); }
STOKER_FIX f32x16 sqrt(f32x16 a) { STOKER_FOUR(f32x16, vsqrtq_f32(a.v[i])); }

STOKER_FIX i32x16 set1_i32(int32_t x) { STOKER_FOUR(i32x16, vdupq_n_s32(x)); }
STOKER_FIX i32x16 load_i32(const int32_t* p) { STOKER_FOUR(i32x16, vld1q_s32(p + 4 * i)); }
STOKER_FIX void store_i32(int32_t* p, i32x16 x) {
    for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.v[i]);
}
STOKER_FIX i32x16 add_i32(i32x16 a, i32x16 b) { STOKER_FOUR(i32x16, vaddq_s32(a.v[i], b.v[i])); }
STOKER_FIX i32x16 sub_i32(i32x16 a, i32x16 b) { STOKER_FOUR(i32x16, vsubq_s32(a.v[i], b.v[i])); }
STOKER_FIX i32x16 max_i32(i32x16 a, i32x16 b) { STOKER_FOUR(i32x16, vmaxq_s32(a.v[i], b.v[i])); }
STOKER_FIX i32x16 and_i32(i32x16 a, i32x16 b) { STOKER_FOUR(i32x16, vandq_s32(a.v[i], b.v[i])); }
template <int n> STOKER_FIX i32x16 shl_i32(i32x16 a) { STOKER_FOUR(i32x16, vshlq_n_s32(a.v[i], n)); }
template <int n> STOKER_FIX i32x16 shr_i32(i32x16 a) {
    STOKER_FOUR(i32x16, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), n)));
}
STOKER_FIX f32x16 to_f32(i32x16 a) { STOKER_FOUR(f32x16, vcvtq_f32_s32(a.v[i])); }
STOKER_FIX i32x16 to_i32(f32x16 a) {  // the instruction saturates, and makes 0 of what is not a number
    const float32x4_t limit = vdupq_n_f32(0x1p31f);
    STOKER_FOUR(i32x16, vbslq_s32(vcaltq_f32(a.v[i], limit), vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(INT32_MIN)));
}
STOKER_FIX f32x16 as_f32(i32x16 a) { STOKER_FOUR(f32x16, vreinterpretq_f32_s32(a.v[i])); }
STOKER_FIX i32x16 as_i32(f32x16 a) { STOKER_FOUR(i32x16, vreinterpretq_s32_f32(a.v[i])); }
STOKER_FIX i32x16 widen(int16x8_t low, int16x8_t high) {
    return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}
STOKER_FIX i32x16 load_u8(const uint8_t* p) {
    const uint8x16_t x = vld1q_u8(p);
    return widen(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s16_u16(vmovl_high_u8(x)));
}
STOKER_FIX i32x16 load_i8(const int8_t* p) {
    const int8x16_t x = vld1q_s8(p);
    return widen(vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
}
STOKER_FIX void store_i8(int8_t* p, i32x16 x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

STOKER_FIX float reduce_max(f32x16 a) {
    const float32x4_t four = max4(max4(a.v[0], a.v[1]), max4(a.v[2], a.v[3]));
    const float32x4_t two = max4(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(max4(two, vextq_f32(two, two, 1)), 0);
}
STOKER_FIX int32_t reduce_add_i32(i32x16 a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}

STOKER_FIX mask16 less(f32x16 a, f32x16 b) { STOKER_FOUR(mask16, vcltq_f32(a.v[i], b.v[i])); }
STOKER_FIX uint32_t bits(mask16 m) {
    constexpr uint32_t kPlaces[4] = {1, 2, 4, 8};
    const uint32x4_t places = vld1q_u32(kPlaces);
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        out |= vaddvq_u32(vandq_u32(m.v[i], places)) << 4 * i;
    }
    return out;
}
STOKER_FIX f32x16 select(mask16 m, f32x16 a, f32x16 b) { STOKER_FOUR(f32x16, vbslq_f32(m.v[i], a.v[i], b.v[i])); }

STOKER_FIX f32x16 load_f16(const uint16_t* p) {
    STOKER_FOUR(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
STOKER_FIX void store_f16(uint16_t* p, f32x16 x) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
STOKER_FIX f32x16 load_bf16(const uint16_t* p) {
    STOKER_FOUR(f32x16, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}

STOKER_FIX codes load_codes(const uint8_t* p) { STOKER_FOUR(codes, vld1q_u8(p + 16 * i)); }
STOKER_FIX void store_codes(uint8_t* p, codes x) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, x.v[i]);
}
template <int shift, int mask> STOKER_FIX codes field(codes x) {
    codes out;
    for (int i = 0; i < 4; ++i) {
        uint8x16_t moved = x.v[i];
        if constexpr (shift > 0) moved = vshrq_n_u8(moved, shift);
        if constexpr (shift < 0) moved = vshlq_n_u8(moved, -shift);
        out.v[i] = vandq_u8(moved, vdupq_n_u8(uint8_t(mask)));
    }
    return out;
}
STOKER_FIX codes merge(codes a, codes b) { STOKER_FOUR(codes, vorrq_u8(a.v[i], b.v[i])); }
STOKER_FIX codes minus(codes a, int offset) { STOKER_FOUR(codes, vsubq_u8(a.v[i], vdupq_n_u8(uint8_t(offset)))); }
STOKER_FIX codes look_up(codes index, const uint8_t* table) {
    const uint8x16_t row = vld1q_u8(table);
    STOKER_FOUR(codes, vqtbl1q_u8(row, index.v[i]));
}

struct quad { int8x16_t v; };
STOKER_FIX quad broadcast4(const int8_t* p) {
    int32_t bits;
    __builtin_memcpy(&bits, p, 4);
    return {vreinterpretq_s8_s32(vdupq_n_s32(bits))};
}
template <int max_code, bool is_unsigned> STOKER_FIX i32x16 dot(i32x16 acc, codes w, quad a) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    static_assert(is_unsigned);
    STOKER_FOUR(i32x16, vusdotq_s32(acc.v[i], w.v[i], a.v));
#elif defined(__ARM_FEATURE_DOTPROD)
    STOKER_FOUR(i32x16, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), a.v));
#else
    i32x16 out;
    for (int i = 0; i < 4; ++i) {
        // Products, added in pairs: at most 2 * 128 * 127 in 16 bits.
        const int8x16_t s = vreinterpretq_s8_u8(w.v[i]);
        const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(s), vget_low_s8(a.v)), vmull_high_s8(s, a.v));
        out.v[i] = vpadalq_s16(acc.v[i], pairs);
    }
    return out;
#endif
}

STOKER_FIX void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache
STOKER_FIX void prefetch(const void* p) { __builtin_prefetch(p); }

#undef STOKER_FOUR
#undef STOKER_FIX

}  // namespace stoker::STOKER_ISA
