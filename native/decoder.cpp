// Building a decoder and checking what it is asked. What a pass does: plan.cpp and pass.cpp.
#include "decoder.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "attention.hpp"
#include "pass.hpp"

namespace stoker {

namespace {

void require_shape(const Projection& p, int32_t rows, int32_t cols) {
    require(p.w.rows == rows && p.w.cols == cols, "a matrix has another shape than the sizes say");
}

size_t scratch_bytes(const Kernels& kernels, const DecoderSpec& spec, int32_t rows) {
    size_t most = 0;
    const auto add = [&](const Projection& p) {
        most = std::max(most, kernels.matmul_scratch_bytes(p.w.type, rows, p.w.cols));
    };
    add(spec.head);
    for (const Layer& layer : spec.layers) {
        for (const Projection* p : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up,
                                    &layer.down}) {
            add(*p);
        }
    }
    return most;
}

int32_t widest(const DecoderSpec& spec) {
    return std::max(spec.hidden_size, spec.query_size());
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

Decoder::Decoder(DecoderSpec spec, const Kernels& kernels, KvType kv_type, int32_t num_pages,
                 int32_t max_batch_tokens, int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus)
    : spec_((spec.check(), std::move(spec))), kernels_(kernels),
      kv_(kv_type, int32_t(spec_.layers.size()), spec_.num_kv_heads, spec_.head_size, num_pages),
      max_batch_tokens_(max_batch_tokens), adapters_(spec_),
      plan_(spec_, kernels.attention->rows_at_once(kv_type), max_batch_tokens, num_threads),
      pool_(num_threads, cores, std::move(cpus)) {
    require(kv_type != KvType::q16 || spec_.head_size <= kMaxCodedHead, "heads are too large for q16");
    const size_t rows = max_batch_tokens, few = Plan::kFewRows, hidden = spec_.hidden_size;
    const int32_t wide = widest(spec_);
    x_[0] = Buffer<float>(rows * hidden);
    x_[1] = Buffer<float>(few * hidden);
    normed_ = Buffer<float>(rows * hidden);
    qkv_ = Buffer<float>(rows * (spec_.query_size() + 2 * spec_.kv_size()));
    attended_ = Buffer<float>(rows * spec_.query_size());
    y_ = Buffer<float>(rows * hidden);
    const auto has_float_down = [](const Layer& layer) { return layer.down.w.is_float(); };
    gate_ = Buffer<float>(std::ranges::any_of(spec_.layers, has_float_down) ? rows * spec_.feed_forward_size : 0);
    codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, wide));
    down_codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, spec_.feed_forward_size));
    span_partials_ = Buffer<float>(plan_.num_span_partials());
    workers_.resize(num_threads);
    for (Worker& worker : workers_) {
        worker.matmul = Buffer<uint8_t>(scratch_bytes(kernels, spec_, max_batch_tokens));
        worker.attention = Buffer<float>(kernels.attention->scratch_floats(kv_.layout()));
        worker.partials = Buffer<float>(2 * size_t(plan_.piece_rows()) * partial_floats(spec_.head_size));
        worker.x = Buffer<float>(few * hidden);
        worker.normed = Buffer<float>(few * hidden);
        worker.codes = Buffer<uint8_t>(Activations::bytes(Plan::kFewRows, wide));
        worker.row = Buffer<float>(hidden);
        worker.gate = Buffer<float>(Plan::gate_floats(max_batch_tokens));
        worker.up = Buffer<float>(Plan::gate_floats(max_batch_tokens));
    }
}

void Decoder::add_adapter(int32_t id, Adapter adapter) {
    if (gate_.get() == nullptr) {
        gate_ = Buffer<float>(size_t(max_batch_tokens_) * spec_.feed_forward_size);
    }
    adapters_.add(id, std::move(adapter));
}

void Decoder::forward(const Batch& batch) {
    check(batch);
    if (batch.num_tokens == 0) {
        return;
    }
    adapters_.begin(batch);
    plan_.make(batch, adapters_);
    ++num_passes_;
    Pass pass(*this, batch);
    pool_.run(pass);
}

void Decoder::check(const Batch& batch) const {
    require(batch.num_tokens <= max_batch_tokens_, "more tokens than a batch may have");
    int64_t num_tokens = 0, num_rows = 0;
    for (int32_t i = 0; i < batch.num_chunks; ++i) {
        check(batch, batch.chunks[i]);
        num_tokens += batch.chunks[i].length;
        num_rows += batch.chunks[i].num_logits;
    }
    require(num_tokens == batch.num_tokens, "the chunks have another number of tokens");
    require(num_rows == batch.num_rows, "the logits have another number of rows");
    for (int32_t i = 0; i < batch.num_tokens; ++i) {
        require(batch.tokens[i] >= 0 && batch.tokens[i] < spec_.vocab_size, "a token id is outside of the vocabulary");
    }
    adapters_.check(batch);
}

void Decoder::check(const Batch& batch, const Chunk& chunk) const {
    require(chunk.slot >= 0 && chunk.slot < batch.num_slots, "no such slot");
    require(chunk.length > 0 && chunk.num_logits >= 0 && chunk.num_logits <= chunk.length, "a chunk's lengths are wrong");
    const int64_t end = int64_t(chunk.start) + chunk.length;
    require(chunk.start >= 0 && end <= spec_.num_positions() && end <= int64_t(batch.max_pages) * kPageTokens,
            "a chunk ends beyond the last position");
    const int32_t* table = batch.tables + size_t(chunk.slot) * batch.max_pages;
    for (int32_t i = 0; i * int64_t(kPageTokens) < end; ++i) {
        require(table[i] >= 0 && table[i] < kv_.num_pages(), "a chunk lacks a page");
    }
}

}  // namespace stoker
