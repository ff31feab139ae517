// A decoder-only transformer over packed weights: what it consists of, and one ragged forward pass over any mix of chunks.
// It allocates when it is built, not when it computes; it opens no file and knows no names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "kv.hpp"
#include "pool.hpp"
#include "rows.hpp"

namespace stoker {

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

    int32_t group() const { return num_heads / num_kv_heads; }
    int32_t query_size() const { return num_heads * head_size; }
    int32_t kv_size() const { return num_kv_heads * head_size; }
    int32_t num_positions() const;  // that every rope has
    void check() const;             // throws std::invalid_argument
};

struct Chunk {
    int32_t slot, start, length, num_logits;
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
};

// Memory on a cache line's border.
template <class T> class Buffer {
public:
    explicit Buffer(size_t n = 0) : memory_(n ? static_cast<T*>(::operator new(n * sizeof(T), kAlign)) : nullptr) {}
    T* get() const { return memory_.get(); }

private:
    static constexpr std::align_val_t kAlign{64};
    struct Free {
        void operator()(T* p) const { ::operator delete(p, kAlign); }
    };
    std::unique_ptr<T[], Free> memory_;
};

// What one thread has for itself.
struct Worker {
    int32_t rows = 0;     // of activations that it goes on with
    bool is_few = false;  // so it normalises and quantises all of them, in buffers of its own
    Buffer<uint8_t> matmul;
    Buffer<float> attention;  // scores
    Buffer<float> partials;   // of the rows of one piece, twice: all spans so far, and one span
    Buffer<float> x, normed;  // a few rows
    Buffer<uint8_t> codes;    // of these
    Buffer<float> row;        // one more
};

class Decoder {
public:
    // Up to so many rows every thread normalises and quantises all of them for itself: cheaper than a barrier.
    static constexpr int32_t kFewRows = 4;

    Decoder(DecoderSpec spec, const Kernels& kernels, KvType kv_type, int32_t num_pages, int32_t max_batch_tokens,
            int32_t num_threads);

    // Throws std::invalid_argument before anything is computed.
    void forward(const Batch& batch);
    KvCache& kv() { return kv_; }
    const DecoderSpec& spec() const { return spec_; }
    const char* kernels_name() const { return kernels_.name; }

private:
    friend class Pass;

    // Consecutive tokens of a chunk, for attention.
    struct Piece {
        int32_t chunk, row, position, num_tokens;
        bool wants_logits;
    };
    // A piece, a KV head and, if spans are computed apart, a span with the place of its result.
    struct Unit {
        int32_t piece, head, span;
        float* partials;
    };

    void check(const Batch& batch) const;
    void check(const Batch& batch, const Chunk& chunk) const;
    void plan(const Batch& batch);
    void plan_rows(const Batch& batch);
    void plan_attention(const Batch& batch);
    bool selects_rows(int32_t layer) const { return last_layer_selects_ && layer + 1 == int32_t(spec_.layers.size()); }
    bool is_wanted(int32_t layer, const Piece& piece) const { return piece.wants_logits || !selects_rows(layer); }
    AttentionRows attention_rows(const Batch& batch, int32_t layer, int32_t piece, int32_t head);

    DecoderSpec spec_;
    const Kernels& kernels_;
    KvCache kv_;
    const int32_t max_batch_tokens_;
    const int32_t piece_tokens_, piece_rows_;  // most of an attention piece
    const int32_t query_key_value_;            // floats of a row of qkv_

    // Shared by the threads; rows of activations between the stages.
    Buffer<float> x_, normed_, qkv_, attended_, y_, gate_, up_, span_partials_;
    Buffer<uint8_t> codes_;
    size_t num_span_partials_;
    std::vector<Worker> workers_;

    // The plan of one pass.
    std::vector<int32_t> row_position_, row_chunk_, logit_row_;
    std::vector<Piece> pieces_;
    std::vector<Unit> units_;
    bool spans_apart_ = false;
    bool rotate_with_attention_ = false;
    bool last_layer_selects_ = false;

    Pool pool_;  // last: its threads end before what they use
};

}  // namespace stoker
