// Convolutions. Included once per instruction set.
#include "recurrent.hpp"

namespace stoker::STOKER_ISA {

// `in(row, channel)` and `put(row, channel, sum)` take 16 channels.
template <class In, class Put> inline void convolve(const ConvolvedRows& rows, const In& in, const Put& put) {
    const int32_t past = rows.taps - 1;
    for (int32_t channel = 0; channel < rows.channels; channel += 16) {
        f32x16 last[kMaxTaps];  // inputs, the oldest first
        for (int32_t i = 0; i < past; ++i) {
            last[i] = rows.is_first ? set1(0) : load(rows.state + i * rows.stride + channel);
        }
        for (int32_t row = 0; row < rows.num_rows; ++row) {
            last[past] = in(row, channel);
            f32x16 sum = set1(0);
            for (int32_t i = 0; i <= past; ++i) {
                sum = fma(load(rows.weights + i * rows.stride + channel), last[i], sum);
            }
            put(row, channel, sum);
            for (int32_t i = 0; i < past; ++i) {
                last[i] = last[i + 1];
            }
        }
        for (int32_t i = 0; i < past; ++i) {
            store(rows.state + i * rows.stride + channel, last[i]);
        }
    }
}

inline void convolve_gated(const ConvolvedRows& rows, const float* b, const float* c, const float* x, size_t ld, float* out,
                           size_t ldo) {
    const auto in = [&](int32_t row, int32_t channel) {
        return mul(load(b + row * ld + channel), load(x + row * ld + channel));
    };
    convolve(rows, in, [&](int32_t row, int32_t channel, f32x16 sum) {
        store(out + row * ldo + channel, mul(load(c + row * ld + channel), sum));
    });
}

constexpr RecurrentKernels kRecurrentKernels = {convolve_gated};

}  // namespace stoker::STOKER_ISA
