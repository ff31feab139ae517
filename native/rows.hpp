// Operations on single rows of floats, between the matrix products. Lengths are multiples of 16.
#pragma once

#include <cstdint>

namespace stoker {

// swiglu_clamped: g * sigmoid(1.702 g) * (up + 1), where g = min(gate, 7) and up stays within -7 ... 7
// gelu: by the error function, gelu_tanh by the formula that is close to it
// relu: max(g, 0) * up
// Of a gate alone:
// relu_squared: max(g, 0)²
// gelu_alone, gelu_tanh_alone: the same as above
// xielu: above * g² + slope * g where g > 0, below * (e^min(g, end) - 1 - g) + slope * g elsewhere
enum class Activation : int32_t { silu, gelu_tanh, swiglu_clamped, relu_squared, gelu, gelu_alone, gelu_tanh_alone, xielu, relu };

constexpr bool has_up(Activation kind) {
    return kind <= Activation::swiglu_clamped || kind == Activation::gelu || kind == Activation::relu;
}

// The numbers of xielu, one array for each layer.
enum : int32_t { kXieluBelow, kXieluAbove, kXieluSlope, kXieluEnd, kXieluNumbers };

struct RowKernels {
    // y = x / sqrt(mean(x²) + eps) * weight; y may be x. Without a weight (nullptr) every element's is 1.
    void (*rms_norm)(const float* x, const float* weight, int32_t n, float eps, float* y);
    // y = (x - mean) / sqrt(variance + eps) * weight [+ bias]; y may be x, bias nullptr.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, int32_t n, float eps, float* y);
    // Turns the pairs of the first `dim` elements; table: dim/2 cosines, then dim/2 sines.
    void (*rotate)(float* x, const float* table, int32_t dim, bool adjacent);
    // out = activation(gate) * up; out may be either. Without an `up`, that is not looked at; for xielu it is the layer's numbers.
    void (*activate)(Activation kind, const float* gate, const float* up, int32_t n, float* out);
    // x += y
    void (*add)(float* x, const float* y, int32_t n);
    // x += factor * y, rounded once
    void (*add_scaled)(float* x, const float* y, float factor, int32_t n);
    // x *= factor
    void (*scale)(float* x, float factor, int32_t n);
    // x = cap * tanh(x / cap); any length.
    void (*softcap)(float* x, float cap, int32_t n);
    // x = e^(x - max) / sum of these; any length.
    void (*softmax)(float* x, int32_t n);
    // x /= 1 + e^-gate
    void (*gate)(float* x, const float* gate, int32_t n);
    // x = 1 / (1 + e^-x); any length.
    void (*sigmoid)(float* x, int32_t n);
    // x · y
    float (*dot)(const float* x, const float* y, int32_t n);
    // x *= y
    void (*multiply)(float* x, const float* y, int32_t n);
    // x = max(x - cutoff, 0), cutoff = mean + deviations * standard deviation (over n - 1)
    void (*cut)(float* x, float deviations, int32_t n);
    // Of four rows, one behind the other: x[i] += c[4 i] x[0] + c[4 i + 1] x[1] + ..., all at once.
    void (*mix)(float* x, const float* c, int32_t n);
};

}  // namespace stoker
