// Building a decoder and checking what it is asked. What a pass does: plan.cpp and pass.cpp.
#include "decoder.hpp"

#include <algorithm>
#include <utility>

#include "attention.hpp"
#include "pass.hpp"

namespace stoker {

namespace {

size_t scratch_bytes(const Kernels& kernels, const DecoderSpec& spec, int32_t rows) {
    size_t most = 0;
    for (int32_t place = DecoderSpec::kHead; place < spec.num_places(); ++place) {
        const Matrix& w = spec.at(place).w;
        most = std::max(most, kernels.matmul_scratch_bytes(w.type, rows, w.cols));
    }
    return most;
}

}  // namespace

Decoder::Decoder(DecoderSpec spec, const Kernels& kernels, KvType kv_type, int32_t num_pages,
                 int32_t max_batch_tokens, int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus)
    : spec_((spec.check(), std::move(spec))), kernels_(kernels),
      kv_(kv_type, int32_t(spec_.layers.size()), spec_.num_kv_heads, spec_.head_size, num_pages),
      max_batch_tokens_(max_batch_tokens), adapters_(spec_),
      plan_(spec_, kernels.attention->rows_at_once(kv_type), max_batch_tokens, num_threads),
      pool_(num_threads, cores, std::move(cpus)) {
    require(!is_coded(kv_type) || spec_.head_size <= kMaxCodedHead, "heads are too large for q16 and i16");
    const size_t rows = max_batch_tokens, few = Stage::kFewRows, hidden = spec_.hidden_size;
    const int32_t wide = std::max(spec_.hidden_size, spec_.query_size());
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
        worker.codes = Buffer<uint8_t>(Activations::bytes(Stage::kFewRows, wide));
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
