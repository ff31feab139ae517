// What a decoder consists of, and what a batch asks of it: plain structures over memory that somebody else keeps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels.hpp"
#include "recurrent.hpp"
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

// By what the positions of a sequence come together. All but attention keep a state of a sequence (states.hpp) instead of keys
// and values.
enum class Mixer : int32_t {
    attention,
    short_conv,  // output(c * convolution(b * x)): `query` gives b, `key` gives c, `value` gives x
    delta_net,   // query, key and value of each head convolved, SiLU, scanned (recurrent.hpp) with keys that are recalled first
    mamba2,      // likewise, with nothing recalled; `query` is what papers call C, `key` B, `value` x
};

// What a layer without attention has instead. Of the heads of a scan, several share those of queries and keys.
struct Recurrence {
    int32_t taps;                   // of the convolution
    const float* convolution;       // [taps][channels], the present position's last
    const float* convolution_bias;  // or nullptr, as all that follows for a short convolution
    int32_t num_heads, num_key_heads, key_size, value_size;  // none for a short convolution
    bool are_interleaved;           // heads h, h + num_key_heads, ... share a key; otherwise neighbours do
    const float* step_bias;         // of each head: step = softplus(decay(x) + step_bias)
    const float* decay_rate;        // a step lets e^(decay_rate * step) of the state remain
    const float* skip;              // of each head: so much of its value is added to what it gives; or nullptr
    const float* norm;              // over runs of norm_size of what is given, before the gate (delta_net) or behind it; or nullptr
    int32_t norm_size;
    float norm_eps;

    int32_t key_row() const { return num_key_heads * key_size; }
    int32_t value_row() const { return num_heads * value_size; }
    int32_t key_head(int32_t head) const {
        return are_interleaved ? head % num_key_heads : head / (num_heads / num_key_heads);
    }
    size_t head_floats() const { return size_t(key_size) * value_size; }
};

struct Layer {
    Mixer mixer;
    Heads heads;            // none without attention
    Recurrence recurrence;  // none with it
    int32_t feed_forward_size;
    const float* attention_norm;  // nullptr: x as it is, as of the feed-forward
    Projection query, key, value, output;
    Projection mixed_gate;   // by its sigmoid (attention) or SiLU what is mixed is multiplied, or no rows
    Projection decay, beta;  // [num_heads][hidden], of scans; beta of delta nets
    HeadNorms head_norms;
    const float* query_norm;
    const float* key_norm;
    const float* sinks;  // of each query head a score of what is never seen, or nullptr
    const float* post_attention_norm;
    const float* feed_forward_norm;
    Projection gate, up, down;  // beside the experts the block that all rows share, or none of size 0; see has_up
    Experts experts;
    const float* post_feed_forward_norm;
    bool is_parallel;  // the feed-forward does not see what attention added
    bool is_beside;    // nor does its mixer see what the layer before it added, which has no feed-forward
    int32_t rope;
    int32_t window;  // 0 = none

    bool attends() const { return mixer == Mixer::attention; }
    bool has_feed_forward() const { return feed_forward_size > 0 || experts.count > 0; }
    bool scans() const { return mixer == Mixer::delta_net || mixer == Mixer::mamba2; }
    // What the mixer begins with, of each row: | query | key | value | mixed_gate | decay | beta |, but | value | key | query | ...
    // for mamba2, as its convolution has them.
    static constexpr int32_t kInputs = 6, kGate = 3, kDecay = 4, kBeta = 5;
    const Projection& input(int32_t part) const;
    int32_t input_at(int32_t part) const;  // where it begins
    int32_t input_size() const { return input_at(kInputs); }
    int32_t mixed_size() const { return output.w.cols; }
    int32_t num_channels() const { return mixer == Mixer::short_conv ? mixed_size() : input_at(kGate); }
    // Floats that it keeps of a sequence: | convolution | head 0 | head 1 | ...
    size_t convolution_floats() const { return attends() ? 0 : size_t(recurrence.taps - 1) * num_channels(); }
    size_t state_floats() const {
        return convolution_floats() + (scans() ? recurrence.num_heads * recurrence.head_floats() : 0);
    }
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
    void check_attention(const Layer& layer) const;
    void check_recurrence(const Layer& layer) const;
    void check_scan(const Layer& layer) const;
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
