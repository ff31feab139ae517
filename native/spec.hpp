// What a decoder consists of, and what a batch asks of it: plain structures over memory that somebody else keeps.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
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
    float scale = 1;  // of what it gives, before the bias
};

struct Rope {
    bool adjacent;  // pairs 2i, 2i+1; otherwise i, i + dim/2
    int32_t dim;  // 0 = nothing is rotated
    int32_t num_positions;
    const float* table;  // [num_positions][2][dim/2]: cosines, sines
    std::vector<uint8_t> axes;  // of each pair the axis whose position it is turned by; empty = all have one position
};

constexpr int32_t kAxes = 3;           // time, rows, columns
constexpr int32_t kMaxRotated = 1024;  // elements of a head that are turned along several axes

// Query heads, which share heads of keys and values, all of the same size.
struct Heads {
    int32_t num, num_kv, size;

    int32_t group() const { return num / num_kv; }
    int32_t query_size() const { return num * size; }
    int32_t kv_size() const { return num_kv * size; }
    bool operator==(const Heads&) const = default;
};

// layer: the mean is taken away first; biased: behind the weights lies what is added to each element
enum class NormKind : int32_t { rms, layer, layer_biased, rms_biased };

constexpr bool is_biased(NormKind kind) { return kind >= NormKind::layer_biased; }

// When queries and keys are normalised: each head before or after its rotation, or all heads of a row as one before it.
enum class HeadNorms : int32_t { before_rope, after_rope, whole_row };

// What the router's outputs become before the best are chosen, or when they are.
enum class Routing : int32_t { softmax, sigmoid, softmax_of_chosen, sigmoid_of_chosen };

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
    bool weighs_input;  // by its weight an expert's input is multiplied, not what it gives
    bool is_ahead;      // the router sees x as it is before attention; then there is a `norm` of the experts' input
    Projection router;            // [count][hidden]
    const float* selection_bias;  // added to what experts are chosen by, not to their weights; or nullptr
    Projection gate, up;          // [count * size][hidden]
    Projection down;              // [count * hidden][size]
    Projection shared_gate;       // [1][hidden]: by its sigmoid the layer's own block is multiplied; no rows = there is none
    // Of the router's and of the experts' input, where they have others than the layer's own block; else nullptr, both. A router
    // that is ahead has none.
    const float *router_norm, *norm;
    const float *block_norm, *post_norm;  // of what that block and the experts give, before they are added; or nullptr
    const float* output_scales;           // [count]: what each gives is multiplied by it; or nullptr

    bool has_shared_gate() const { return shared_gate.w.rows > 0; }
    bool has_own_input() const { return norm != nullptr; }
};

// By what the positions of a sequence come together. Those from short_conv on keep a state of a sequence (states.hpp) instead of
// keys and values.
enum class Mixer : int32_t {
    none,        // by nothing: the layer is a feed-forward alone
    linear,      // likewise; what is added in place of attention is query(attention_norm(x)), and there is no output
    attention,
    short_conv,  // output(c * convolution(b * x)): `query` gives b, `key` gives c, `value` gives x
    delta_net,   // query, key and value of each head convolved, SiLU, scanned (recurrent.hpp) with keys that are recalled first
    mamba2,      // likewise, with nothing recalled; `query` is what papers call C, `key` B, `value` x
    kda,         // a delta net with a decay for each element of a key, made by two matrices, as its gate is
    mamba,       // `value` gives x, which is convolved; `low` makes B, C and what `wide_decay` makes the steps of (channel_scan.hpp)
};

// What a layer without attention has instead. Of the heads of a scan, several share those of queries and keys.
struct Recurrence {
    int32_t taps;                   // of the convolution
    const float* convolution;       // [taps][channels], the present position's last
    const float* convolution_bias;  // or nullptr, as all that follows for a short convolution
    int32_t num_heads, num_key_heads, key_size, value_size;  // none for a short convolution; heads of mamba are channels
    bool are_interleaved;           // heads h, h + num_key_heads, ... share a key; otherwise neighbours do
    const float* step_bias;         // of each head: step = softplus(decay(x) + step_bias); of kda [head][key element]
    const float* decay_rate;        // a step lets e^(decay_rate * step) of the state remain; of mamba [key element][channel]
    const float* skip;              // of each head: so much of its value is added to what it gives; or nullptr
    const float* norm;              // over runs of norm_size of what is given, before the gate (delta_net) or behind it; or nullptr
    int32_t norm_size;
    float norm_eps;
    const float *low_norm, *key_norm, *query_norm;  // of mamba: of what `low` makes; or nullptr, all of them

    int32_t key_row() const { return num_key_heads * key_size; }
    int32_t value_row() const { return num_heads * value_size; }
    int32_t key_head(int32_t head) const {
        return are_interleaved ? head % num_key_heads : head / (num_heads / num_key_heads);
    }
    size_t head_floats() const { return size_t(key_size) * value_size; }
};

// What is added to x behind the feed-forward, from what each token has for each layer (see LayerInputs):
//   x += norm(output(activation(gate(x)) * input))
struct Injection {
    Projection gate;    // [size][hidden]; no rows = there is none
    Projection output;  // [hidden][size]
    const float* norm;
};

// Keys and values that all heads share, as one short vector of each position. Queries are multiplied into the space where it lies,
// and what attention gives is multiplied out of it, each head with matrices of its own (pass_latent.cpp):
//
//   `query` gives | head 0: plain, rotated | head 1 | ..., or what `narrow` makes these from; `key` gives | latent | rotated |
//   a key, and a value too:  | rotated | norm(latent) |         a query: | rotated | wide(plain) |
struct Latent {
    int32_t size;     // of the vector; 0 = there is none, and nothing below either
    int32_t plain, rotated;  // elements of a head's query
    int32_t value;    // elements that a head gives in the end
    Projection narrow;  // [heads * (plain + rotated)][query rows], or no rows
    Projection wide;    // [heads * size][plain]
    Projection out;     // [heads * value][size]
    const float* query_norm;  // of what `query` gives, with `narrow`
    const float* norm;        // [size]

    int32_t query_size() const { return plain + rotated; }
};

// What is added to the layer's attention besides: its input, changed by a matrix of low rank (LAuReL).
//   norm(wide(narrow(n))) + n      n = attention_norm(x)
struct Laurel {
    Projection narrow;  // [rank][hidden]; no rows = there is none
    Projection wide;    // [hidden][rank]
    const float* norm;
};

// What a layer does with the streams of a token (pass_alt_up.cpp).
struct StreamUse {
    const float* router_norm;
    const float* router;   // [kStreams][hidden]
    const float* predict;  // [kStreams * kStreams][kStreams]
    const float* correct;  // [kStreams][kStreams]
    const float* scale;    // [hidden]: of the first stream, where it meets what a token has for the layer
};

struct Layer {
    Mixer mixer;
    Heads heads;            // none without attention
    Recurrence recurrence;  // none with it
    int32_t feed_forward_size;
    const float* attention_norm;  // nullptr: x as it is, as of the feed-forward
    Projection query, key, value, output;
    Latent latent;
    Projection mixed_gate;   // by its sigmoid (attention) or SiLU what is mixed is multiplied, or no rows
    Projection decay, beta;  // [num_heads][hidden], of scans; beta of delta nets
    Projection low;          // of mamba: [wide_decay's columns | key elements | key elements][channels]
    Projection wide_decay;   // of kda: [key_row][what `decay` gives]; of mamba: [channels][the first of what `low` gives]
    Projection wide_gate;    // of kda: [value_row][what `mixed_gate` gives]
    HeadNorms head_norms;
    const float* query_norm;
    const float* key_norm;
    bool norms_values;  // each head of them, without weights
    int32_t kv_layer;   // whose keys and values it sees: its own, or those of a layer before it; then it has none
    int32_t lent_layer;  // of the model that a draft head drafts for: whose it sees, and has none either; -1 = of none
    const float* sinks;  // of each query head a score of what is never seen, or nullptr
    const float* mixed_norm;  // of all that attention gives of a row, before `output`; or nullptr
    const float* post_attention_norm;
    Laurel laurel;
    StreamUse streams;  // of a model with streams; then the layer has a Laurel, too
    const float* feed_forward_norm;
    std::array<float, kXieluNumbers> xielu;  // of that activation
    Projection gate, up, down;  // beside the experts the block that all rows share, or none of size 0; see has_up
    Experts experts;
    const float* inner_norm;  // of a row as `down` takes it; or nullptr. Not of experts
    float gate_cut;  // of a row of gates what is not so many deviations above its mean counts as that; -infinity = all count
    const float* post_feed_forward_norm;
    Injection injection;
    float output_scale;  // of x behind the layer
    const float* output_norm;  // likewise: what it gives takes the place of x; or nullptr
    bool is_parallel;  // the feed-forward does not see what attention added
    bool is_beside;    // nor does its mixer see what the layer before it added, which has no feed-forward
    int32_t rope;
    int32_t window;  // 0 = none
    bool is_chunked;  // see AttentionRows
    bool scales_queries;  // by `query_scales`

    bool attends() const { return mixer == Mixer::attention; }
    bool recurs() const { return mixer >= Mixer::short_conv; }
    bool has_feed_forward() const { return feed_forward_size > 0 || experts.count > 0; }
    bool is_latent() const { return latent.size > 0; }
    bool borrows() const { return lent_layer >= 0; }
    bool injects() const { return injection.gate.w.rows > 0; }
    bool is_cut() const { return gate_cut > -std::numeric_limits<float>::infinity(); }
    // Of what is added last.
    const float* last_norm() const { return injects() ? injection.norm : post_feed_forward_norm; }
    bool scans() const { return mixer >= Mixer::delta_net; }
    bool recalls() const { return mixer == Mixer::delta_net || mixer == Mixer::kda; }
    // What the mixer begins with, of each row: | query | key | value | mixed_gate | decay | beta | laurel |, but | value | key |
    // query | ... for mamba2, as its convolution has them.
    static constexpr int32_t kInputs = 7, kGate = 3, kDecay = 4, kBeta = 5, kLaurel = 6;
    const Projection& input(int32_t part) const;
    int32_t input_at(int32_t part) const;  // where it begins
    int32_t input_size() const { return input_at(kInputs); }
    int32_t mixed_size() const { return output.w.cols; }
    int32_t num_channels() const { return mixer == Mixer::short_conv ? mixed_size() : input_at(kGate); }
    // Floats that it keeps of a sequence: | convolution | head 0 | head 1 | ...
    size_t convolution_floats() const { return recurs() ? size_t(recurrence.taps - 1) * num_channels() : 0; }
    size_t state_floats() const {
        return convolution_floats() + (scans() ? recurrence.num_heads * recurrence.head_floats() : 0);
    }
};

// What a token has for each layer: norm(projection(x)) + table_scale * table[token], where x is its embedding.
struct LayerInputs {
    int32_t size;           // of a layer; 0 = there are none
    Projection table;       // [vocab_size][layers * size]
    Projection projection;  // [layers * size][hidden]
    const float* norm;      // [size], of each layer
    float norm_eps, table_scale;
};

// A token's x as several streams (pass_alt_up.cpp): how the others are made from the first, and all of them made one again.
struct Streams {
    static constexpr int32_t kCount = 4, kOthers = kCount - 1;

    Projection split, join;  // [kOthers * hidden][hidden]; no rows = there is one stream

    bool are_there() const { return split.w.rows > 0; }
};

// What a draft head begins with in place of an embedding (pass_draft_head.cpp):
//
//   both = | embedding_norm(embedding) | hidden_norm(h) |     h: a hidden state, or fuse(fuse_norm(those of several layers))
//   x = projection(both), or x = h, and `both` is what the first mixer multiplies
struct Join {
    int32_t hidden_size;    // of h; 0 = there is none, and nothing below either
    Projection projection;  // [hidden][both]; no rows = the first mixer multiplies it
    const float *embedding_norm, *hidden_norm;
    Projection fuse;        // [h][of all layers]; no rows = nothing is fused
    const float* fuse_norm;  // or nullptr
    Projection give;         // [hidden state][hidden]: the hidden states that it gives are these of the normalised ones; or no rows
    bool keeps_norm;         // x = hidden_norm(h), where there is no projection
    bool gives_sum;          // hidden states that it gives are not normalised
    int32_t first_position;  // positions before it are not seen

    bool is_there() const { return hidden_size > 0; }
    bool is_wide() const { return is_there() && projection.w.rows == 0; }
};

struct DecoderSpec {
    int32_t vocab_size, hidden_size;
    float norm_eps;
    NormKind norm;  // of the residual stream
    Activation activation;
    float attention_scale, attention_softcap, embedding_scale, logit_softcap;
    float input_limit;  // queries, keys and values stay within plus and minus this before they are rotated; 0 = off
    float input_scale;  // of rows that stand in place of embeddings
    int32_t deep_layers;  // the first ones, behind each of which such a row has a part of its own to add
    Projection embedding, head;
    LayerInputs layer_inputs;
    Streams streams;
    Join join;
    const float* output_norm;
    const float* query_scales;  // by position, [num_query_scales], or nullptr
    int32_t num_query_scales;
    bool sees_ahead;                // a position sees all of its sequence, which comes whole
    bool replaces_stream;           // what a norm in front of a layer, or of its feed-forward, gives takes the place of x
    const float* positions;         // added to embeddings: [num_embedded_positions][hidden_size], or nullptr
    int32_t num_embedded_positions;
    const float* token_type;        // likewise, to all alike
    const float* embedding_norm;    // of the sum, or nullptr
    const float* distance_slopes;   // see AttentionRows: of the query heads of every layer, or nullptr
    int32_t num_distance_slopes;
    std::vector<Rope> ropes;
    std::vector<Layer> layers;
    std::vector<int32_t> extracted;  // layers whose x, as it comes into them, a batch may ask for

    // The numbers of its matrices: embedding, head, and of each layer query, key, value, output, gate, up, down.
    static constexpr int32_t kEmbedding = 0, kHead = 1, kFirstLayer = 2, kLayerPlaces = 7;
    int32_t num_places() const { return kFirstLayer + kLayerPlaces * int32_t(layers.size()); }
    const Projection& at(int32_t place) const;

    int32_t num_positions() const;  // that every rope has
    int32_t input_size() const { return (1 + deep_layers) * embedding.w.cols; }
    int32_t given_size() const { return join.give.w.rows > 0 ? join.give.w.rows : hidden_size; }  // of a hidden state that it gives
    int32_t num_logits() const { return head.w.rows; }  // of a draft head perhaps fewer than there are tokens
    int32_t joined_size() const { return join.is_there() ? embedding.w.cols + join.hidden_size : 0; }
    // Of what the mixer of a layer multiplies.
    bool is_wide(int32_t layer) const { return layer == 0 && join.is_wide(); }
    int32_t mixer_cols(int32_t layer) const { return is_wide(layer) ? joined_size() : hidden_size; }
    int32_t extracted_size() const { return int32_t(extracted.size()) * hidden_size; }
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
    void check_keys(const Layer& layer) const;
    void check_latent(const Layer& layer) const;
    void check_layer_inputs() const;
    void check_streams(const Layer& layer) const;
    void check_join() const;
    void check_extracted() const;
    void check_recurrence(const Layer& layer) const;
    void check_without_mixer(const Layer& layer) const;
    void check_scan(const Layer& layer) const;
    void check_kda(const Layer& layer) const;
    void check_channels(const Layer& layer) const;
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
    const int32_t* tokens;  // ids; below 0, row -1 - id of `inputs` stands in place of an embedding
    int32_t num_tokens;
    const Chunk* chunks;
    int32_t num_chunks;
    const int32_t* tables;  // [slots][max_pages]
    const int32_t* window_tables;  // likewise, of layers whose pages are their own; of pages before the window anything
    int32_t num_slots, max_pages;
    float* logits;  // [num_rows][vocab_size]
    int32_t num_rows;
    float* hidden;  // [num_tokens][given_size()] or nullptr
    float* logit_hidden;  // likewise, of the rows of logits alone
    const float* joined;  // [num_tokens][join.hidden_size]: hidden states that a draft head joins to the embeddings; else nullptr
    const float* features;  // [num_tokens][join.fuse.w.cols]: in their place, what they are fused from; else nullptr
    float* extracted;       // [num_tokens][extracted_size()] or nullptr
    float* maxima;  // [num_rows][num_maxima(vocab_size)], see sampling.hpp, or nullptr
    const AdapterUse* uses;   // in the order of the chunks
    const float* use_scales;  // one for each
    int32_t num_uses;
    const float* inputs;  // [num_inputs][input_size()]
    int32_t num_inputs;
    const int32_t* sees_to;  // of each token the end of the positions that it sees if that is behind its own; nullptr = none
    const int32_t* rotary;   // [num_tokens][kAxes]: by which positions each is rotated; nullptr = by its place
};

}  // namespace stoker
