// Sixteen lanes in as many registers as they take, and what the compiler knows of vectors of any size. Included by each
// simd_*.hpp, which adds what needs instructions of its own:
//
//   f32x16, i32x16   v[0] | v[1] | ...      lanes 0 ... 15
//   codes            v[0] | v[1] | ...      [16][4] bytes: 4 consecutive k of 16 outputs
//
// Each layer has a namespace of its own, so that code compiled for one instruction set is never linked into another; for the
// same reason the kernels call no inline function of the standard library.
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

namespace stoker::STOKER_ISA {

constexpr int kParts = 64 / STOKER_REGISTER_BYTES;

// Of one register; the second name is for memory, which may begin anywhere.
#define STOKER_VECTOR(name, type)                                            \
    typedef type name __attribute__((vector_size(STOKER_REGISTER_BYTES)));   \
    typedef type name##At __attribute__((vector_size(STOKER_REGISTER_BYTES), aligned(1), may_alias))
STOKER_VECTOR(Floats, float);
STOKER_VECTOR(Integers, int32_t);
STOKER_VECTOR(Naturals, uint32_t);
STOKER_VECTOR(Bytes, uint8_t);
#undef STOKER_VECTOR
typedef int16_t Shorts __attribute__((vector_size(STOKER_REGISTER_BYTES / 2)));
typedef int16_t ShortsAt __attribute__((vector_size(STOKER_REGISTER_BYTES / 2), aligned(1), may_alias));

struct f32x16 { Floats v[kParts]; };
struct i32x16 { Integers v[kParts]; };
struct codes { Bytes v[kParts]; };

#if STOKER_REGISTER_BYTES == 4
#define STOKER_FIX inline  // the reference need not be fast, but compile fast
#else
#define STOKER_FIX inline __attribute__((always_inline))
#endif
#if STOKER_REGISTER_BYTES == 64
#define STOKER_EACH(type, expression) [[maybe_unused]] constexpr int i = 0; return {{expression}}
#else
#define STOKER_EACH(type, expression)        \
    type out;                                \
    for (int i = 0; i < kParts; ++i) {       \
        out.v[i] = (expression);             \
    }                                        \
    return out
#endif

// Floats
STOKER_FIX f32x16 set1(float x) { STOKER_EACH(f32x16, x - Floats{}); }
STOKER_FIX f32x16 load(const float* p) { STOKER_EACH(f32x16, reinterpret_cast<const FloatsAt*>(p)[i]); }
STOKER_FIX void store(float* p, const f32x16& x) {
    for (int i = 0; i < kParts; ++i) reinterpret_cast<FloatsAt*>(p)[i] = x.v[i];
}
STOKER_FIX f32x16 add(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.v[i] + b.v[i]); }
STOKER_FIX f32x16 sub(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.v[i] - b.v[i]); }
STOKER_FIX f32x16 mul(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.v[i] * b.v[i]); }
STOKER_FIX f32x16 div(const f32x16& a, const f32x16& b) { STOKER_EACH(f32x16, a.v[i] / b.v[i]); }
// a where x > 0, otherwise b
STOKER_FIX f32x16 if_positive(const f32x16& x, const f32x16& a, const f32x16& b) {
    STOKER_EACH(f32x16, x.v[i] > Floats{} ? a.v[i] : b.v[i]);
}

// Integers, and the same bits as the other kind. Sums are taken modulo 2^32.
STOKER_FIX i32x16 set1_i32(int32_t x) { STOKER_EACH(i32x16, x - Integers{}); }
STOKER_FIX i32x16 load_i32(const int32_t* p) { STOKER_EACH(i32x16, reinterpret_cast<const IntegersAt*>(p)[i]); }
STOKER_FIX void store_i32(int32_t* p, const i32x16& x) {
    for (int i = 0; i < kParts; ++i) reinterpret_cast<IntegersAt*>(p)[i] = x.v[i];
}
STOKER_FIX i32x16 add_i32(const i32x16& a, const i32x16& b) {
    STOKER_EACH(i32x16, Integers(Naturals(a.v[i]) + Naturals(b.v[i])));
}
STOKER_FIX i32x16 sub_i32(const i32x16& a, const i32x16& b) {
    STOKER_EACH(i32x16, Integers(Naturals(a.v[i]) - Naturals(b.v[i])));
}
STOKER_FIX i32x16 and_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.v[i] & b.v[i]); }
STOKER_FIX i32x16 or_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.v[i] | b.v[i]); }
STOKER_FIX i32x16 max_i32(const i32x16& a, const i32x16& b) { STOKER_EACH(i32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
template <int n> STOKER_FIX i32x16 shl_i32(const i32x16& a) { STOKER_EACH(i32x16, Integers(Naturals(a.v[i]) << n)); }
template <int n> STOKER_FIX i32x16 shr_i32(const i32x16& a) { STOKER_EACH(i32x16, Integers(Naturals(a.v[i]) >> n)); }
STOKER_FIX f32x16 to_f32(const i32x16& a) { STOKER_EACH(f32x16, __builtin_convertvector(a.v[i], Floats)); }
STOKER_FIX f32x16 as_f32(const i32x16& a) { STOKER_EACH(f32x16, Floats(a.v[i])); }
STOKER_FIX i32x16 as_i32(const f32x16& a) { STOKER_EACH(i32x16, Integers(a.v[i])); }
STOKER_FIX f32x16 abs(const f32x16& a) { STOKER_EACH(f32x16, Floats(Integers(a.v[i]) & 0x7fffffff)); }

// The low halves of integers.
STOKER_FIX void store_i16(int16_t* p, const i32x16& x) {
    for (int i = 0; i < kParts; ++i) reinterpret_cast<ShortsAt*>(p)[i] = __builtin_convertvector(x.v[i], Shorts);
}

// Codes: 64 bytes of weights
STOKER_FIX codes load_codes(const uint8_t* p) { STOKER_EACH(codes, reinterpret_cast<const BytesAt*>(p)[i]); }
STOKER_FIX void store_codes(uint8_t* p, const codes& x) {
    for (int i = 0; i < kParts; ++i) reinterpret_cast<BytesAt*>(p)[i] = x.v[i];
}
STOKER_FIX codes as_codes(const i32x16& a) { STOKER_EACH(codes, Bytes(a.v[i])); }
STOKER_FIX codes merge(const codes& a, const codes& b) { STOKER_EACH(codes, a.v[i] | b.v[i]); }
STOKER_FIX codes plus(const codes& a, const codes& b) { STOKER_EACH(codes, a.v[i] + b.v[i]); }
// Two bits of each byte, from the given one on.
STOKER_FIX codes pairs_at(const codes& a, int bit) {
    STOKER_EACH(codes, Bytes(Naturals(a.v[i]) >> bit & 0x03030303u));
}
STOKER_FIX codes minus(const codes& a, int offset) { STOKER_EACH(codes, a.v[i] - uint8_t(offset)); }

// Four bytes of a row, as often as a register has room.
struct quad { Bytes v; };
STOKER_FIX quad broadcast4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return {Bytes(four - Integers{})};
}

STOKER_FIX void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache
STOKER_FIX void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace stoker::STOKER_ISA
