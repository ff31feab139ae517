// What a decoder consists of, and what a batch asks of it: plain structures over memory that somebody else keeps.
#pragma once

#include <algorithm>
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

// Query heads, which share heads of keys and values, all of the same size.
struct Heads {
    int32_t num, num_kv, size;

    int32_t group() const { return num / num_kv; }
    int32_t query_size() const { return num * size; }
    int32_t kv_size() const { return num_kv * size; }
    int32_t all_size() const { return query_size() + 2 * kv_size(); }
    bool operator==(const Heads&) const = default;
};

enum class NormKind : int32_t { rms, layer };  // layer: the mean is taken away first

// When queries and keys are normalised: each head before or after its rotation, or all heads of a row as one before it.
enum class HeadNorms : int32_t { before_rope, after_rope, whole_row };

// What the router's outputs become before the best are chosen, or when they are.
enum class Routing : int32_t { softmax, sigmoid, softmax_of_chosen };

// Equal feed-forward blocks, of which each row is computed with a few (experts.hpp). A matrix holds all of them, one below the
// other, so that an expert is a range of its tiles.
struct Experts {
    static constexpr int32_t kMaxCount = 1024;

    int32_t count;  // 0 = the layer has none, and nothing else here means anything
    int32_t used;   // by a row
    int32_t size;   // of the feed-forward of one
    int32_t num_groups, used_groups;  // experts are chosen from the best groups; one of one = all
    Routing routing;
    bool is_normalised;  // the weights of a row add up to 1 before they are multiplied by `scale`
    float scale;
    Projection router;            // [count][hidden]
    const float* selection_bias;  // added to what experts are chosen by, not to their weights; or nullptr
    Projection gate, up;          // [count * size][hidden]
    Projection down;              // [count * hidden][size]
    Projection shared_gate;       // [1][hidden]: by its sigmoid the layer's own block is multiplied; no rows = there is none

    bool has_shared_gate() const { return shared_gate.w.rows > 0; }
};

struct Layer {
    Heads heads;
    int32_t feed_forward_size;
    const float* attention_norm;  // nullptr: x as it is, as of the feed-forward
    Projection query, key, value, output;
    HeadNorms head_norms;
    const float* query_norm;
    const float* key_norm;
    const float* sinks;  // of each query head a score of what is never seen, or nullptr
    const float* post_attention_norm;
    const float* feed_forward_norm;
    Projection gate, up, down;  // beside the experts the block that all rows share, or none of size 0
    Experts experts;
    const float* post_feed_forward_norm;
    bool is_parallel;  // the feed-forward does not see what attention added
    int32_t rope;
    int32_t window;  // 0 = none
};

struct DecoderSpec {
    int32_t vocab_size, hidden_size;
    float norm_eps;
    NormKind norm;  // of the residual stream
    Activation activation;
    float attention_scale, attention_softcap, embedding_scale, logit_softcap;
    Projection embedding, head;
    const float* output_norm;
    const float* query_scales;  // by position, [num_query_scales], or nullptr
    int32_t num_query_scales;
    std::vector<Rope> ropes;
    std::vector<Layer> layers;

    // The numbers of its matrices: embedding, head, and of each layer query, key, value, output, gate, up, down.
    static constexpr int32_t kEmbedding = 0, kHead = 1, kFirstLayer = 2, kLayerPlaces = 7;
    int32_t num_places() const { return kFirstLayer + kLayerPlaces * int32_t(layers.size()); }
    const Projection& at(int32_t place) const;

    int32_t num_positions() const;  // that every rope has
    // The largest of any layer.
    template <class Size> int32_t largest(const Size& size_of) const {
        int32_t found = 0;
        for (const Layer& layer : layers) {
            found = std::max(found, int32_t(size_of(layer)));
        }
        return found;
    }
    void check() const;  // throws std::invalid_argument

private:
    void check(const Layer& layer) const;
    void check_feed_forward(const Layer& layer) const;
    void check(const Experts& experts) const;
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
