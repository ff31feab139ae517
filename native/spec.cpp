#include "spec.hpp"

#include <algorithm>
#include <limits>

namespace stoker {

namespace {

void require_shape(const Projection& p, int32_t rows, int32_t cols) {
    require(p.w.rows == rows && p.w.cols == cols, "a matrix has another shape than the sizes say");
}

}  // namespace

int32_t DecoderSpec::num_positions() const {
    int32_t n = std::numeric_limits<int32_t>::max();
    for (const Rope& rope : ropes) {
        n = std::min(n, rope.num_positions);
    }
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
    require_shape(embedding, vocab_size, hidden_size);
    require_shape(head, vocab_size, hidden_size);
    require(embedding.bias == nullptr && head.bias == nullptr, "the embedding and the head cannot have biases");
    require(output_norm != nullptr, "a norm is missing");
    for (const Rope& rope : ropes) {
        require(rope.dim > 0 && rope.dim % 2 == 0, "a rotation does not fit a head");
    }
    for (const Layer& layer : layers) {
        check(layer);
    }
}

void DecoderSpec::check(const Layer& layer) const {
    const Heads& heads = layer.heads;
    require(heads.num > 0 && heads.num_kv > 0 && heads.size > 0, "a size is zero or negative");
    require(heads.num % heads.num_kv == 0, "query heads cannot be shared out to KV heads");
    require(heads.size % 16 == 0, "the head size is no multiple of 16");
    require(heads.query_size() % 32 == 0, "a row of activations is no multiple of 32");
    require_shape(layer.query, heads.query_size(), hidden_size);
    require_shape(layer.key, heads.kv_size(), hidden_size);
    require_shape(layer.value, heads.kv_size(), hidden_size);
    require_shape(layer.output, hidden_size, heads.query_size());
    require(layer.head_norms != HeadNorms::whole_row || (layer.query_norm != nullptr && layer.key_norm != nullptr),
            "a norm is missing");
    require(!layer.is_parallel || layer.post_attention_norm == nullptr, "parallel layers have no norm after attention");
    require(layer.rope >= 0 && size_t(layer.rope) < ropes.size(), "a layer has no rotation");
    require(ropes[layer.rope].dim <= heads.size, "a rotation does not fit a head");
    require(layer.window >= 0, "a window is negative");
    check_feed_forward(layer);
}

void DecoderSpec::check_feed_forward(const Layer& layer) const {
    const int32_t inner = layer.feed_forward_size;
    require(inner >= 0 && layer.experts.count >= 0 && (inner > 0 || layer.experts.count > 0), "a size is zero or negative");
    require(inner % 32 == 0, "a row of activations is no multiple of 32");
    if (inner > 0) {
        require_shape(layer.gate, inner, hidden_size);
        require_shape(layer.up, inner, hidden_size);
        require_shape(layer.down, hidden_size, inner);
    }
    if (layer.experts.count > 0) {
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
    require_shape(experts.up, count * experts.size, hidden_size);
    require_shape(experts.down, count * hidden_size, experts.size);
    require(experts.gate.w.is_float() == experts.up.w.is_float(), "gate and up are not both floats, or both not");
    if (experts.has_shared_gate()) {
        require_shape(experts.shared_gate, 1, hidden_size);
    }
}

}  // namespace stoker
