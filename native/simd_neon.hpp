// The lanes in four registers of Arm's Advanced SIMD: plain, with dot products, or with those and 8-bit matrix products,
// by what the compiler is told to use. Names and meaning: simd_scalar.hpp.
#pragma once

#include <arm_neon.h>

#ifndef STOKER_FLATTEN
#define STOKER_FLATTEN [[gnu::flatten]]
#endif
#ifndef STOKER_ISA  // the same lanes with more instructions have names of their own
#define STOKER_ISA neon
#endif
#define STOKER_REGISTER_BYTES 16
#include "simd_lanes.hpp"

namespace stoker::STOKER_ISA {

// Without products of unsigned with signed bytes, codes up to 127 are both; others are made signed.
constexpr bool kUnsignedCodes(int max_code) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return max_code <= 255;
#else
    return max_code <= 127;
#endif
}
#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool kDotsBytes = true;
#else
constexpr bool kDotsBytes = false;
#endif
constexpr int kSmallRows = 4;  // their sums take half of the 32 registers
constexpr int kPanelRows = 4;
constexpr int kPanelTiles = 1;
constexpr int kStreamRows = 16;

STOKER_FIX f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { STOKER_EACH(f32x16, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Not vmaxq and vminq: where one operand is not a number, the result is the second one.
STOKER_FIX float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
STOKER_FIX f32x16 max(f32x16 a, f32x16 b) { STOKER_EACH(f32x16, max4(a.v[i], b.v[i])); }
STOKER_FIX f32x16 min(f32x16 a, f32x16 b) { STOKER_EACH(f32x16, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
STOKER_FIX i32x16 to_i32(f32x16 a) {  // the instruction saturates, and makes 0 of what is not a number
    const float32x4_t limit = vdupq_n_f32(0x1p31f);
    STOKER_EACH(i32x16, vbslq_s32(vcaltq_f32(a.v[i], limit), vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(INT32_MIN)));
}
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

STOKER_FIX uint32_t lanes_below(f32x16 a, f32x16 b) {
    constexpr uint32_t kPlaces[4] = {1, 2, 4, 8};
    const uint32x4_t places = vld1q_u32(kPlaces);
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        out |= vaddvq_u32(vandq_u32(vcltq_f32(a.v[i], b.v[i]), places)) << 4 * i;
    }
    return out;
}

STOKER_FIX f32x16 load_f16(const uint16_t* p) {
    STOKER_EACH(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
STOKER_FIX void store_f16(uint16_t* p, f32x16 x) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
STOKER_FIX f32x16 load_bf16(const uint16_t* p) {
    STOKER_EACH(f32x16, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
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
STOKER_FIX codes average(codes a, codes b) { STOKER_EACH(codes, vrhaddq_u8(a.v[i], b.v[i])); }
STOKER_FIX codes look_up(codes index, const uint8_t* table) {
    const uint8x16_t row = vld1q_u8(table);
    STOKER_EACH(codes, vqtbl1q_u8(row, index.v[i]));
}

template <int first> STOKER_FIX codes widened(codes x) {
    constexpr uint8_t a = first, b = first + 1, none = 255;
    constexpr uint8_t kOrder[16] = {a, none, b, none, a + 4, none, b + 4, none, a + 8, none, b + 8, none, a + 12, none, b + 12, none};
    const uint8x16_t order = vld1q_u8(kOrder);
    STOKER_EACH(codes, vqtbl1q_u8(x.v[i], order));
}
template <int max_code, bool is_unsigned> STOKER_FIX i32x16 dot(i32x16 acc, codes w, quad a) {
    const int8x16_t x = vreinterpretq_s8_u8(a.v);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    static_assert(is_unsigned);
    STOKER_EACH(i32x16, vusdotq_s32(acc.v[i], w.v[i], x));
#elif defined(__ARM_FEATURE_DOTPROD)
    STOKER_EACH(i32x16, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), x));
#else
    i32x16 out;
    for (int i = 0; i < 4; ++i) {
        // Products, added in pairs: at most 2 * 128 * 127 in 16 bits.
        const int8x16_t s = vreinterpretq_s8_u8(w.v[i]);
        const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(s), vget_low_s8(x)), vmull_high_s8(s, x));
        out.v[i] = vpadalq_s16(acc.v[i], pairs);
    }
    return out;
#endif
}
STOKER_FIX i32x16 dot_whole(i32x16 acc, codes w, quad a) {
    const int16x8_t x = vreinterpretq_s16_u8(a.v);
    i32x16 out;
    for (int i = 0; i < 4; ++i) {
        const int16x8_t pairs = vreinterpretq_s16_u8(w.v[i]);
        const int32x4_t low = vmull_s16(vget_low_s16(pairs), vget_low_s16(x));
        out.v[i] = vaddq_s32(acc.v[i], vpaddq_s32(low, vmull_high_s16(pairs, x)));
    }
    return out;
}

}  // namespace stoker::STOKER_ISA
