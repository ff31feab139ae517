// The stages of layers that keep a state.
#include <algorithm>

#include "pass.hpp"

namespace stoker {

void Pass::convolve(const Stage& stage, int32_t piece) {
    const Layer& layer = spec_.layers[stage.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t all = layer.num_channels(), blocks = divided_up(all, stage.grain), index = piece / blocks;
    const auto [begin, end] = share(stage, piece % blocks, all);
    const Chunk& chunk = batch_.chunks[index];
    const ConvolvedRows rows = {
        .taps = r.taps,
        .weights = r.convolution + begin,
        .bias = r.convolution_bias == nullptr ? nullptr : r.convolution_bias + begin,
        .state = d_.states_.layer(chunk.slot, stage.layer) + begin,
        .stride = size_t(all),
        .num_rows = chunk.length,
        .channels = end - begin,
    };
    for (int32_t tap = 0; chunk.start == 0 && tap + 1 < r.taps; ++tap) {
        std::fill_n(rows.state + tap * rows.stride, rows.channels, 0.0f);
    }
    const size_t row = plan_.chunk_row[index], ld = layer.input_size();
    float* x = d_.qkv_.get() + row * ld + begin;
    if (layer.scans()) {
        k_.recurrent->convolve_silu(rows, x, ld);
    } else {
        k_.recurrent->convolve_gated(rows, x, x + all, x + 2 * all, ld, d_.attended_.get() + row * all + begin, all);
    }
}

void Pass::scan(Worker& me, const Stage& stage, int32_t piece) {
    const int32_t num_heads = spec_.layers[stage.layer].recurrence.num_heads;
    const auto [begin, end] = share(stage, piece, batch_.num_chunks * num_heads);
    for (int32_t unit = begin; unit < end; ++unit) {
        scan_head(me, stage.layer, unit / num_heads, unit % num_heads);
    }
}

void Pass::scan_head(Worker& me, int32_t index, int32_t chunk_index, int32_t head) {
    const Layer& layer = spec_.layers[index];
    const Recurrence& r = layer.recurrence;
    const Chunk& chunk = batch_.chunks[chunk_index];
    const size_t row = plan_.chunk_row[chunk_index], ld = layer.input_size();
    const float* in = d_.qkv_.get() + row * ld;
    const bool is_delta = layer.mixer == Mixer::delta_net;
    const auto step_room = [&](int32_t which) { return me.steps.get() + which * d_.steps_stride(); };
    const int32_t key_at = r.key_head(head) * r.key_size, value_at = head * r.value_size;
    const ScannedRows rows = {
        .state = d_.states_.layer(chunk.slot, index) + layer.convolution_floats() + head * r.head_floats(),
        .queries = in + layer.input_at(0) + key_at,
        .keys = in + layer.input_at(1) + key_at,
        .values = in + layer.input_at(2) + value_at,
        .ld = ld,
        .out = d_.attended_.get() + row * layer.mixed_size() + value_at,
        .ldo = size_t(layer.mixed_size()),
        .steps = {step_room(0), is_delta ? step_room(1) : nullptr, step_room(2), step_room(3)},
        .skip = r.skip == nullptr ? 0 : r.skip[head],
        .num_rows = chunk.length,
        .key_size = r.key_size,
        .value_size = r.value_size,
    };
    const ScanInputs inputs = {
        .decays = in + layer.input_at(Layer::kDecay) + head,
        .betas = in + layer.input_at(Layer::kBeta) + head,
        .step_bias = r.step_bias[head],
        .decay_rate = r.decay_rate[head],
        .norm_eps = r.norm_eps,
    };
    if (chunk.start == 0) {
        std::fill_n(rows.state, r.head_floats(), 0.0f);
    }
    (is_delta ? k_.recurrent->delta_steps : k_.recurrent->mamba_steps)(inputs, rows);
    k_.recurrent->scan(rows);
}

void Pass::gate_mixed(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    const Recurrence& r = layer.recurrence;
    const int32_t n = layer.mixed_size();
    const bool is_delta = layer.mixer == Mixer::delta_net;  // whose heads share a norm
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
        k_.rows->activate(Activation::silu, gate, x, n, x);
        if (!is_delta) {
            norm();
        }
    }
}

}  // namespace stoker
