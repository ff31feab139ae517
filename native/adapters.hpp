// LoRA adapters: changes of low rank to matrices, for those rows of a batch that ask for them and for no others.
//
//   y = W x + scale (B t),  t = A x
//
//   a  [rank][inputs]             t: for each rank one dot product, in 16 lanes over the inputs, then one tree over the lanes
//   b  [tile][rank][16 outputs]   B t: over the ranks in order, from 0
//
// All t of a stage's products are computed before these (a stage `project`); B t is added to what a product wrote while it is
// in the cache, before anything else is done with it. Of the embedding, A is looked up: [token][rank] are its t.
// A row's operations depend on nothing but its own adapters, in the order in which it names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "buffer.hpp"
#include "low_rank.hpp"
#include "spec.hpp"

namespace stoker {

using Adapter = std::vector<LowRank>;  // by place, see DecoderSpec

// The loaded adapters, and which rows of the present pass ask for which.
class Adapters {
public:
    explicit Adapters(const DecoderSpec& spec) : spec_(spec) {}

    void add(int32_t id, Adapter adapter) { loaded_[id] = std::move(adapter); }
    void remove(int32_t id) { loaded_.erase(id); }
    void check(const Batch& batch) const;  // throws std::invalid_argument

    // For each pass anew.
    void begin(const Batch& batch);
    bool changes(int32_t place) const { return !rows_[0].empty() && is_changed_[place]; }

    // The t of the products with `count` matrices from `place` on, in so many units; 0 = nobody changes them.
    // `of_logits`: the rows are those that want logits.
    int32_t num_units(int32_t place, int32_t count, bool of_logits) const;
    void project(const AdapterKernels& k, int32_t place, bool of_logits, int32_t unit0, int32_t unit1, const float* x,
                 int32_t ldx);
    // Adds what the adapters make of matrix `place + part` to the outputs of some tiles; row 0 and output 0 are at y.
    void add_to(const AdapterKernels& k, int32_t place, int32_t part, bool of_logits, int32_t tile0, int32_t tile1, float* y,
                int32_t ldy) const;
    // The same for embeddings of the rows [row0, row1).
    void add_to_embeddings(const AdapterKernels& k, const Batch& batch, int32_t row0, int32_t row1, float* x) const;

private:
    struct Row {
        int32_t row;
        int32_t turn;  // an adapter is added after those that its row names before it
        int32_t id;
        const Adapter* adapter;
        float scale;
    };

    // Of the rows from `first` on those with the same adapter, at most `most`.
    int32_t run(const std::vector<Row>& all, int32_t first, int32_t most) const;
    const std::vector<Row>& rows(bool of_logits) const { return rows_[of_logits ? 1 : 0]; }
    float* t(int32_t part, size_t i) const { return t_.get() + (size_t(part) * rows_[0].size() + i) * stride_; }

    const DecoderSpec& spec_;
    std::map<int32_t, Adapter> loaded_;
    std::vector<Row> rows_[2];  // all, and those that want logits: one adapter's behind each other, so that it is in the cache
    std::vector<uint8_t> is_changed_;  // by place
    int32_t stride_ = 0;               // floats of a t: the largest rank of the pass
    Buffer<float> t_;
};

}  // namespace stoker
