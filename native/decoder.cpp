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
    const auto add = [&](const Matrix& w) {
        most = std::max(most, w.rows > 0 ? kernels.matmul_scratch_bytes(w.type, rows, w.cols) : 0);
    };
    for (int32_t place = DecoderSpec::kHead; place < spec.num_places(); ++place) {
        add(spec.at(place).w);
    }
    for (const Layer& layer : spec.layers) {
        const Experts& e = layer.experts;
        for (const Projection* p : {&e.router, &e.gate, &e.up, &e.down, &e.shared_gate}) {
            add(p->w);
        }
    }
    return most;
}

std::vector<KvHeads> kept_heads(const DecoderSpec& spec) {
    std::vector<KvHeads> found;
    for (const Layer& layer : spec.layers) {
        found.push_back({layer.heads.num_kv, layer.heads.size});
    }
    return found;
}

}  // namespace

Decoder::Decoder(DecoderSpec spec, const Kernels& kernels, KvType kv_type, int32_t num_pages,
                 int32_t max_batch_tokens, int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus)
    : spec_((spec.check(), std::move(spec))), kernels_(kernels),
      kv_(kv_type, kept_heads(spec_), num_pages),
      max_batch_tokens_(max_batch_tokens), adapters_(spec_),
      plan_(spec_, kernels.attention->rows_at_once(kv_type), max_batch_tokens, num_threads),
      expert_rows_(spec_, max_batch_tokens, Plan::gate_floats(max_batch_tokens), kPiecesPerThread * num_threads),
      pool_(num_threads, cores, std::move(cpus)) {
    const int32_t head_size = spec_.largest([](const Layer& layer) { return layer.heads.size; });
    require(!is_coded(kv_type) || head_size <= kMaxCodedHead, "heads are too large for q16 and i16");
    const size_t rows = max_batch_tokens, few = Stage::kFewRows, hidden = spec_.hidden_size;
    const int32_t query_size = spec_.largest([](const Layer& layer) { return layer.heads.query_size(); });
    const int32_t wide = std::max(spec_.hidden_size, query_size);
    x_[0] = Buffer<float>(rows * hidden);
    x_[1] = Buffer<float>(few * hidden);
    normed_ = Buffer<float>(rows * hidden);
    qkv_ = Buffer<float>(rows * spec_.largest([](const Layer& layer) { return layer.heads.all_size(); }));
    attended_ = Buffer<float>(rows * query_size);
    y_ = Buffer<float>(rows * hidden);
    const auto has_float_down = [](const Layer& layer) { return layer.down.w.is_float(); };
    gate_ = Buffer<float>(std::ranges::any_of(spec_.layers, has_float_down) ? rows * feed_forward_size() : 0);
    codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, wide));
    down_codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, feed_forward_size()));
    span_partials_ = Buffer<float>(plan_.num_span_partials());
    size_t attention_floats = 0;
    for (int32_t layer = 0; layer < int32_t(spec_.layers.size()); ++layer) {
        attention_floats = std::max(attention_floats, kernels.attention->scratch_floats(kv_.layout(layer)));
    }
    workers_.resize(num_threads);
    for (Worker& worker : workers_) {
        worker.matmul = Buffer<uint8_t>(scratch_bytes(kernels, spec_, max_batch_tokens));
        worker.attention = Buffer<float>(attention_floats);
        worker.partials = Buffer<float>(2 * plan_.num_piece_partials());
        worker.x = Buffer<float>(few * hidden);
        worker.normed = Buffer<float>(few * hidden);
        worker.codes = Buffer<uint8_t>(Activations::bytes(Stage::kFewRows, wide));
        worker.row = Buffer<float>(hidden);
        worker.gate = Buffer<float>(Plan::gate_floats(max_batch_tokens));
        worker.up = Buffer<float>(Plan::gate_floats(max_batch_tokens));
        worker.sink = Buffer<float>(partial_floats(head_size));
    }
    take_memory_for_experts();
}

void Decoder::take_memory_for_experts() {
    const auto largest = [&](const auto& of) { return spec_.largest([&](const Layer& layer) { return of(layer.experts); }); };
    const int32_t count = largest([](const Experts& e) { return e.count; });
    if (count == 0) {
        return;
    }
    const size_t rows = max_batch_tokens_, entries = rows * largest([](const Experts& e) { return e.used; });
    ld_scores_ = (divided_up(count, kTile) + 1) * kTile;
    scores_ = Buffer<float>(rows * ld_scores_);
    expert_y_ = Buffer<float>(entries * spec_.hidden_size);
    expert_gate_ = Buffer<float>(
        entries * largest([](const Experts& e) { return e.count > 0 && e.down.w.is_float() ? e.size : 0; }));
    size_t code_bytes = 0;
    for (const Layer& layer : spec_.layers) {
        code_bytes = std::max(code_bytes, ExpertRows::code_bytes(layer.experts, max_batch_tokens_));
    }
    expert_codes_ = Buffer<uint8_t>(code_bytes);
    const bool is_float = largest([](const Experts& e) { return e.count > 0 && e.gate.w.is_float() ? 1 : 0; }) > 0;
    for (Worker& worker : workers_) {
        worker.gathered = Buffer<uint8_t>(Activations::bytes(max_batch_tokens_, spec_.hidden_size));
        worker.gathered_x = Buffer<float>(is_float ? rows * spec_.hidden_size : 0);
    }
}

int32_t Decoder::feed_forward_size() const {
    return spec_.largest([](const Layer& layer) { return layer.feed_forward_size; });
}

void Decoder::add_adapter(int32_t id, Adapter adapter) {
    if (gate_.get() == nullptr) {
        gate_ = Buffer<float>(size_t(max_batch_tokens_) * feed_forward_size());
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
