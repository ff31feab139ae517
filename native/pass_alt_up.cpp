// The stages of a model whose tokens have several streams (AltUp, arXiv:2301.13310), of which each layer computes with the first
// and only predicts the others; and of LAuReL (arXiv:2411.07501), which stands beside attention.
//
//   a row:     | stream 0: hidden floats | stream 1 | stream 2 | stream 3 |       in the beginning all made from the embedding
//
//   predict    streams += c(stream 0) of them          c: 4 x 4 numbers, from the router; x = stream 0
//   a layer    x  ->  x'                               attention, LAuReL and feed-forward
//   correct    stream i += c(x')[i] * (x' - stream 0)  c: 4 numbers around 1, from the same router
//   inject     streams 1 ... 3 += what the token has for the layer, through a gate of stream 0
//
//   in the end x = (stream 0 + join(streams 1 ... 3)) / 4, these brought to the length of stream 0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "pass.hpp"

namespace stoker {

namespace {

constexpr int32_t kCount = Streams::kCount;
constexpr float kLeastSquare = 1e-5f;  // on average: a row of less is not stretched any farther

// Makes y as long as something else is.
void bring_to(float* y, float squares, const RowKernels& k, int32_t n) {
    k.scale(y, std::sqrt(squares) / std::sqrt(std::max(k.dot(y, y, n), kLeastSquare * float(n))), n);
}

}  // namespace

float* Pass::streams(int32_t row) const { return d_.streams_.get() + size_t(row) * kCount * spec_.hidden_size; }

// In the beginning
// ---------------------------------------------------------------------------------------------------------------------

void Pass::split(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Projection& p = spec_.streams.split;
    multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.streams_.get() + spec_.hidden_size, kCount * spec_.hidden_size);
}

void Pass::level(Range rows) {
    const int32_t n = spec_.hidden_size;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* all = streams(row);
        std::memcpy(all, d_.x_[0].get() + size_t(row) * n, n * sizeof(float));
        const float squares = k_.rows->dot(all, all, n);
        for (int32_t i = 1; i < kCount; ++i) {
            bring_to(all + i * n, squares, *k_.rows, n);
        }
    }
}

// In a layer
// ---------------------------------------------------------------------------------------------------------------------

void Pass::modalities(Worker& me, const Layer& layer, const float* x, float* out) const {
    const int32_t n = spec_.hidden_size;
    k_.rows->rms_norm(x, layer.streams.router_norm, n, spec_.norm_eps, me.row.get());
    for (int32_t i = 0; i < kCount; ++i) {
        out[i] = k_.rows->dot(me.row.get(), layer.streams.router + i * n, n);
    }
    k_.rows->softcap(out, 1, kCount);  // tanh
}

// What the layer before has left in y.
void Pass::gather(Worker& me, int32_t row, const Layer& layer) {
    const int32_t n = spec_.hidden_size;
    k_.rows->rms_norm(d_.y_.get() + size_t(row) * n, layer.injection.norm, n, spec_.norm_eps, me.row.get());
    for (int32_t i = 1; i < kCount; ++i) {
        k_.rows->add(streams(row) + i * n, me.row.get(), n);
    }
}

void Pass::predict(Worker& me, const Stage& stage, Range rows) {
    const int32_t n = spec_.hidden_size;
    const Layer& layer = spec_.layers[stage.layer];
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* all = streams(row);
        if (stage.layer > 0) {
            gather(me, row, spec_.layers[stage.layer - 1]);
        }
        float weights[kCount], c[kCount * kCount];
        modalities(me, layer, all, weights);
        for (int32_t i = 0; i < kCount * kCount; ++i) {
            const float* by = layer.streams.predict + i * kCount;
            c[i] = by[0] * weights[0] + by[1] * weights[1] + by[2] * weights[2] + by[3] * weights[3];
        }
        k_.rows->mix(all, c, n);
        std::memcpy(d_.x_[stage.x].get() + size_t(row) * n, all, n * sizeof(float));
    }
}

void Pass::laurel(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Projection& p = spec_.layers[stage.layer].laurel.wide;
    multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.laurel_.get(), spec_.hidden_size);
}

// x = (x + norm(y) + norm(laurel) + attention_norm(x)) / sqrt 2
void Pass::add_laurel(Worker& me, const Stage& stage, Range rows) {
    const int32_t n = spec_.hidden_size;
    const Layer& layer = spec_.layers[stage.layer];
    float* scratch = me.row.get();
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* x = d_.x_[stage.x].get() + size_t(row) * n;
        float* beside = d_.laurel_.get() + size_t(row) * n;
        k_.rows->rms_norm(beside, layer.laurel.norm, n, spec_.norm_eps, beside);
        norm(x, layer.attention_norm, scratch);
        k_.rows->add(beside, scratch, n);
        add_y(x, row, {layer.post_attention_norm, 1}, scratch);
        k_.rows->add(x, beside, n);
        k_.rows->scale(x, std::sqrt(0.5f), n);
    }
}

void Pass::cut(const Stage& stage, Range rows) {
    const Layer& layer = spec_.layers[stage.layer];
    const int32_t ff = layer.feed_forward_size;
    const Activations codes = Activations::place(d_.down_codes_.get(), stage.rows, ff);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* gate = d_.gate_.get() + size_t(row) * ff;
        k_.rows->cut(gate, layer.gate_cut, ff);
        k_.rows->activate(spec_.activation, gate, d_.up_.get() + size_t(row) * ff, ff, gate);
    }
    if (!layer.down.w.is_float()) {
        k_.quantize(d_.gate_.get(), ff, rows.begin, rows.end, 0, ff / kBlock, codes);
    }
}

void Pass::correct(Worker& me, const Stage& stage, Range rows) {
    const int32_t n = spec_.hidden_size;
    const Layer& layer = spec_.layers[stage.layer];
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* x = d_.x_[stage.x].get() + size_t(row) * n;
        float* all = streams(row);
        add_y(x, row, {layer.post_feed_forward_norm, 1}, me.row.get());
        float weights[kCount];
        modalities(me, layer, x, weights);
        k_.rows->add_scaled(x, all, -1, n);
        for (int32_t i = 0; i < kCount; ++i) {
            const float* by = layer.streams.correct + i * kCount;
            const float c = 1 + (by[0] * weights[0] + by[1] * weights[1] + by[2] * weights[2] + by[3] * weights[3]);
            k_.rows->add_scaled(all + i * n, x, c, n);
        }
        std::memcpy(x, all, n * sizeof(float));  // what the gate of the injection sees
        k_.rows->multiply(x, layer.streams.scale, n);
    }
}

// In the end
// ---------------------------------------------------------------------------------------------------------------------

// A piece is some tiles of one stream's matrix.
void Pass::join_streams(Worker& me, const Stage& stage, int32_t piece) {
    const Projection& p = spec_.streams.join;
    const int32_t n = spec_.hidden_size, tiles = n / kTile, parts = stage.num_pieces / Streams::kOthers;
    const int32_t stream = piece / parts, part = piece % parts, first = stream * tiles;
    const Range own = {first + tiles * part / parts, first + tiles * (part + 1) / parts};
    if (own.begin == own.end) {
        return;
    }
    Activations a = Activations::place(me.part_codes.get(), stage.rows, n);
    a.x = streams(0) + (1 + stream) * n;
    a.ldx = kCount * n;
    k_.quantize(a.x, a.ldx, 0, stage.rows, 0, a.blocks(), a);
    multiply(me, p, a, own, d_.joined_streams_.get(), Streams::kOthers * n);
}

void Pass::merge(const Stage& stage, Range rows) {
    const int32_t n = spec_.hidden_size;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* x = d_.x_[stage.x].get() + size_t(row) * n;
        std::memcpy(x, streams(row), n * sizeof(float));
        const float squares = k_.rows->dot(x, x, n);
        float* others = d_.joined_streams_.get() + size_t(row) * Streams::kOthers * n;
        for (int32_t i = 0; i < Streams::kOthers; ++i) {
            bring_to(others + i * n, squares, *k_.rows, n);
            k_.rows->add(x, others + i * n, n);
        }
        k_.rows->scale(x, 1.0f / kCount, n);
    }
}

}  // namespace stoker
