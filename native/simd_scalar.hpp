// Sixteen lanes in plain C++: the reference that every other layer must equal, bit for bit.
// Each simd_*.hpp defines the same names in its own namespace, so that code compiled for one instruction set is never
// linked into another; for the same reason the kernels call no inline function of the standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

#ifndef STOKER_FLATTEN
#define STOKER_FLATTEN  // the reference need not be fast, but compile fast
#endif
#define STOKER_ISA scalar
namespace stoker::scalar {

constexpr int kLanes = 16;
constexpr bool kUnsignedCodes(int) { return true; }  // may dot() take the codes u8 as stored, if they go up to this?
constexpr int kSmallRows = 1;                        // rows of one pass while weights stream from memory
constexpr int kPanelRows = 1;                        // rows and weight tiles of one pass over a decoded panel
constexpr int kPanelTiles = 1;

struct f32x16 { float lane[16]; };
struct i32x16 { int32_t lane[16]; };
struct mask16 { bool lane[16]; };
struct codes { uint8_t byte[64]; };  // 4 consecutive k of 16 outputs: [16][4]

#define STOKER_EACH(type, expression)        \
    type out;                                \
    for (int i = 0; i < 16; ++i) {           \
        out.lane[i] = (expression);          \
    }                                        \
    return out

// Floats
inline f32x16 set1(float x) { STOKER_EACH(f32x16, x); }
inline f32x16 load(const float* p) { STOKER_EACH(f32x16, p[i]); }
inline void store(float* p, const f32x16& x) { std::memcpy(p, x.lane, 64); }
inline f32x16 add(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.lane[i] + b.lane[i]); }
inline f32x16 sub(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.lane[i] - b.lane[i]); }
inline f32x16 mul(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.lane[i] * b.lane[i]); }
inline f32x16 div(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.lane[i] / b.lane[i]); }
inline f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) {  // a * b + c, rounded once
    STOKER_EACH(f32x16, __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
inline f32x16 max(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
inline f32x16 min(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
inline f32x16 abs(const f32x16& a) { STOKER_EACH(f32x16, __builtin_fabsf(a.lane[i])); }
inline f32x16 sqrt(const f32x16& a) { STOKER_EACH(f32x16, __builtin_sqrtf(a.lane[i])); }

// Integers, conversions (float to integer rounds to nearest even)
inline i32x16 set1_i32(int32_t x) { STOKER_EACH(i32x16, x); }
inline i32x16 load_i32(const int32_t* p) { STOKER_EACH(i32x16, p[i]); }
inline void store_i32(int32_t* p, const i32x16& x) { std::memcpy(p, x.lane, 64); }
inline i32x16 add_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.lane[i] + b.lane[i]); }
inline i32x16 sub_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.lane[i] - b.lane[i]); }
inline i32x16 max_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
inline i32x16 and_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.lane[i] & b.lane[i]); }
template <int n> inline i32x16 shl_i32(const i32x16& a) { STOKER_EACH(i32x16, int32_t(uint32_t(a.lane[i]) << n)); }
template <int n> inline i32x16 shr_i32(const i32x16& a) { STOKER_EACH(i32x16, int32_t(uint32_t(a.lane[i]) >> n)); }
inline f32x16 to_f32(const i32x16& a) { STOKER_EACH(f32x16, float(a.lane[i])); }
inline i32x16 to_i32(const f32x16& a) {  // what does not fit becomes the least integer
    STOKER_EACH(i32x16, __builtin_fabsf(a.lane[i]) < 0x1p31f ? int32_t(__builtin_nearbyintf(a.lane[i])) : INT32_MIN);
}
inline f32x16 as_f32(const i32x16& a) { f32x16 out; std::memcpy(&out, &a, 64); return out; }
inline i32x16 as_i32(const f32x16& a) { i32x16 out; std::memcpy(&out, &a, 64); return out; }
inline i32x16 load_u8(const uint8_t* p) { STOKER_EACH(i32x16, p[i]); }
inline i32x16 load_i8(const int8_t* p) { STOKER_EACH(i32x16, p[i]); }
inline void store_i8(int8_t* p, const i32x16& x) { for (int i = 0; i < 16; ++i) p[i] = int8_t(x.lane[i]); }

// Over the lanes, where the order does not change the result
inline float reduce_max(const f32x16& a) {
    float out = a.lane[0];
    for (int i = 1; i < 16; ++i) out = a.lane[i] > out ? a.lane[i] : out;
    return out;
}
inline int32_t reduce_add_i32(const i32x16& a) {
    int32_t out = 0;
    for (int i = 0; i < 16; ++i) out += a.lane[i];
    return out;
}

// Choice by lane
inline mask16 less(const f32x16& a, const f32x16& b) { STOKER_EACH(mask16, a.lane[i] < b.lane[i]); }
inline uint32_t bits(const mask16& m) {
    uint32_t out = 0;
    for (int i = 0; i < 16; ++i) {
        out |= uint32_t(m.lane[i]) << i;
    }
    return out;
}
inline f32x16 select(const mask16& m, const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, m.lane[i] ? a.lane[i] : b.lane[i]); }

// Half and brain floats
inline float half_to_float(uint16_t h) {
    const uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        bits = (exponent + 112) << 23 | mantissa << 13;
    } else {  // zero or subnormal: mantissa * 2^-24
        const float x = float(mantissa) * 0x1p-24f;
        std::memcpy(&bits, &x, 4);
    }
    bits |= uint32_t(h & 0x8000) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline uint16_t float_to_half(float x) {  // nearest even, as the hardware does
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    }
    if (magnitude >= 0x477ff000) {  // 65520 and more round to infinity
        return sign | 0x7c00;
    }
    if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24; adding 0.5 puts that unit in the last place
        float y;
        std::memcpy(&y, &magnitude, 4);
        y += 0.5f;
        std::memcpy(&bits, &y, 4);
        return uint16_t(sign | (bits - 0x3f000000));
    }
    return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}
inline f32x16 load_f16(const uint16_t* p) { STOKER_EACH(f32x16, half_to_float(p[i])); }
inline void store_f16(uint16_t* p, const f32x16& x) { for (int i = 0; i < 16; ++i) p[i] = float_to_half(x.lane[i]); }
inline f32x16 load_bf16(const uint16_t* p) {
    i32x16 bits;
    for (int i = 0; i < 16; ++i) bits.lane[i] = int32_t(uint32_t(p[i]) << 16);
    return as_f32(bits);
}

// Codes: 64 bytes of weights
#define STOKER_BYTES(expression)             \
    codes out;                               \
    for (int i = 0; i < 64; ++i) {           \
        out.byte[i] = uint8_t(expression);   \
    }                                        \
    return out
inline codes load_codes(const uint8_t* p) { STOKER_BYTES(p[i]); }
inline void store_codes(uint8_t* p, const codes& x) { std::memcpy(p, x.byte, 64); }
// The bits `mask` of each byte after moving it right by `shift` (left if negative).
template <int shift, int mask> inline codes field(const codes& x) {
    STOKER_BYTES((shift >= 0 ? x.byte[i] >> (shift & 7) : x.byte[i] << (-shift & 7)) & mask);
}
inline codes merge(const codes& a, const codes& b) { STOKER_BYTES(a.byte[i] | b.byte[i]); }
inline codes minus(const codes& a, int offset) { STOKER_BYTES(a.byte[i] - offset); }
inline codes look_up(const codes& index, const uint8_t* table) { STOKER_BYTES(table[index.byte[i]]); }

// acc[o] += sum of w[o][j] * a[j] over 4 inputs: exact in 32 bits. is_unsigned: codes are u8 up to max_code, otherwise s8.
struct quad { int8_t a[4]; };
inline quad broadcast4(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
template <int max_code, bool is_unsigned> inline i32x16 dot(i32x16 acc, const codes& w, quad a) {
    for (int i = 0; i < 64; ++i) {
        acc.lane[i / 4] += (is_unsigned ? int(w.byte[i]) : int(int8_t(w.byte[i]))) * a.a[i % 4];
    }
    return acc;
}

inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache
inline void prefetch(const void* p) { __builtin_prefetch(p); }

#undef STOKER_EACH
#undef STOKER_BYTES

}  // namespace stoker::scalar
