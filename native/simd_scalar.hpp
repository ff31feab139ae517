// The lanes in plain C++: the reference that every other layer must equal, bit for bit, and what its names mean. What layers
// have in common, by the same names: simd_lanes.hpp.
#pragma once

#define STOKER_FLATTEN  // the reference need not be fast, but compile fast
#define STOKER_ISA scalar
#define STOKER_REGISTER_BYTES 4
#include "simd_lanes.hpp"

namespace stoker::scalar {

constexpr bool kUnsignedCodes(int) { return true; }  // may dot() take the codes u8 as stored, if they go up to this?
constexpr bool kDotsBytes = true;                    // is dot() one instruction? Otherwise dot_whole() takes fewer
constexpr int kSmallRows = 1;                        // rows of one pass while weights stream from memory
constexpr int kPanelRows = 1;                        // rows and weight tiles of one pass over a decoded panel
constexpr int kPanelTiles = 1;
constexpr int kStreamRows = 16;

// a * b + c, rounded once
inline f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) {
    STOKER_EACH(f32x16, Floats{__builtin_fmaf(a.v[i][0], b.v[i][0], c.v[i][0])});
}
// Where one operand is no number, the second one.
inline f32x16 max(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline f32x16 min(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// To nearest even; what does not fit becomes the least integer.
inline int32_t rounded(float x) { return __builtin_fabsf(x) < 0x1p31f ? int32_t(__builtin_nearbyintf(x)) : INT32_MIN; }
inline i32x16 to_i32(const f32x16& a) { STOKER_EACH(i32x16, Integers{rounded(a.v[i][0])}); }
inline i32x16 load_u8(const uint8_t* p) { STOKER_EACH(i32x16, Integers{p[i]}); }
inline i32x16 load_i8(const int8_t* p) { STOKER_EACH(i32x16, Integers{p[i]}); }
inline void store_i8(int8_t* p, const i32x16& x) { for (int i = 0; i < 16; ++i) p[i] = int8_t(x.v[i][0]); }

// Over the lanes, where the order does not change the result
inline float reduce_max(const f32x16& a) {
    float out = a.v[0][0];
    for (int i = 1; i < 16; ++i) out = a.v[i][0] > out ? a.v[i][0] : out;
    return out;
}
inline int32_t reduce_add_i32(const i32x16& a) {
    uint32_t out = 0;
    for (int i = 0; i < 16; ++i) out += uint32_t(a.v[i][0]);
    return int32_t(out);
}
// Bit i: whether a < b in lane i.
inline uint32_t lanes_below(const f32x16& a, const f32x16& b) {
    uint32_t out = 0;
    for (int i = 0; i < 16; ++i) out |= uint32_t(a.v[i][0] < b.v[i][0]) << i;
    return out;
}

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
inline f32x16 load_f16(const uint16_t* p) { STOKER_EACH(f32x16, Floats{half_to_float(p[i])}); }
inline void store_f16(uint16_t* p, const f32x16& x) { for (int i = 0; i < 16; ++i) p[i] = float_to_half(x.v[i][0]); }
inline f32x16 load_bf16(const uint16_t* p) { STOKER_EACH(f32x16, Floats(Naturals{uint32_t(p[i]) << 16})); }

// The bits `mask` of each byte after moving it right by `shift` (left if negative).
template <int shift, int mask> inline codes field(const codes& x) {
    STOKER_EACH(codes, (shift >= 0 ? x.v[i] >> (shift & 7) : x.v[i] << (-shift & 7)) & uint8_t(mask));
}
// Of each byte, rounded up.
inline codes average(const codes& a, const codes& b) {
    STOKER_EACH(codes, (a.v[i] | b.v[i]) - ((a.v[i] ^ b.v[i]) >> 1));
}
inline codes look_up(const codes& index, const uint8_t* table) {
    const auto at = [&](int i, int j) { return table[index.v[i][j]]; };
    STOKER_EACH(codes, (Bytes{at(i, 0), at(i, 1), at(i, 2), at(i, 3)}));
}
// Bytes `first` and first + 1 of each four, as a pair of 16 bits.
template <int first> inline codes widened(const codes& x) {
    STOKER_EACH(codes, (Bytes{x.v[i][first], 0, x.v[i][first + 1], 0}));
}
// acc[o] += sum of w[o][j] * a[j] over 4 inputs: exact in 32 bits. is_unsigned: codes are u8 up to max_code, otherwise s8.
template <int max_code, bool is_unsigned> inline i32x16 dot(i32x16 acc, const codes& w, quad a) {
    for (int i = 0; i < 64; ++i) {
        const uint8_t code = w.v[i / 4][i % 4];
        acc.v[i / 4][0] += (is_unsigned ? int(code) : int(int8_t(code))) * int8_t(a.v[i % 4]);
    }
    return acc;
}
// acc[o] += w[o][0] * a[0] + w[o][1] * a[1] of pairs of 16 bits, of which none is -32768.
inline i32x16 dot_whole(i32x16 acc, const codes& w, quad a) {
    int16_t x[2], y[2];
    std::memcpy(y, &a.v, 4);
    for (int i = 0; i < 16; ++i) {
        std::memcpy(x, &w.v[i], 4);
        acc.v[i][0] += x[0] * y[0] + x[1] * y[1];
    }
    return acc;
}

}  // namespace stoker::scalar
