// A decoder-only transformer over packed weights: what it consists of, and one ragged forward pass over any mix of chunks.
// It allocates when it is built, not when it computes; it opens no file and knows no names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapters.hpp"
#include "buffer.hpp"
#include "experts.hpp"
#include "kernels.hpp"
#include "kv.hpp"
#include "plan.hpp"
#include "pool.hpp"
#include "rows.hpp"
#include "states.hpp"

namespace stoker {

// What one thread has for itself.
struct alignas(64) Worker {
    Buffer<uint8_t> matmul;
    Buffer<float> attention;  // scores, and codes
    Buffer<float> partials;   // of the rows of one piece, twice: all spans so far, and one span
    Buffer<float> x, normed;  // a few rows
    Buffer<uint8_t> codes;    // of these
    Buffer<float> row;        // one more
    Buffer<uint8_t> part_codes;  // of a part of all rows
    Buffer<float> layer_row;  // what a token has for all layers
    Buffer<float> gate, up;   // of one piece
    Buffer<float> sink;       // a partial result
    Buffer<float> steps;      // of a scan: 4 numbers for each row
    Buffer<uint8_t> gathered; // codes of the rows of one expert
    Buffer<float> gathered_x; // and as they were
    AttentionAhead fetched = {};  // of these pages the keys
    uint64_t prepared = 0;    // the pass and stage whose input is in `x`, `normed` and `codes`
    uint64_t is_gathered = 0; // the pass, stage and group whose rows are in `gathered`
    uint64_t added = 0;       // the pass and how many y are in `x`
};

class Decoder {
public:
    // `num_window_pages`: pages of their own for layers with a window; 0 = they lie in the pages of all layers. `num_states`: slots of
    // a model with recurrent layers. `cores` and `cpus`: as of the pool. `lender`: the model whose keys a draft head sees, which
    // outlives every pass of it.
    Decoder(DecoderSpec spec, const Kernels& kernels, KvType kv_type, int32_t num_pages, int32_t num_window_pages,
            int32_t num_states, int32_t max_batch_tokens, int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus,
            Decoder* lender = nullptr);

    // Throws std::invalid_argument before anything is computed.
    void forward(const Batch& batch);
    KvCache& kv() { return kv_; }
    KvCache& window_kv() { return window_kv_; }
    KvCache& kv(int32_t layer) { return has_window_pages(layer) ? window_kv_ : kv_; }
    // Whose keys and values a layer sees, and of which layer there.
    KvCache& seen_kv(int32_t layer) { return borrows(layer) ? lender_->kv(spec_.layers[layer].lent_layer) : kv(layer); }
    int32_t seen_layer(int32_t layer) const { return borrows(layer) ? spec_.layers[layer].lent_layer : spec_.layers[layer].kv_layer; }
    bool sees_window_pages(int32_t layer) const {
        return borrows(layer) ? lender_->has_window_pages(spec_.layers[layer].lent_layer) : has_window_pages(layer);
    }
    bool borrows(int32_t layer) const { return spec_.layers[layer].borrows(); }
    bool has_window_pages(int32_t layer) const { return window_kv_.num_pages() > 0 && spec_.layers[layer].window > 0; }
    States& states() { return states_; }
    // Between two passes. `add` checks nothing.
    void add_adapter(int32_t id, Adapter adapter);
    void remove_adapter(int32_t id) { adapters_.remove(id); }
    const DecoderSpec& spec() const { return spec_; }
    const char* kernels_name() const { return kernels_.name; }

private:
    friend class Pass;

    void take_memory_for_experts();
    void take_memory_for_latent_keys();
    // Floats of each of a scan's numbers for all rows.
    size_t steps_stride() const { return divided_up(max_batch_tokens_, 16) * 16; }

    int32_t feed_forward_size() const;  // the largest
    void check(const Batch& batch) const;
    void check(const Batch& batch, const Chunk& chunk) const;
    void check_pages(const KvCache& kv, const int32_t* table, int32_t first, int64_t end) const;
    void check_states(const Batch& batch) const;
    void check_lender() const;

    DecoderSpec spec_;
    const Kernels& kernels_;
    Decoder* const lender_;
    KvCache kv_, window_kv_;
    States states_;
    const int32_t max_batch_tokens_;
    Adapters adapters_;
    Plan plan_;

    // Rows of activations between the stages; x_[1] is for a few rows only; gate_ for down's weights
    // that are floats, and for adapters.
    Buffer<float> x_[2], normed_, qkv_, attended_, y_, gate_, span_partials_;
    Buffer<float> low_, wide_decays_, wide_gates_;  // see Layer
    Buffer<float> latent_keys_, latent_narrow_, latent_queries_, latent_mixed_;
    Buffer<float> features_, fused_, joined_;  // of a draft head: what is fused, that, and two parts of each row
    Buffer<float> streams_, laurel_, joined_streams_;  // streams of a row lie one behind the other
    Buffer<float> up_;                                 // beside gate_, where gates are cut
    Buffer<float> layer_inputs_, injected_;  // of all layers, and what one makes of its own
    Buffer<uint8_t> codes_, down_codes_;
    ExpertRows expert_rows_;
    // What the router gave: [row][ld_scores_], the shared gate's in the last tile; the inputs of experts' `down`, as floats where
    // its weights are; and what experts gave, by entry.
    Buffer<float> scores_, expert_gate_, expert_y_;
    Buffer<uint8_t> expert_codes_;
    int32_t ld_scores_ = 0;
    std::vector<Worker> workers_;
    uint64_t num_passes_ = 0;

    Pool pool_;  // last: its threads end before what they use
};

}  // namespace stoker
