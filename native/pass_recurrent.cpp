// The stages of layers that keep a state.
#include <algorithm>
#include <cstring>

#include "pass.hpp"

namespace stoker {

// `compute(state, first, count)` goes through some rows of a chunk. Those behind the ones after which the state is kept go on with
// the other state, from where these leave it. Of both there are `floats` floats, in as many pieces, `stride` apart.
template <class Compute>
void Pass::in_states(const Chunk& chunk, int32_t layer, size_t offset, size_t floats, int32_t pieces, size_t stride,
                     const Compute& compute) {
    float* settled = d_.states_.settled(chunk.slot, layer) + offset;
    float* going_on = d_.states_.going_on(chunk.slot, layer) + offset;
    const int32_t rows = d_.states_.settled_rows(chunk);
    for (int32_t i = 0; chunk.start == 0 && i < pieces; ++i) {
        std::fill_n(settled + i * stride, floats, 0.0f);
    }
    if (rows > 0) {
        compute(settled, 0, rows);
    }
    if (rows < chunk.length) {
        for (int32_t i = 0; i < pieces; ++i) {
            std::memcpy(going_on + i * stride, settled + i * stride, floats * sizeof(float));
        }
        compute(going_on, rows, chunk.length - rows);
    }
}

void Pass::convolve(const Stage& stage, int32_t piece) {
    const Layer& layer = spec_.layers[stage.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t all = layer.num_channels(), blocks = divided_up(all, stage.grain), index = piece / blocks;
    const Range channels = share(stage, piece % blocks, all);
    const int32_t begin = channels.begin, num_channels = channels.end - begin;
    const size_t ld = layer.input_size();
    const auto compute = [&](float* state, int32_t first, int32_t count) {
        const ConvolvedRows rows = {
            .taps = r.taps,
            .weights = r.convolution + begin,
            .bias = r.convolution_bias == nullptr ? nullptr : r.convolution_bias + begin,
            .state = state,
            .stride = size_t(all),
            .num_rows = count,
            .channels = num_channels,
        };
        const size_t row = plan_.chunk_row[index] + first;
        float* x = d_.qkv_.get() + row * ld + begin;
        if (layer.scans()) {
            k_.recurrent->convolve_silu(rows, x, ld);
        } else {
            k_.recurrent->convolve_gated(rows, x, x + all, x + 2 * all, ld, d_.attended_.get() + row * all + begin, all);
        }
    };
    in_states(batch_.chunks[index], stage.layer, begin, num_channels, r.taps - 1, all, compute);
}

void Pass::scan(Worker& me, const Stage& stage, int32_t piece) {
    const Layer& layer = spec_.layers[stage.layer];
    const int32_t num_heads = layer.recurrence.num_heads;
    const size_t floats = layer.recurrence.head_floats();
    const auto [begin, end] = share(stage, piece, batch_.num_chunks * num_heads);
    for (int32_t unit = begin; unit < end; ++unit) {
        const int32_t index = unit / num_heads, head = unit % num_heads;
        const auto compute = [&](float* state, int32_t first, int32_t count) {
            scan_rows(me, layer, head, state, plan_.chunk_row[index] + first, count);
        };
        in_states(batch_.chunks[index], stage.layer, layer.convolution_floats() + head * floats, floats, 1, 0, compute);
    }
}

void Pass::scan_rows(Worker& me, const Layer& layer, int32_t head, float* state, size_t row, int32_t count) {
    const Recurrence& r = layer.recurrence;
    const size_t ld = layer.input_size();
    const float* in = d_.qkv_.get() + row * ld;
    const bool is_kda = layer.mixer == Mixer::kda;
    const auto step_room = [&](int32_t which) { return me.steps.get() + which * d_.steps_stride(); };
    const int32_t key_at = r.key_head(head) * r.key_size, value_at = head * r.value_size;
    const ScannedRows rows = {
        .state = state,
        .queries = in + layer.input_at(0) + key_at,
        .keys = in + layer.input_at(1) + key_at,
        .values = in + layer.input_at(2) + value_at,
        .ld = ld,
        .out = d_.attended_.get() + row * layer.mixed_size() + value_at,
        .ldo = size_t(layer.mixed_size()),
        .steps = {step_room(0), layer.recalls() ? step_room(1) : nullptr, step_room(2), step_room(3)},
        .decays = is_kda ? d_.wide_decays_.get() + row * r.key_row() + key_at : nullptr,
        .ldd = size_t(r.key_row()),
        .skip = r.skip == nullptr ? 0 : r.skip[head],
        .num_rows = count,
        .key_size = r.key_size,
        .value_size = r.value_size,
    };
    const ScanInputs inputs = {
        .decays = in + layer.input_at(Layer::kDecay) + head,
        .betas = in + layer.input_at(Layer::kBeta) + head,
        .step_bias = is_kda ? 0 : r.step_bias[head],
        .decay_rate = r.decay_rate[head],
        .norm_eps = r.norm_eps,
        .step_biases = is_kda ? r.step_bias + key_at : nullptr,
    };
    const RecurrentKernels& k = *k_.recurrent;
    (is_kda ? k.kda_steps : layer.recalls() ? k.delta_steps : k.mamba_steps)(inputs, rows);
    k_.recurrent->scan(rows);
}

void Pass::gate_mixed(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t n = layer.mixed_size();
    const bool is_delta = layer.recalls();  // whose heads share a norm
    for (size_t row = rows.begin; row < size_t(rows.end); ++row) {
        float* x = d_.attended_.get() + row * n;
        const float* gate = d_.qkv_.get() + row * layer.input_size() + layer.input_at(Layer::kGate);
        const auto norm = [&] {
            for (int32_t at = 0; r.norm != nullptr && at < n; at += r.norm_size) {
                k_.rows->rms_norm(x + at, r.norm + (is_delta ? 0 : at), r.norm_size, r.norm_eps, x + at);
            }
        };
        if (is_delta) {
            norm();
        }
        if (layer.mixer == Mixer::kda) {
            k_.rows->gate(x, d_.wide_gates_.get() + row * n, n);
        } else {
            k_.rows->activate(Activation::silu, gate, x, n, x);
        }
        if (!is_delta) {
            norm();
        }
    }
}

Pass::InputRows Pass::recurrent_input(const Stage& products, const InputRows& others) const {
    const Layer& layer = spec_.layers[products.layer];
    const int32_t ld = layer.input_size();
    const float* in = d_.qkv_.get();
    switch (products.kind) {
        case StageKind::low: return {in + layer.input_at(2), ld, layer.low.w.cols};
        case StageKind::widen_gate: return {in + layer.input_at(Layer::kGate), ld, layer.wide_gate.w.cols};
        case StageKind::widen_decay:
            if (layer.mixer == Mixer::mamba) {
                return {d_.low_.get(), layer.low.w.rows, layer.wide_decay.w.cols};
            }
            return {in + layer.input_at(Layer::kDecay), ld, layer.wide_decay.w.cols};
        default: return others;
    }
}

void Pass::multiply_recurrent(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Layer& layer = spec_.layers[stage.layer];
    const auto multiplied = [&](const Projection& p, float* y) {
        multiply(me, p, a, share(stage, piece, p.w.tiles()), y, p.w.rows);
    };
    switch (stage.kind) {
        case StageKind::low: return multiplied(layer.low, d_.low_.get());
        case StageKind::widen_gate: return multiplied(layer.wide_gate, d_.wide_gates_.get());
        default: return multiplied(layer.wide_decay, d_.wide_decays_.get());
    }
}

// low_, a row:   | what the steps are made of | B | C |
void Pass::norm_low(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t rank = layer.wide_decay.w.cols, size = r.key_size;
    for (size_t row = rows.begin; row < size_t(rows.end); ++row) {
        float* x = d_.low_.get() + row * layer.low.w.rows;
        k_.rows->rms_norm(x, r.low_norm, rank, spec_.norm_eps, x);
        k_.rows->rms_norm(x + rank, r.key_norm, size, spec_.norm_eps, x + rank);
        k_.rows->rms_norm(x + rank + size, r.query_norm, size, spec_.norm_eps, x + rank + size);
    }
}

void Pass::scan_channels(const Stage& stage, int32_t piece) {
    const Layer& layer = spec_.layers[stage.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t all = r.num_heads, blocks = divided_up(all, stage.grain), index = piece / blocks;
    const auto [begin, end] = share(stage, piece % blocks, all);
    const size_t ld = layer.input_size(), ldb = layer.low.w.rows;
    const int32_t channel = begin, num_channels = end - begin;
    const auto compute = [&](float* state, int32_t first, int32_t count) {
        const size_t row = plan_.chunk_row[index] + first;
        const float* in = d_.qkv_.get() + row * ld + channel;
        const float* b = d_.low_.get() + row * ldb + layer.wide_decay.w.cols;
        k_.recurrent->scan_channels({
            .state = state,
            .decay_rates = r.decay_rate + channel,
            .stride = size_t(all),
            .skips = r.skip + channel,
            .x = in + layer.input_at(2),
            .gates = in + layer.input_at(Layer::kGate),
            .ld = ld,
            .steps = d_.wide_decays_.get() + row * all + channel,
            .lds = size_t(all),
            .b = b,
            .c = b + r.key_size,
            .ldb = ldb,
            .out = d_.attended_.get() + row * all + channel,
            .ldo = size_t(all),
            .num_rows = count,
            .channels = num_channels,
            .size = r.key_size,
        });
    };
    in_states(batch_.chunks[index], stage.layer, layer.convolution_floats() + channel, num_channels, r.key_size, all, compute);
}

}  // namespace stoker
