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
        for (const Projection* p : {&e.router, &e.gate, &e.up, &e.down, &e.shared_gate, &layer.mixed_gate, &layer.decay,
                                    &layer.beta, &layer.injection.gate, &layer.injection.output, &layer.latent.narrow,
                                    &layer.latent.wide, &layer.latent.out, &layer.laurel.narrow, &layer.laurel.wide, &layer.low,
                                    &layer.wide_decay, &layer.wide_gate}) {
            add(p->w);
        }
    }
    add(spec.layer_inputs.projection.w);
    add(spec.join.projection.w);
    add(spec.join.fuse.w);
    add(spec.join.give.w);
    add(spec.streams.split.w);
    add(spec.streams.join.w);
    return most;
}

enum class Kept { all, without_window, with_window };

std::vector<KvHeads> kept_heads(const DecoderSpec& spec, Kept kept) {
    std::vector<KvHeads> found;
    for (const Layer& layer : spec.layers) {
        const bool is_kept = kept == Kept::all || (layer.window > 0) == (kept == Kept::with_window);
        found.push_back(is_kept && layer.key.w.rows > 0 && layer.attends() ? KvHeads{layer.heads.num_kv, layer.heads.size} : KvHeads{});
    }
    return found;
}

std::vector<size_t> kept_floats(const DecoderSpec& spec) {
    std::vector<size_t> found;
    for (const Layer& layer : spec.layers) {
        found.push_back(layer.state_floats());
    }
    return found;
}

}  // namespace

Decoder::Decoder(DecoderSpec spec, const Kernels& kernels, KvType kv_type, int32_t num_pages, int32_t num_window_pages,
                 int32_t num_states, int32_t max_batch_tokens, int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus,
                 Decoder* lender)
    : spec_((spec.check(), std::move(spec))), kernels_(kernels), lender_(lender),
      kv_(kv_type, kept_heads(spec_, num_window_pages > 0 ? Kept::without_window : Kept::all), spec_.sees_ahead, num_pages),
      window_kv_(kv_type, kept_heads(spec_, Kept::with_window), false, num_window_pages), states_(kept_floats(spec_), num_states),
      max_batch_tokens_(max_batch_tokens), adapters_(spec_),
      plan_(spec_, kernels.attention->rows_at_once(kv_type), max_batch_tokens, num_threads),
      expert_rows_(spec_, max_batch_tokens, Plan::gate_floats(max_batch_tokens), kPiecesPerThread * num_threads),
      pool_(num_threads, cores, std::move(cpus)) {
    const int32_t head_size = spec_.largest([](const Layer& layer) { return layer.heads.size; });
    require(!is_coded(kv_type) || head_size <= kMaxCodedHead, "heads are too large for q16 and i16");
    require(!is_grouped(kv_type) || head_size <= kMaxGroupedHead, "heads are too large for q8 and q4");
    check_lender();
    const size_t rows = max_batch_tokens, few = Stage::kFewRows, hidden = spec_.hidden_size;
    const int32_t mixed_size = spec_.largest([](const Layer& layer) { return layer.mixed_size(); });
    const int32_t narrow = spec_.largest([](const Layer& layer) { return layer.latent.narrow.w.cols; });
    const int32_t low = spec_.largest([](const Layer& layer) { return std::max(layer.wide_decay.w.cols, layer.wide_gate.w.cols); });
    const int32_t wide = std::max({low, spec_.hidden_size, mixed_size, spec_.layer_inputs.size, narrow, spec_.joined_size(),
                                   spec_.join.fuse.w.cols});
    x_[0] = Buffer<float>(rows * hidden);
    x_[1] = Buffer<float>(few * hidden);
    normed_ = Buffer<float>(rows * hidden);
    qkv_ = Buffer<float>(rows * spec_.largest([](const Layer& layer) { return layer.input_size(); }));
    attended_ = Buffer<float>(rows * mixed_size);
    y_ = Buffer<float>(rows * hidden);
    low_ = Buffer<float>(rows * spec_.largest([](const Layer& layer) { return layer.low.w.rows; }));
    wide_decays_ = Buffer<float>(rows * spec_.largest([](const Layer& layer) { return layer.wide_decay.w.rows; }));
    wide_gates_ = Buffer<float>(rows * spec_.largest([](const Layer& layer) { return layer.wide_gate.w.rows; }));
    joined_ = Buffer<float>(rows * spec_.joined_size());
    features_ = Buffer<float>(rows * spec_.join.fuse.w.cols);
    fused_ = Buffer<float>(rows * spec_.join.fuse.w.rows);
    const bool is_cut = std::ranges::any_of(spec_.layers, &Layer::is_cut);
    const auto has_float_down = [](const Layer& layer) { return layer.down.w.is_float(); };
    const auto is_normed = [](const Layer& layer) { return layer.inner_norm != nullptr; };
    const bool is_kept = is_cut || std::ranges::any_of(spec_.layers, has_float_down) || std::ranges::any_of(spec_.layers, is_normed);
    gate_ = Buffer<float>(is_kept ? rows * feed_forward_size() : 0);
    up_ = Buffer<float>(is_cut ? rows * feed_forward_size() : 0);
    const size_t row_of_streams = spec_.streams.are_there() ? hidden : 0;
    streams_ = Buffer<float>(rows * Streams::kCount * row_of_streams);
    laurel_ = Buffer<float>(rows * row_of_streams);
    joined_streams_ = Buffer<float>(rows * Streams::kOthers * row_of_streams);
    codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, wide));
    down_codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, feed_forward_size()));
    layer_inputs_ = Buffer<float>(rows * spec_.layer_inputs.projection.w.rows);
    injected_ = Buffer<float>(rows * spec_.layer_inputs.size);
    span_partials_ = Buffer<float>(plan_.num_span_partials());
    size_t attention_floats = 0;
    for (int32_t layer = 0; layer < int32_t(spec_.layers.size()); ++layer) {
        if (spec_.layers[layer].attends() && spec_.layers[layer].kv_layer == layer) {
            attention_floats = std::max(attention_floats, kernels.attention->scratch_floats(seen_kv(layer).layout(seen_layer(layer))));
        }
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
        worker.layer_row = Buffer<float>(spec_.layer_inputs.projection.w.rows);
        worker.gate = Buffer<float>(Plan::gate_floats(max_batch_tokens));
        worker.up = Buffer<float>(Plan::gate_floats(max_batch_tokens));
        worker.sink = Buffer<float>(partial_floats(head_size));
        worker.steps = Buffer<float>(std::ranges::any_of(spec_.layers, &Layer::scans) ? 4 * steps_stride() : 0);
    }
    take_memory_for_experts();
    take_memory_for_latent_keys();
}

void Decoder::take_memory_for_latent_keys() {
    const auto largest = [&](const auto& of) {
        return spec_.largest([&](const Layer& layer) { return layer.is_latent() ? of(layer) : 0; });
    };
    const size_t rows = max_batch_tokens_;
    latent_keys_ = Buffer<float>(rows * largest([](const Layer& layer) { return layer.heads.size; }));
    latent_narrow_ = Buffer<float>(rows * largest([](const Layer& layer) { return layer.latent.narrow.w.rows; }));
    const int32_t row = largest([](const Layer& layer) { return layer.heads.query_size(); });
    latent_queries_ = Buffer<float>(rows * row);
    latent_mixed_ = Buffer<float>(rows * row);
    const int32_t of_streams = spec_.streams.join.w.cols;
    const int32_t cols = std::max(of_streams, largest([](const Layer& layer) { return std::max(layer.latent.size, layer.latent.plain); }));
    for (Worker& worker : workers_) {
        worker.part_codes = Buffer<uint8_t>(cols > 0 ? Activations::bytes(max_batch_tokens_, cols) : 0);
    }
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
    const auto each_state = [&](void (States::*change)(const Chunk&)) {
        for (int32_t i = 0; states_.are_needed() && i < batch.num_chunks; ++i) {
            (states_.*change)(batch.chunks[i]);
        }
    };
    each_state(&States::begin);
    pool_.run(pass);
    each_state(&States::end);
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
        require(batch.tokens[i] >= -batch.num_inputs && batch.tokens[i] < spec_.vocab_size,
                "a token id is outside of the vocabulary");
    }
    for (int64_t i = 0; batch.rotary != nullptr && i < int64_t(batch.num_tokens) * kAxes; ++i) {
        require(batch.rotary[i] >= 0 && batch.rotary[i] < spec_.num_positions(), "a rotation is beyond the last position");
    }
    for (int32_t i = 0, row = 0; batch.sees_to != nullptr && i < batch.num_chunks; row += batch.chunks[i++].length) {
        const int32_t end = batch.chunks[i].start + batch.chunks[i].length;
        require(std::all_of(batch.sees_to + row, batch.sees_to + row + batch.chunks[i].length,
                            [&](int32_t seen) { return seen >= 0 && seen <= end; }),
                "a token sees beyond its chunk");
    }
    require((batch.joined != nullptr || batch.features != nullptr) == spec_.join.is_there() &&
                (batch.joined == nullptr || batch.features == nullptr),
            "only a draft head joins hidden states, and always");
    require(batch.features == nullptr || spec_.join.fuse.w.rows > 0, "the draft head fuses nothing");
    adapters_.check(batch);
    if (states_.are_needed()) {
        check_states(batch);
    }
}

void Decoder::check_states(const Batch& batch) const {
    std::vector<bool> is_seen(states_.num_slots());
    for (int32_t i = 0; i < batch.num_chunks; ++i) {
        const auto [slot, start, length, num_logits] = batch.chunks[i];
        require(slot < states_.num_slots(), "no such slot");
        require(!is_seen[slot], "two chunks of a batch go on with one state");
        require(start == 0 || start == states_.length(slot), "a chunk does not begin where the state of its slot ends");
        is_seen[slot] = true;
    }
}

void Decoder::check(const Batch& batch, const Chunk& chunk) const {
    require(chunk.slot >= 0 && chunk.slot < batch.num_slots, "no such slot");
    require(chunk.length > 0 && chunk.num_logits >= 0 && chunk.num_logits <= chunk.length, "a chunk's lengths are wrong");
    require(!spec_.sees_ahead || chunk.start == 0, "a sequence does not come whole");
    const int64_t end = int64_t(chunk.start) + chunk.length;
    require(chunk.start >= 0 && end <= spec_.num_positions() && end <= int64_t(batch.max_pages) * kPageTokens,
            "a chunk ends beyond the last position");
    require(lender_ == nullptr || (chunk.length == 1 && chunk.start > 0), "a row that borrows keys comes alone, behind others");
    const Decoder& owner = lender_ == nullptr ? *this : *lender_;
    const int64_t end_seen = lender_ == nullptr ? end : chunk.start;
    check_pages(owner.kv_, batch.tables + size_t(chunk.slot) * batch.max_pages, 0, end_seen);
    if (owner.window_kv_.num_pages() > 0) {
        const int32_t window = spec_.largest([](const Layer& layer) { return layer.window; });
        require(batch.window_tables != nullptr, "the pages of windows are not given");
        check_pages(owner.window_kv_, batch.window_tables + size_t(chunk.slot) * batch.max_pages,
                    std::max(0, chunk.start - window + 1), end_seen);
    }
}

void Decoder::check_lender() const {
    for (int32_t index = 0; index < int32_t(spec_.layers.size()); ++index) {
        const Layer& layer = spec_.layers[index];
        require(layer.borrows() == (lender_ != nullptr), "all layers of a draft head borrow keys, or none does");
        if (layer.borrows()) {
            require(size_t(layer.lent_layer) < lender_->spec_.layers.size(), "there is no layer that lends its keys");
            const Layer& of = lender_->spec_.layers[layer.lent_layer];
            require(of.attends() && of.kv_layer == layer.lent_layer && !of.is_latent() && of.heads.num_kv == layer.heads.num_kv &&
                        of.heads.size == layer.heads.size && of.window == layer.window && !of.is_chunked &&
                        !lender_->spec_.sees_ahead && lender_->kv_.layout(0).type == kv_.layout(0).type,
                    "a layer borrows the keys of one that is not like it");
        }
    }
}

void Decoder::check_pages(const KvCache& kv, const int32_t* table, int32_t first, int64_t end) const {
    for (int32_t i = first / kPageTokens; i * int64_t(kPageTokens) < end; ++i) {
        require(table[i] >= 0 && table[i] < kv.num_pages(), "a chunk lacks a page");
    }
}

}  // namespace stoker
