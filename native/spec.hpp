// What a decoder consists of, and what a batch asks of it: plain structures over memory that somebody else keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels.hpp"
#include "rows.hpp"

namespace stoker {

// Of what comes from outside.
inline void require(bool condition, const char* message) {
    if (!condition) {
        throw std::invalid_argument(message);
    }
}

// Every vector is followed by zeros up to a multiple of 16 floats; a missing one is nullptr.
struct Projection {
    Matrix w;
    const float* bias;
};

struct Rope {
    bool adjacent;  // pairs 2i, 2i+1; otherwise i, i + dim/2
    int32_t dim;
    int32_t num_positions;
    const float* table;  // [num_positions][2][dim/2]: cosines, sines
};

struct Layer {
    const float* attention_norm;
    Projection query, key, value, output;
    const float* query_norm;
    const float* key_norm;
    const float* post_attention_norm;
    const float* feed_forward_norm;
    Projection gate, up, down;
    const float* post_feed_forward_norm;
    int32_t rope;
    int32_t window;  // 0 = none
};

struct DecoderSpec {
    int32_t vocab_size, hidden_size, num_heads, num_kv_heads, head_size, feed_forward_size;
    float norm_eps;
    Activation activation;
    float attention_scale, attention_softcap, embedding_scale, logit_softcap;
    Projection embedding, head;
    const float* output_norm;
    std::vector<Rope> ropes;
    std::vector<Layer> layers;

    // The numbers of its matrices: embedding, head, and of each layer query, key, value, output, gate, up, down.
    static constexpr int32_t kEmbedding = 0, kHead = 1, kFirstLayer = 2, kLayerPlaces = 7;
    int32_t num_places() const { return kFirstLayer + kLayerPlaces * int32_t(layers.size()); }
    const Projection& at(int32_t place) const;

    int32_t group() const { return num_heads / num_kv_heads; }
    int32_t query_size() const { return num_heads * head_size; }
    int32_t kv_size() const { return num_kv_heads * head_size; }
    int32_t num_positions() const;  // that every rope has
    void check() const;             // throws std::invalid_argument
};

struct Chunk {
    int32_t slot, start, length, num_logits;
};

// A chunk is computed with an adapter.
struct AdapterUse {
    int32_t chunk, adapter;
};

struct Batch {
    const int32_t* tokens;
    int32_t num_tokens;
    const Chunk* chunks;
    int32_t num_chunks;
    const int32_t* tables;  // [slots][max_pages]
    int32_t num_slots, max_pages;
    float* logits;  // [num_rows][vocab_size]
    int32_t num_rows;
    float* hidden;  // [num_tokens][hidden_size] or nullptr
    float* maxima;  // [num_rows][num_maxima(vocab_size)], see sampling.hpp, or nullptr
    const AdapterUse* uses;   // in the order of the chunks
    const float* use_scales;  // one for each
    int32_t num_uses;
};

}  // namespace stoker
