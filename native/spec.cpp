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
    return n;
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
    require(vocab_size > 0 && hidden_size > 0 && num_kv_heads > 0 && head_size > 0 && feed_forward_size > 0 &&
                num_heads > 0 && !layers.empty() && !ropes.empty(),
            "a size is zero or negative");
    require(num_heads % num_kv_heads == 0, "query heads cannot be shared out to KV heads");
    require(head_size % 16 == 0, "the head size is no multiple of 16");
    require(hidden_size % 32 == 0 && feed_forward_size % 32 == 0 && query_size() % 32 == 0,
            "a row of activations is no multiple of 32");
    require_shape(embedding, vocab_size, hidden_size);
    require_shape(head, vocab_size, hidden_size);
    require(embedding.bias == nullptr && head.bias == nullptr, "the embedding and the head cannot have biases");
    require(output_norm != nullptr, "a norm is missing");
    for (const Rope& rope : ropes) {
        require(rope.dim > 0 && rope.dim % 2 == 0 && rope.dim <= head_size, "a rotation does not fit a head");
    }
    for (const Layer& layer : layers) {
        require_shape(layer.query, query_size(), hidden_size);
        require_shape(layer.key, kv_size(), hidden_size);
        require_shape(layer.value, kv_size(), hidden_size);
        require_shape(layer.output, hidden_size, query_size());
        require_shape(layer.gate, feed_forward_size, hidden_size);
        require_shape(layer.up, feed_forward_size, hidden_size);
        require_shape(layer.down, hidden_size, feed_forward_size);
        require(layer.attention_norm != nullptr && layer.feed_forward_norm != nullptr, "a norm is missing");
        require(layer.rope >= 0 && size_t(layer.rope) < ropes.size(), "a layer has no rotation");
        require(layer.window >= 0, "a window is negative");
    }
}

}  // namespace stoker
