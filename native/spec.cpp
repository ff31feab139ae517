#include "spec.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>

namespace stoker {

namespace {

void require_shape(const Projection& p, int32_t rows, int32_t cols) {
    require(p.w.rows == rows && p.w.cols == cols, "a matrix has another shape than the sizes say");
}

}  // namespace

const Projection& Layer::input(int32_t part) const {
    const Projection* const parts[kInputs] = {&query, &key, &value, &mixed_gate, &decay, &beta, &laurel.narrow};
    return *parts[part];
}

int32_t Layer::input_at(int32_t part) const {
    int32_t at = 0;
    for (int32_t i = 0; i < part; ++i) {
        at += input(i).w.rows;
    }
    if (mixer == Mixer::mamba2 && part < kGate) {
        return query.w.rows + key.w.rows + value.w.rows - at - input(part).w.rows;
    }
    return at;
}

int32_t DecoderSpec::num_positions() const {
    int32_t n = std::numeric_limits<int32_t>::max();
    for (const Rope& rope : ropes) {
        n = std::min(n, rope.num_positions);
    }
    n = positions == nullptr ? n : std::min(n, num_embedded_positions);
    return query_scales == nullptr ? n : std::min(n, num_query_scales);
}

const Projection& DecoderSpec::at(int32_t place) const {
    if (place < kFirstLayer) {
        return place == kEmbedding ? embedding : head;
    }
    const Layer& l = layers[(place - kFirstLayer) / kLayerPlaces];
    const Projection* const places[kLayerPlaces] = {&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down};
    return *places[(place - kFirstLayer) % kLayerPlaces];
}

void DecoderSpec::check() const {
    require(vocab_size > 0 && hidden_size > 0 && !layers.empty() && !ropes.empty(), "a size is zero or negative");
    require(hidden_size % 32 == 0, "a row of activations is no multiple of 32");
    require_shape(embedding, vocab_size, join.is_there() ? embedding.w.cols : hidden_size);
    require_shape(head, join.is_there() ? head.w.rows : vocab_size, hidden_size);
    require(head.w.rows > 0, "the head is missing");
    require(embedding.bias == nullptr && embedding.scale == 1, "the embedding cannot have a bias or a scale");
    require(output_norm != nullptr, "a norm is missing");
    for (const Rope& rope : ropes) {
        require(rope.dim >= 0 && rope.dim % 2 == 0, "a rotation does not fit a head");
        require(rope.axes.empty() || rope.dim <= kMaxRotated, "a rotation along several axes does not fit");
    }
    const auto mixes = [](const Layer& layer) { return layer.attends() || layer.recurs(); };
    require(std::ranges::any_of(layers, mixes), "no layer sees other positions");
    require(deep_layers == 0 || std::ranges::all_of(layers, mixes), "a part of rows is added where it cannot be");
    require(!layers.front().is_beside, "the first layer is beside none");
    require(!replaces_stream || layers.front().attention_norm == nullptr, "the embedding has a norm of its own");
    require(deep_layers >= 0 && size_t(deep_layers) < layers.size(), "more parts of rows than layers");
    check_layer_inputs();
    check_join();
    check_extracted();
    for (const Projection* p : {&streams.split, &streams.join}) {
        const int32_t others = streams.are_there() ? Streams::kOthers : 0;
        require(hidden_size < (1 << 28), "a row of all streams is too large");
        require_shape(*p, others * hidden_size, others > 0 ? hidden_size : 0);
    }
    for (const Layer& layer : layers) {
        check(layer);
        require(!layer.is_beside || !(&layer - 1)->has_feed_forward(), "a layer is beside one with a feed-forward");
    }
}

void DecoderSpec::check_layer_inputs() const {
    const LayerInputs& in = layer_inputs;
    require(in.size >= 0 && in.size % 32 == 0 && int64_t(in.size) * int64_t(layers.size()) < (1 << 24),
            "what tokens have for layers is too large, or no multiple of 32");
    if (in.size > 0) {
        const auto all = int32_t(in.size * layers.size());
        require_shape(in.table, vocab_size, all);
        require_shape(in.projection, all, hidden_size);
        require(in.norm != nullptr && in.table.bias == nullptr && in.table.scale == 1 && has_up(activation), "a norm is missing");
    }
}

void DecoderSpec::check_streams(const Layer& layer) const {
    require(streams.are_there() == (layer.laurel.narrow.w.rows > 0), "a layer lacks what is for streams, or has it in vain");
    require(!layer.is_cut() || (has_up(activation) && layer.feed_forward_size > 1 && layer.experts.count == 0),
            "gates are cut that are not there");
    if (!streams.are_there()) {
        return;
    }
    const int32_t rank = layer.laurel.narrow.w.rows;
    require(rank > 0 && rank % 32 == 0 && rank <= hidden_size, "a row of activations is no multiple of 32");
    require_shape(layer.laurel.narrow, rank, hidden_size);
    require_shape(layer.laurel.wide, hidden_size, rank);
    const StreamUse& use = layer.streams;
    for (const float* numbers : {layer.laurel.norm, use.router_norm, use.router, use.predict, use.correct, use.scale}) {
        require(numbers != nullptr, "a layer lacks what is for streams");
    }
    require(layer.attends() && layer.experts.count == 0 && layer.has_feed_forward() && layer.injects() && !layer.is_latent() &&
                !layer.is_parallel && !layer.is_beside && layer.output_scale == 1,
            "a layer with streams has what it has no place for");
    require(norm == NormKind::rms && !replaces_stream && !sees_ahead && deep_layers == 0 && !join.is_there(),
            "a decoder with streams has what it has no place for");
}

void DecoderSpec::check_join() const {
    if (!join.is_there()) {
        return;
    }
    require(norm == NormKind::rms && embedding.w.cols % 32 == 0 && join.hidden_size % 32 == 0 && layer_inputs.size == 0 &&
                positions == nullptr && token_type == nullptr && embedding_norm == nullptr,
            "a draft head has what it has no use for");
    require(join.first_position >= 0 && join.first_position <= 1, "a draft head sees nothing");
    if (join.is_wide()) {
        require(join.hidden_size == hidden_size && layers.front().attends() && !layers.front().is_latent() &&
                    layers.front().mixed_gate.w.rows == 0,
                "the first layer of a draft head is not as wide as what it takes");
    } else {
        require_shape(join.projection, hidden_size, joined_size());
    }
    if (join.give.w.rows > 0) {
        require_shape(join.give, join.hidden_size, hidden_size);
    }
    require(given_size() == join.hidden_size, "a draft head does not give what it takes");
    if (join.fuse.w.rows > 0) {
        require_shape(join.fuse, join.hidden_size, join.fuse.w.cols);
    }
    require(!deep_layers, "a draft head has what it has no use for");
}

void DecoderSpec::check_extracted() const {
    require(int64_t(extracted.size()) * hidden_size < (1 << 24), "more layers are asked for than there can be");
    for (const int32_t layer : extracted) {
        require(layer >= 0 && size_t(layer) < layers.size() && !replaces_stream && !streams.are_there() && !is_wide(layer),
                "there is no such layer");
    }
}

void DecoderSpec::check(const Layer& layer) const {
    require(!replaces_stream || (!layer.is_parallel && !layer.is_beside), "a stream that is replaced has nothing beside it");
    require(!layer.recurs() || !sees_ahead, "a layer that keeps a state sees nothing ahead");
    layer.attends() ? check_attention(layer) : layer.recurs() ? check_recurrence(layer) : check_without_mixer(layer);
    require(layer.mixed_norm == nullptr || layer.attends(), "a layer without attention has a norm of what it gives");
    if (layer.injects()) {
        require(layer_inputs.size > 0 && layer.has_feed_forward(), "a layer takes what no token has");
        require_shape(layer.injection.gate, layer_inputs.size, hidden_size);
        require_shape(layer.injection.output, hidden_size, layer_inputs.size);
    }
    require(!layer.is_parallel || layer.post_attention_norm == nullptr, "parallel layers have no norm after attention");
    check_feed_forward(layer);
    check_streams(layer);
}

void DecoderSpec::check_without_mixer(const Layer& layer) const {
    for (const Projection* p : {&layer.key, &layer.value, &layer.mixed_gate, &layer.output}) {
        require_shape(*p, 0, 0);
    }
    const int32_t size = layer.mixer == Mixer::linear ? hidden_size : 0;
    require_shape(layer.query, size, size);
    require(layer.mixer == Mixer::linear || (layer.has_feed_forward() && layer.post_attention_norm == nullptr),
            "a layer has nothing in it");
    require(!layer.is_latent() && !layer.is_beside && !layer.is_parallel && !layer.experts.is_ahead && !layer.borrows() &&
                !streams.are_there() && !replaces_stream,
            "a layer without attention has what it has no place for");
}

void DecoderSpec::check_recurrence(const Layer& layer) const {
    const Recurrence& r = layer.recurrence;
    require(r.taps > 0 && r.taps <= kMaxTaps && r.convolution != nullptr, "a convolution has no weights, or too many");
    if (layer.scans()) {
        return layer.mixer == Mixer::mamba ? check_channels(layer) : check_scan(layer);
    }
    for (const Projection* p : {&layer.query, &layer.key, &layer.value, &layer.output}) {
        require_shape(*p, hidden_size, hidden_size);
    }
}

void DecoderSpec::check_scan(const Layer& layer) const {
    const Recurrence& r = layer.recurrence;
    for (const int32_t size : {r.num_heads, r.num_key_heads, r.key_size, r.value_size}) {
        require(size > 0 && size <= (1 << 16), "a size is zero or negative, or a state too large");
    }
    require(r.num_heads % r.num_key_heads == 0, "heads cannot be shared out to heads of keys");
    require(r.key_size % 16 == 0 && r.value_size % 16 == 0, "the head size is no multiple of 16");
    require(int64_t(r.num_heads) * r.value_size <= (1 << 24) && int64_t(r.num_key_heads) * r.key_size <= (1 << 24),
            "a state is too large");
    require(r.value_row() % 32 == 0, "a row of activations is no multiple of 32");
    require(r.step_bias != nullptr && r.decay_rate != nullptr, "a scan lacks its steps");
    require(r.norm == nullptr || (r.norm_size > 0 && r.norm_size % 16 == 0 && r.value_row() % r.norm_size == 0),
            "a norm does not fit a row");
    require_shape(layer.query, r.key_row(), hidden_size);
    require_shape(layer.key, r.key_row(), hidden_size);
    require_shape(layer.value, r.value_row(), hidden_size);
    require_shape(layer.output, hidden_size, r.value_row());
    if (layer.recalls()) {
        require_shape(layer.beta, r.num_heads, hidden_size);
        require(r.norm_size == r.value_size && r.norm != nullptr, "a norm is missing");
    }
    if (layer.mixer == Mixer::kda) {
        return check_kda(layer);
    }
    require_shape(layer.mixed_gate, r.value_row(), hidden_size);
    require_shape(layer.decay, r.num_heads, hidden_size);
}

void DecoderSpec::check_kda(const Layer& layer) const {
    const Recurrence& r = layer.recurrence;
    require(r.num_key_heads == r.num_heads, "heads cannot be shared out to heads of keys");
    for (const auto& [narrow, wide, rows] : {std::tuple(&layer.decay, &layer.wide_decay, r.key_row()),
                                             std::tuple(&layer.mixed_gate, &layer.wide_gate, r.value_row())}) {
        require(narrow->w.rows > 0 && narrow->w.rows % 32 == 0, "a row of activations is no multiple of 32");
        require_shape(*narrow, narrow->w.rows, hidden_size);
        require_shape(*wide, rows, narrow->w.rows);
    }
}

void DecoderSpec::check_channels(const Layer& layer) const {
    const Recurrence& r = layer.recurrence;
    const int32_t channels = r.num_heads, size = r.key_size, rank = layer.wide_decay.w.cols;
    require(channels > 0 && channels <= (1 << 20) && size > 0 && size <= (1 << 12) && int64_t(channels) * size <= (1 << 24),
            "a size is zero or negative, or a state too large");
    require(channels % 32 == 0 && size % 16 == 0 && rank > 0 && rank % 32 == 0 && rank <= (1 << 20),
            "a row of activations is no multiple of 32");
    require(r.num_key_heads == 1 && r.value_size == 1, "channels have heads");
    require(r.decay_rate != nullptr && r.skip != nullptr, "a scan lacks its steps");
    require((r.low_norm != nullptr) == (r.key_norm != nullptr) && (r.key_norm != nullptr) == (r.query_norm != nullptr),
            "a norm is missing");
    for (const Projection* p : {&layer.query, &layer.key, &layer.decay, &layer.beta}) {
        require_shape(*p, 0, 0);
    }
    require_shape(layer.value, channels, hidden_size);
    require_shape(layer.mixed_gate, channels, hidden_size);
    require_shape(layer.low, rank + 2 * size, channels);
    require_shape(layer.wide_decay, channels, rank);
    require_shape(layer.output, hidden_size, channels);
}

void DecoderSpec::check_attention(const Layer& layer) const {
    const Heads& heads = layer.heads;
    require(heads.num > 0 && heads.num_kv > 0 && heads.size > 0, "a size is zero or negative");
    require(heads.num % heads.num_kv == 0, "query heads cannot be shared out to KV heads");
    require(heads.size % 16 == 0, "the head size is no multiple of 16");
    require(heads.query_size() % 32 == 0, "a row of activations is no multiple of 32");
    require(layer.rope >= 0 && size_t(layer.rope) < ropes.size(), "a layer has no rotation");
    require(ropes[layer.rope].dim <= heads.size, "a rotation does not fit a head");
    if (layer.is_latent()) {
        check_latent(layer);
    } else {
        require_shape(layer.query, heads.query_size(), mixer_cols(int32_t(&layer - layers.data())));
        check_keys(layer);
        require_shape(layer.output, hidden_size, heads.query_size());
    }
    if (layer.mixed_gate.w.rows > 0) {
        require_shape(layer.mixed_gate, heads.query_size(), hidden_size);
    }
    require(layer.head_norms != HeadNorms::whole_row || (layer.query_norm != nullptr && layer.key_norm != nullptr),
            "a norm is missing");
    require(layer.window >= 0, "a window is negative");
    require(input_limit >= 0 && (input_limit == 0 || (!layer.is_latent() && layer.head_norms != HeadNorms::whole_row)),
            "inputs of attention are limited where they cannot be");
    require(!layer.is_chunked || (layer.window > 0 && !sees_ahead && !join.is_there()), "a chunk is empty, or has no place here");
    require(distance_slopes == nullptr || num_distance_slopes >= heads.num, "a head has no slope");
}

void DecoderSpec::check_latent(const Layer& layer) const {
    const Latent& l = layer.latent;
    const int32_t num = layer.heads.num;
    for (const int32_t size : {l.size, l.plain, l.rotated, l.value}) {
        require(size > 0 && size <= (1 << 16) && size % 16 == 0, "a size is zero or negative, or no multiple of 16");
    }
    require(int64_t(num) * std::max({l.size, l.query_size(), l.value}) < (1 << 24), "a row of all heads is too large");
    require(l.size % 32 == 0 && l.plain % 32 == 0 && num * l.value % 32 == 0, "a row of activations is no multiple of 32");
    require(layer.heads.num_kv == 1 && layer.heads.size == l.size + l.rotated && layer.kv_layer == &layer - layers.data(),
            "the heads are not those of a latent vector");
    require(layer.value.w.rows == 0 && layer.mixed_gate.w.rows == 0 && layer.query_norm == nullptr &&
                layer.key_norm == nullptr && layer.head_norms == HeadNorms::before_rope,
            "a layer with a latent vector has what it has no use for");
    const int32_t dim = ropes[layer.rope].dim;
    require(l.norm != nullptr && (dim == l.rotated || dim == 0), "a norm is missing, or a rotation does not fit");
    const bool is_narrow = l.narrow.w.rows > 0;
    require_shape(layer.query, is_narrow ? l.narrow.w.cols : num * l.query_size(), hidden_size);
    require(layer.query.w.rows % 16 == 0, "a row of queries is no multiple of 16");
    if (is_narrow) {
        require_shape(l.narrow, num * l.query_size(), layer.query.w.rows);
        require(l.narrow.w.cols % 32 == 0 && l.query_norm != nullptr, "a norm is missing");
    }
    require_shape(layer.key, l.size + l.rotated, hidden_size);
    require_shape(l.wide, num * l.size, l.plain);
    require_shape(l.out, num * l.value, l.size);
    require_shape(layer.output, hidden_size, num * l.value);
}

void DecoderSpec::check_keys(const Layer& layer) const {
    const auto index = int32_t(&layer - layers.data());
    if (layer.borrows()) {
        require(!sees_ahead && layer.kv_layer == index && layer.window != 1 && layer.key_norm == nullptr &&
                    layer.head_norms != HeadNorms::whole_row,
                "a layer that borrows keys has what it has no use for");
        require_shape(layer.key, 0, 0);
        require_shape(layer.value, 0, 0);
        return;
    }
    if (layer.kv_layer == index) {
        require_shape(layer.key, layer.heads.kv_size(), mixer_cols(index));
        require_shape(layer.value, layer.heads.kv_size(), mixer_cols(index));
        return;
    }
    require(layer.kv_layer >= 0 && layer.kv_layer < index && !sees_ahead, "a layer sees the keys of none before it");
    const Layer& of = layers[layer.kv_layer];
    require(of.kv_layer == layer.kv_layer && of.heads == layer.heads && of.window == layer.window &&
                of.is_chunked == layer.is_chunked,
            "a layer sees the keys of one that is not like it");
    require(layer.head_norms != HeadNorms::whole_row && layer.key_norm == nullptr, "a layer without keys has a norm of them");
    require_shape(layer.key, 0, 0);
    require_shape(layer.value, 0, 0);
}

void DecoderSpec::check_feed_forward(const Layer& layer) const {
    const int32_t inner = layer.feed_forward_size;
    require(inner >= 0 && layer.experts.count >= 0, "a size is negative");
    require(layer.has_feed_forward() || !layer.is_parallel, "a layer without feed-forward has nothing parallel");
    require(inner % 32 == 0, "a row of activations is no multiple of 32");
    require(layer.inner_norm == nullptr || (inner > 0 && !layer.is_cut()), "a norm has no row, or one that is cut");
    if (inner > 0) {
        require_shape(layer.gate, inner, hidden_size);
        require_shape(layer.up, has_up(activation) ? inner : 0, has_up(activation) ? hidden_size : 0);
        require_shape(layer.down, hidden_size, inner);
    }
    if (layer.experts.count > 0) {
        require(activation != Activation::xielu, "experts cannot have this activation");
        require(!layer.experts.is_ahead || layer.post_attention_norm == nullptr, "a router that is ahead meets a norm after attention");
        check(layer.experts);
    }
}

void DecoderSpec::check(const Experts& experts) const {
    const int32_t count = experts.count;
    require(count <= Experts::kMaxCount && experts.used > 0 && experts.used <= count && experts.size > 0,
            "a size is zero or negative, or there are too many experts");
    require(experts.size % 32 == 0, "a row of activations is no multiple of 32");
    const int32_t num_groups = experts.num_groups, used_groups = experts.used_groups;
    require(num_groups > 0 && count % num_groups == 0 && used_groups > 0 && used_groups <= num_groups &&
                experts.used <= count / num_groups * used_groups,
            "experts cannot be chosen from their groups");
    const auto fits = [&](int32_t rows) { return int64_t(count) * rows < (1 << 30); };
    require(fits(experts.size) && fits(hidden_size), "the experts are too large");
    require_shape(experts.router, count, hidden_size);
    require_shape(experts.gate, count * experts.size, hidden_size);
    require_shape(experts.up, has_up(activation) ? count * experts.size : 0, has_up(activation) ? hidden_size : 0);
    require_shape(experts.down, count * hidden_size, experts.size);
    require(!has_up(activation) || experts.gate.w.is_float() == experts.up.w.is_float(),
            "gate and up are not both floats, or both not");
    require(experts.has_own_input() == (experts.router_norm != nullptr || experts.is_ahead) &&
                (!experts.is_ahead || experts.router_norm == nullptr),
            "the experts or their router have no norm");
    require(!experts.weighs_input || (experts.gate.bias == nullptr && experts.up.bias == nullptr && has_up(activation)),
            "the weighted input of experts meets a bias");
    if (experts.has_shared_gate()) {
        require_shape(experts.shared_gate, 1, hidden_size);
    }
}

}  // namespace stoker
