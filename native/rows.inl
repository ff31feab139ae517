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
        const f32x16 v = mul(load(x + i), factor);
        store(y + i, weight == nullptr ? v : mul(v, load(weight + i)));
    }
}

inline void layer_norm(const float* x, const float* weight, const float* bias, int32_t n, float eps, float* y) {
    f32x16 sum = set1(0), squares = set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        sum = add(sum, load(x + i));
    }
    const f32x16 mean = set1(reduce_add(sum) / float(n));
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 v = sub(load(x + i), mean);
        squares = fma(v, v, squares);
    }
    const f32x16 factor = set1(1.0f / __builtin_sqrtf(reduce_add(squares) / float(n) + eps));
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 v = mul(mul(sub(load(x + i), mean), factor), load(weight + i));
        store(y + i, bias == nullptr ? v : add(v, load(bias + i)));
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

// GELU(x) = x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| q(z), z = |x| / sqrt 2, q half of what erf(z) lacks of 1, which is
// t (a1 + t (a2 + ...)) e^(-z²), t = 1 / (1 + 0.3275911 z) (Abramowitz and Stegun, 7.1.26): within 1.5e-7 |x|.
inline f32x16 gelu(f32x16 x) {
    const f32x16 magnitude = min(set1(12), abs(x)), z = mul(magnitude, set1(0.70710678118654752f));
    const f32x16 t = reciprocal(fma(z, set1(0.3275911f), set1(1)));
    f32x16 p = set1(0.5f * 1.061405429f);
    p = fma(p, t, set1(0.5f * -1.453152027f));
    p = fma(p, t, set1(0.5f * 1.421413741f));
    p = fma(p, t, set1(0.5f * -0.284496736f));
    p = fma(p, t, set1(0.5f * 0.254829592f));
    const f32x16 lack = mul(mul(p, t), exp(sub(set1(0), mul(z, z))));
    return sub(max(x, set1(0)), mul(magnitude, lack));
}

inline f32x16 swiglu_clamped(f32x16 gate, f32x16 up) {
    const f32x16 g = min(set1(7), gate), u = max(set1(-7), min(set1(7), up));
    return mul(gated(g, mul(g, set1(1.702f))), add(u, set1(1)));
}

inline f32x16 xielu(f32x16 x, const float* numbers) {
    const auto number = [&](int32_t i) { return set1(numbers[i]); };
    const f32x16 bend = sub(sub(exp(min(number(kXieluEnd), x)), set1(1)), x), positive = max(x, set1(0));
    const f32x16 below = mul(bend, number(kXieluBelow)), above = mul(mul(positive, positive), number(kXieluAbove));
    return fma(number(kXieluSlope), x, if_positive(x, above, below));
}

inline void activate(Activation kind, const float* gate, const float* up, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 x = load(gate + i), y = has_up(kind) ? load(up + i) : x;
        switch (kind) {
            case Activation::silu: store(out + i, mul(gated(x, x), y)); break;
            case Activation::gelu_tanh: store(out + i, mul(gelu_tanh(x), y)); break;
            case Activation::swiglu_clamped: store(out + i, swiglu_clamped(x, y)); break;
            case Activation::gelu: store(out + i, mul(gelu(x), y)); break;
            case Activation::gelu_alone: store(out + i, gelu(x)); break;
            case Activation::gelu_tanh_alone: store(out + i, gelu_tanh(x)); break;
            case Activation::xielu: store(out + i, xielu(x, up)); break;
            case Activation::relu: store(out + i, mul(max(x, set1(0)), y)); break;
            case Activation::relu_squared: store(out + i, mul(max(x, set1(0)), max(x, set1(0)))); break;
        }
    }
}

inline void add_row(float* x, const float* y, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, add(load(x + i), load(y + i)));
    }
}

inline void add_scaled_row(float* x, const float* y, float factor, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, fma(load(y + i), set1(factor), load(x + i)));
    }
}

inline void scale_row(float* x, float factor, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, mul(load(x + i), set1(factor)));
    }
}

// Of any length: what is missing of the last 16 counts as `filler`.
template <class F> inline void change_each(float* x, int32_t n, float filler, const F& changed) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        store(x + i, changed(load(x + i)));
    }
    if (i < n) {
        alignas(64) float rest[16];
        store(rest, set1(filler));
        __builtin_memcpy(rest, x + i, (n - i) * sizeof(float));
        store(rest, changed(load(rest)));
        __builtin_memcpy(x + i, rest, (n - i) * sizeof(float));
    }
}

inline void softcap_row(float* x, float cap, int32_t n) {
    change_each(x, n, 0, [&](f32x16 v) { return mul(tanh(div(v, set1(cap))), set1(cap)); });
}

inline void softmax_row(float* x, int32_t n) {
    float most = x[0];
    for (int32_t i = 1; i < n; ++i) {
        most = x[i] > most ? x[i] : most;
    }
    f32x16 sum = set1(0);
    change_each(x, n, -3e38f, [&](f32x16 v) {  // what is filled in adds about 1e-38
        const f32x16 weight = exp(sub(v, set1(most)));
        sum = add(sum, weight);
        return weight;
    });
    const f32x16 whole = set1(reduce_add(sum));
    change_each(x, n, 0, [&](f32x16 v) { return div(v, whole); });
}

inline void gate_row(float* x, const float* gate, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, gated(load(x + i), load(gate + i)));
    }
}

inline void sigmoid_row(float* x, int32_t n) {
    change_each(x, n, 0, [](f32x16 v) { return gated(set1(1), v); });
}

inline float dot_row(const float* x, const float* y, int32_t n) {
    f32x16 sum = set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        sum = fma(load(x + i), load(y + i), sum);
    }
    return reduce_add(sum);
}

inline void multiply_row(float* x, const float* y, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, mul(load(x + i), load(y + i)));
    }
}

inline void cut_row(float* x, float deviations, int32_t n) {
    f32x16 sum = set1(0), squares = set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        sum = add(sum, load(x + i));
    }
    const float mean = reduce_add(sum) / float(n);
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 v = sub(load(x + i), set1(mean));
        squares = fma(v, v, squares);
    }
    const f32x16 cutoff = set1(mean + deviations * __builtin_sqrtf(reduce_add(squares) / float(n - 1)));
    for (int32_t i = 0; i < n; i += 16) {
        store(x + i, max(sub(load(x + i), cutoff), set1(0)));
    }
}

inline void mix_rows(float* x, const float* c, int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 of[4] = {load(x + i), load(x + n + i), load(x + 2 * n + i), load(x + 3 * n + i)};
        for (int32_t row = 0; row < 4; ++row) {
            f32x16 sum = mul(of[0], set1(c[4 * row]));
            for (int32_t other = 1; other < 4; ++other) {
                sum = fma(of[other], set1(c[4 * row + other]), sum);
            }
            store(x + row * n + i, add(of[row], sum));
        }
    }
}

constexpr RowKernels kRowKernels = {
    rms_norm, layer_norm, rotate, activate, add_row, add_scaled_row, scale_row, softcap_row, softmax_row, gate_row, sigmoid_row,
    dot_row, multiply_row, cut_row, mix_rows,
};

}  // namespace stoker::STOKER_ISA
