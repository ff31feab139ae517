// Row operations. Included once per instruction set, after its simd_*.hpp and math.inl. Sums run over 16 fixed lanes:
//
//   lane[i] = x[i] op x[i + 16] op x[i + 32] ...  in order, then one tree over the lanes
#include "rows.hpp"

namespace stoker::STOKER_ISA {

inline void rms_norm(const float* x, const float* weight, int32_t n, float eps, float* y) {
    f32x16 squares = set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 v = load(x + i);
        squares = fma(v, v, squares);
    }
    const f32x16 factor = set1(1.0f / __builtin_sqrtf(reduce_add(squares) / float(n) + eps));
    for (int32_t i = 0; i < n; i += 16) {
        store(y + i, mul(mul(load(x + i), factor), load(weight + i)));
    }
}

// 4 products, 2 of them fused, for a pair.
inline void rotate_pair(float& a, float& b, float cosine, float sine) {
    const float x = a, y = b;
    a = __builtin_fmaf(x, cosine, -(y * sine));
    b = __builtin_fmaf(y, cosine, x * sine);
}

inline void rotate_halves(float* x, const float* table, int32_t half) {
    int32_t i = 0;
    for (; i + 16 <= half; i += 16) {
        const f32x16 a = load(x + i), b = load(x + half + i);
        const f32x16 cosine = load(table + i), sine = load(table + half + i);
        store(x + i, fma(a, cosine, sub(set1(0), mul(b, sine))));
        store(x + half + i, fma(b, cosine, mul(a, sine)));
    }
    for (; i < half; ++i) {
        rotate_pair(x[i], x[half + i], table[i], table[half + i]);
    }
}

inline void rotate(float* x, const float* table, int32_t dim, bool adjacent) {
    const int32_t half = dim / 2;
    if (!adjacent) {
        return rotate_halves(x, table, half);
    }
    for (int32_t i = 0; i < half; ++i) {
        rotate_pair(x[2 * i], x[2 * i + 1], table[i], table[half + i]);
    }
}

// GELU(x) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x³): the tanh formula, with one exponential.
inline f32x16 gelu_tanh(f32x16 x) {
    const f32x16 inner = fma(mul(x, x), set1(0.044715f), set1(1));
    return gated(x, mul(mul(x, set1(1.5957691216057308f)), inner));
}

inline void activate(Activation kind, const float* gate, const float* up, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 x = load(gate + i);
        const f32x16 active = kind == Activation::silu ? gated(x, x) : gelu_tanh(x);
        store(out + i, mul(active, load(up + i)));
    }
}

inline void add_row(float* x, const float* y, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, add(load(x + i), load(y + i)));
    }
}

inline void scale_row(float* x, float factor, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, mul(load(x + i), set1(factor)));
    }
}

inline void softcap_row(float* x, float cap, int32_t n) {
    const auto capped = [&](f32x16 v) { return mul(tanh(div(v, set1(cap))), set1(cap)); };
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        store(x + i, capped(load(x + i)));
    }
    alignas(64) float rest[16] = {};
    __builtin_memcpy(rest, x + i, (n - i) * sizeof(float));
    store(rest, capped(load(rest)));
    __builtin_memcpy(x + i, rest, (n - i) * sizeof(float));
}

constexpr RowKernels kRowKernels = {rms_norm, rotate, activate, add_row, scale_row, softcap_row};

}  // namespace stoker::STOKER_ISA
