// The scan of Mamba 1. Included once per instruction set.
#include "channel_scan.hpp"

namespace stoker::STOKER_ISA {

// Even and odd elements are added up apart, so that twice as many sums are on their way.
inline void scan_channels(const ScannedChannels& r) {
    for (int32_t channel = 0; channel < r.channels; channel += 16) {
        float* const state = r.state + channel;
        const float* const rates = r.decay_rates + channel;
        const f32x16 skip = load(r.skips + channel);
        for (int32_t row = 0; row < r.num_rows; ++row) {
            const float *b = r.b + row * r.ldb, *c = r.c + row * r.ldb;
            const f32x16 x = load(r.x + row * r.ld + channel), gate = load(r.gates + row * r.ld + channel);
            const f32x16 step = softplus(load(r.steps + row * r.lds + channel)), change = mul(step, x);
            f32x16 sums[2] = {mul(skip, x), set1(0)};
            for (int32_t n = 0; n < r.size; n += 2) {
                for (int half = 0; half < 2; ++half) {
                    float* at = state + (n + half) * r.stride;
                    const f32x16 remains = exp(mul(step, load(rates + (n + half) * r.stride)));
                    const f32x16 s = fma(set1(b[n + half]), change, mul(remains, load(at)));
                    store(at, s);
                    sums[half] = fma(set1(c[n + half]), s, sums[half]);
                }
            }
            store(r.out + row * r.ldo + channel, mul(gated(gate, gate), add(sums[0], sums[1])));
        }
    }
}

}  // namespace stoker::STOKER_ISA
