// Convolutions and scans. Included once per instruction set.
#include "recurrent.hpp"

#include "channel_scan.inl"

namespace stoker::STOKER_ISA {

// `in(row, channel)` and `put(row, channel, sum)` take 16 channels.
template <class In, class Put> inline void convolve(const ConvolvedRows& rows, const In& in, const Put& put) {
    const int32_t past = rows.taps - 1;
    for (int32_t channel = 0; channel < rows.channels; channel += 16) {
        f32x16 last[kMaxTaps];  // inputs, the oldest first
        for (int32_t i = 0; i < past; ++i) {
            last[i] = load(rows.state + i * rows.stride + channel);
        }
        for (int32_t row = 0; row < rows.num_rows; ++row) {
            last[past] = in(row, channel);
            f32x16 sum = rows.bias == nullptr ? set1(0) : load(rows.bias + channel);
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

inline void convolve_silu(const ConvolvedRows& rows, float* x, size_t ld) {
    const auto in = [&](int32_t row, int32_t channel) { return load(x + row * ld + channel); };
    convolve(rows, in, [&](int32_t row, int32_t channel, f32x16 sum) { store(x + row * ld + channel, gated(sum, sum)); });
}

// One number of each of 16 rows, the last of them repeated.
inline f32x16 load_column(const float* x, size_t ld, int32_t row, int32_t num_rows) {
    alignas(64) float lanes[16];
    for (int32_t i = 0; i < 16; ++i) {
        lanes[i] = x[(row + i < num_rows ? row + i : num_rows - 1) * ld];
    }
    return load(lanes);
}

// `use(row, step)` takes 16 rows, and where the state's remainder is stored.
template <class Use> inline void each_step(const ScanInputs& in, const ScannedRows& rows, const Use& use) {
    for (int32_t row = 0; row < rows.num_rows; row += 16) {
        const f32x16 decay = load_column(in.decays, rows.ld, row, rows.num_rows);
        const f32x16 step = softplus(add(decay, set1(in.step_bias)));
        const f32x16 remains = exp(mul(step, set1(in.decay_rate)));
        store(rows.steps.remains + row, remains);
        use(row, step, remains);
    }
}

inline float inverse_length(const float* x, int32_t n, float eps) {
    f32x16 squares = set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        const f32x16 v = load(x + i);
        squares = fma(v, v, squares);
    }
    return 1.0f / __builtin_sqrtf(reduce_add(squares) + eps);
}

// What 16 rows of a delta net write and read; gives by what the length of their keys is multiplied.
inline f32x16 write_and_read(const ScanInputs& in, const ScannedRows& rows, int32_t row) {
    const float per_length = 1.0f / __builtin_sqrtf(float(rows.key_size));
    alignas(64) float query[16], key[16];
    for (int32_t i = 0; i < 16; ++i) {
        const size_t at = size_t(row + i < rows.num_rows ? row + i : rows.num_rows - 1) * rows.ld;
        query[i] = per_length * inverse_length(rows.queries + at, rows.key_size, in.norm_eps);
        key[i] = inverse_length(rows.keys + at, rows.key_size, in.norm_eps);
    }
    const f32x16 length = load(key), beta = load_column(in.betas, rows.ld, row, rows.num_rows);
    store(rows.steps.writes + row, gated(length, beta));
    store(rows.steps.reads + row, load(query));
    return length;
}

inline void delta_steps(const ScanInputs& in, const ScannedRows& rows) {
    each_step(in, rows, [&](int32_t row, f32x16, f32x16 remains) {
        store(rows.steps.recalls + row, mul(remains, write_and_read(in, rows, row)));
    });
}

inline void kda_steps(const ScanInputs& in, const ScannedRows& rows) {
    for (int32_t row = 0; row < rows.num_rows; row += 16) {
        store(rows.steps.recalls + row, write_and_read(in, rows, row));
        store(rows.steps.remains + row, set1(1));
    }
    for (int32_t row = 0; row < rows.num_rows; ++row) {
        float* decay = rows.decays + row * rows.ldd;
        for (int32_t i = 0; i < rows.key_size; i += 16) {
            const f32x16 step = softplus(add(load(decay + i), load(in.step_biases + i)));
            store(decay + i, exp(mul(step, set1(in.decay_rate))));
        }
    }
}

inline void mamba_steps(const ScanInputs& in, const ScannedRows& rows) {
    each_step(in, rows, [&](int32_t row, f32x16 step, f32x16) {
        store(rows.steps.writes + row, step);
        store(rows.steps.reads + row, set1(1));
    });
}

// Some columns of the state, which stay in the first-level cache, through all rows. Sums run over even and odd elements of a key
// apart, so that twice as many are on their way.
template <int blocks, bool by_key> inline void scan_columns(const ScannedRows& r, int32_t column) {
    constexpr size_t stride = 16 * blocks;
    float* const state = r.state + size_t(column) * r.key_size;
    for (int32_t row = 0; row < r.num_rows; ++row) {
        const float *key = r.keys + row * r.ld, *query = r.queries + row * r.ld, *value = r.values + row * r.ld + column;
        f32x16 sums[2][blocks], change[blocks];
        const auto clear = [&] {
            for (int b = 0; b < blocks; ++b) {
                sums[0][b] = sums[1][b] = set1(0);
            }
        };
        clear();
        for (int32_t i = 0; r.steps.recalls != nullptr && i < r.key_size; i += 2) {
            for (int half = 0; half < 2; ++half) {
                for (int b = 0; b < blocks; ++b) {
                    float* at = state + (i + half) * stride + 16 * b;
                    f32x16 s = load(at);
                    if constexpr (by_key) {
                        s = mul(set1(r.decays[row * r.ldd + i + half]), s);
                        store(at, s);
                    }
                    sums[half][b] = fma(s, set1(key[i + half]), sums[half][b]);
                }
            }
        }
        for (int b = 0; b < blocks; ++b) {
            const f32x16 recalled = add(sums[0][b], sums[1][b]), v = load(value + 16 * b);
            const float factor = r.steps.recalls == nullptr ? 0 : r.steps.recalls[row];
            change[b] = mul(set1(r.steps.writes[row]), fma(set1(-factor), recalled, v));
        }
        clear();
        const f32x16 remains = set1(r.steps.remains[row]);
        for (int32_t i = 0; i < r.key_size; i += 2) {
            for (int half = 0; half < 2; ++half) {
                for (int b = 0; b < blocks; ++b) {
                    float* at = state + (i + half) * stride + 16 * b;
                    const f32x16 before = by_key ? load(at) : mul(remains, load(at));
                    const f32x16 s = fma(set1(key[i + half]), change[b], before);
                    store(at, s);
                    sums[half][b] = fma(set1(query[i + half]), s, sums[half][b]);
                }
            }
        }
        for (int b = 0; b < blocks; ++b) {
            const f32x16 found = mul(set1(r.steps.reads[row]), add(sums[0][b], sums[1][b]));
            store(r.out + row * r.ldo + column + 16 * b, fma(set1(r.skip), load(value + 16 * b), found));
        }
    }
}

template <bool by_key> inline void scan_all(const ScannedRows& rows) {
    int32_t column = 0;
    for (; column + 32 <= rows.value_size; column += 32) {
        scan_columns<2, by_key>(rows, column);
    }
    if (column < rows.value_size) {
        scan_columns<1, by_key>(rows, column);
    }
}

inline void scan(const ScannedRows& rows) { rows.decays == nullptr ? scan_all<false>(rows) : scan_all<true>(rows); }

constexpr RecurrentKernels kRecurrentKernels = {convolve_gated, convolve_silu, delta_steps, mamba_steps,
                                                kda_steps,      scan,          scan_channels};

}  // namespace stoker::STOKER_ISA
