// Building a decoder, and planning a pass. The pass itself: pass.cpp.
#include "decoder.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "attention.hpp"
#include "pass.hpp"

namespace stoker {

namespace {

constexpr size_t kMaxSpanPartials = size_t(4) << 20;  // floats: 16 MB
constexpr int32_t kPiecesPerThread = 4;               // fewer: spans are computed apart

void require(bool condition, const char* message) {
    if (!condition) {
        throw std::invalid_argument(message);
    }
}

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
    return std::max({spec.hidden_size, spec.query_size(), spec.feed_forward_size});
}

int32_t piece_tokens(const Kernels& kernels, const DecoderSpec& spec) {
    return std::max(1, kernels.attention->rows_at_once / spec.group());
}

}  // namespace

int32_t DecoderSpec::num_positions() const {
    int32_t n = std::numeric_limits<int32_t>::max();
    for (const Rope& rope : ropes) {
        n = std::min(n, rope.num_positions);
    }
    return n;
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
                 int32_t max_batch_tokens, int32_t num_threads)
    : spec_((spec.check(), std::move(spec))), kernels_(kernels),
      kv_(kv_type, int32_t(spec_.layers.size()), spec_.num_kv_heads, spec_.head_size, num_pages),
      max_batch_tokens_(max_batch_tokens), piece_tokens_(piece_tokens(kernels, spec_)),
      piece_rows_(piece_tokens_ * spec_.group()), query_key_value_(spec_.query_size() + 2 * spec_.kv_size()),
      num_span_partials_(0), pool_(num_threads) {
    const size_t rows = max_batch_tokens, wide = widest(spec_);
    x_ = Buffer<float>(rows * spec_.hidden_size);
    normed_ = Buffer<float>(rows * spec_.hidden_size);
    qkv_ = Buffer<float>(rows * query_key_value_);
    attended_ = Buffer<float>(rows * spec_.query_size());
    y_ = Buffer<float>(rows * spec_.hidden_size);
    gate_ = Buffer<float>(rows * spec_.feed_forward_size);
    up_ = Buffer<float>(rows * spec_.feed_forward_size);
    codes_ = Buffer<uint8_t>(Activations::bytes(max_batch_tokens, int32_t(wide)));

    const size_t partial = partial_floats(spec_.head_size);
    const size_t spans = spec_.num_positions() / kSpanTokens + 1;
    num_span_partials_ = std::min(kMaxSpanPartials, size_t(kPiecesPerThread) * num_threads * piece_rows_ * spans * partial);
    span_partials_ = Buffer<float>(num_span_partials_);
    workers_.resize(num_threads);
    for (Worker& worker : workers_) {
        worker.matmul = Buffer<uint8_t>(scratch_bytes(kernels, spec_, max_batch_tokens));
        worker.attention = Buffer<float>(kernels.attention->scratch_floats);
        worker.partials = Buffer<float>(2 * piece_rows_ * partial);
        worker.x = Buffer<float>(kFewRows * spec_.hidden_size);
        worker.normed = Buffer<float>(kFewRows * spec_.hidden_size);
        worker.codes = Buffer<uint8_t>(Activations::bytes(kFewRows, int32_t(wide)));
        worker.row = Buffer<float>(spec_.hidden_size);
    }
    row_position_.resize(rows);
    row_chunk_.resize(rows);
    logit_row_.resize(rows);
    pieces_.reserve(rows);
    units_.reserve(std::max(rows * spec_.num_kv_heads, num_span_partials_ / partial));
}

void Decoder::forward(const Batch& batch) {
    check(batch);
    if (batch.num_tokens == 0) {
        return;
    }
    plan(batch);
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

void Decoder::plan(const Batch& batch) {
    plan_rows(batch);
    plan_attention(batch);
    last_layer_selects_ = batch.hidden == nullptr && batch.num_rows < batch.num_tokens && batch.num_tokens > kFewRows;
}

void Decoder::plan_rows(const Batch& batch) {
    int32_t row = 0, logit = 0;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        for (int32_t i = 0; i < chunk.length; ++i, ++row) {
            row_chunk_[row] = c;
            row_position_[row] = chunk.start + i;
            if (i >= chunk.length - chunk.num_logits) {
                logit_row_[logit++] = row;
            }
        }
    }
}

// Few pieces with long pasts: each span of 512 positions becomes a unit of its own, so that all threads have work.
void Decoder::plan_attention(const Batch& batch) {
    pieces_.clear();
    units_.clear();
    int32_t row = 0, num_spans = 0;
    bool one_token_each = true;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        one_token_each = one_token_each && chunk.length == 1;
        for (int32_t i = 0; i < chunk.length; i += piece_tokens_) {
            const int32_t n = std::min(piece_tokens_, chunk.length - i);
            pieces_.push_back({c, row + i, chunk.start + i, n, i + n > chunk.length - chunk.num_logits});
            num_spans += (chunk.start + i + n - 1) / kSpanTokens + 1;
        }
        row += chunk.length;
    }
    const size_t unit_floats = size_t(piece_rows_) * partial_floats(spec_.head_size);
    const int32_t num_units = int32_t(pieces_.size()) * spec_.num_kv_heads;
    spans_apart_ = num_units < kPiecesPerThread * pool_.size() && size_t(num_spans) > pieces_.size() &&
                   num_spans * size_t(spec_.num_kv_heads) * unit_floats <= num_span_partials_;
    rotate_with_attention_ = one_token_each && !spans_apart_;
    float* partials = span_partials_.get();
    for (int32_t p = 0; p < int32_t(pieces_.size()); ++p) {
        const int32_t last = (pieces_[p].position + pieces_[p].num_tokens - 1) / kSpanTokens;
        for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
            for (int32_t span = spans_apart_ ? 0 : last; span <= last; ++span) {
                units_.push_back({p, head, span, partials});
                partials += spans_apart_ ? unit_floats : 0;
            }
        }
    }
    if (!spans_apart_) {  // the longest first, so that no thread begins it last
        std::reverse(units_.begin(), units_.end());
    }
}

AttentionRows Decoder::attention_rows(const Batch& batch, int32_t layer, int32_t piece, int32_t head) {
    const Piece& p = pieces_[piece];
    return {
        .kv = kv_.layout(),
        .memory = kv_.head(layer, head),
        .pages = batch.tables + size_t(batch.chunks[p.chunk].slot) * batch.max_pages,
        .queries = qkv_.get() + size_t(p.row) * query_key_value_ + size_t(head) * spec_.group() * spec_.head_size,
        .ldq = query_key_value_,
        .group = spec_.group(),
        .position = p.position,
        .num_tokens = p.num_tokens,
        .window = spec_.layers[layer].window,
        .softcap = spec_.attention_softcap,
    };
}

}  // namespace stoker
