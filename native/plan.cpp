#include "plan.hpp"

#include <algorithm>

#include "attention.hpp"
#include "sampling.hpp"

namespace stoker {

namespace {

constexpr size_t kMaxSpanPartials = size_t(4) << 20;  // floats: 16 MB
constexpr int32_t kPiecesPerThread = 4;               // of a stage: enough to even out threads that are held up

}  // namespace

int32_t Stage::place() const {
    const int32_t first = DecoderSpec::kFirstLayer + layer * DecoderSpec::kLayerPlaces;
    switch (kind) {
        case StageKind::query_key_value: return first;
        case StageKind::output: return first + 3;
        case StageKind::gate_up: return first + 4;
        case StageKind::down: return first + 6;
        default: return DecoderSpec::kHead;
    }
}

Plan::Plan(const DecoderSpec& spec, int32_t attention_rows, int32_t max_batch_tokens, int32_t num_threads)
    : spec_(spec), max_batch_tokens_(max_batch_tokens), num_threads_(num_threads),
      piece_tokens_(std::max(1, attention_rows / spec.group())) {
    const size_t partial = partial_floats(spec.head_size), rows = max_batch_tokens;
    const size_t spans = spec.num_positions() / kSpanTokens + 1;
    num_span_partials_ =
        std::min(kMaxSpanPartials, size_t(kPiecesPerThread) * num_threads * piece_rows() * spans * partial);
    stages.reserve(spec.layers.size() * 15 + 6);
    row_position.resize(rows);
    row_chunk.resize(rows);
    logit_row.resize(rows);
    pieces.reserve(rows);
    units.reserve(std::max(rows * spec.num_kv_heads, num_span_partials_ / partial));
}

void Plan::make(const Batch& batch, const Adapters& adapters) {
    keeps_rows = batch.hidden == nullptr && batch.num_rows < batch.num_tokens && batch.num_tokens > Stage::kFewRows;
    make_rows(batch);
    make_attention(batch);
    make_units();
    make_stages(batch, adapters);
}

void Plan::make_rows(const Batch& batch) {
    int32_t row = 0, logit = 0;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        for (int32_t i = 0; i < chunk.length; ++i, ++row) {
            row_chunk[row] = c;
            row_position[row] = chunk.start + i;
            if (i >= chunk.length - chunk.num_logits) {
                logit_row[logit++] = row;
            }
        }
    }
}

void Plan::make_attention(const Batch& batch) {
    pieces.clear();
    int32_t row = 0;
    size_t num_spans = 0;
    for (int32_t c = 0; c < batch.num_chunks; ++c) {
        const Chunk& chunk = batch.chunks[c];
        for (int32_t i = 0; i < chunk.length; i += piece_tokens_) {
            const int32_t n = std::min(piece_tokens_, chunk.length - i);
            pieces.push_back({c, row + i, chunk.start + i, n, i + n > chunk.length - chunk.num_logits});
            num_spans += (chunk.start + i + n - 1) / kSpanTokens + 1;
        }
        row += chunk.length;
    }
    const size_t floats = num_spans * spec_.num_kv_heads * piece_rows() * partial_floats(spec_.head_size);
    spans_apart = int32_t(pieces.size()) * spec_.num_kv_heads < kPiecesPerThread * num_threads_ &&
                  num_spans > pieces.size() && floats <= num_span_partials_;
    rotates_with_attention = batch.num_chunks == batch.num_tokens && !spans_apart;
}

// The pieces of a chunk that see most come first in each thread's range (see Pool), so that none begins a long one last. The
// spans of a piece and head stay together.
void Plan::make_units() {
    units.clear();
    const size_t unit_floats = size_t(piece_rows()) * partial_floats(spec_.head_size);
    const auto add_units_of = [&](int32_t p) {
        const int32_t last = (pieces[p].position + pieces[p].num_tokens - 1) / kSpanTokens;
        for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
            for (int32_t span = spans_apart ? 0 : last; span <= last; ++span) {
                units.push_back({p, head, span, spans_apart ? units.size() * unit_floats : 0});
            }
        }
    };
    for (int32_t thread = 0; thread < num_threads_; ++thread) {
        for (int32_t p = int32_t(pieces.size()) - 1 - thread; p >= 0; p -= num_threads_) {
            add_units_of(p);
        }
    }
}

void Plan::make_stages(const Batch& batch, const Adapters& adapters) {
    stages.clear();
    next_ = {};
    next_.rows = batch.num_tokens;
    add_rows(StageKind::embed);
    const auto num_units = int32_t(units.size());
    for (next_.layer = 0; next_.layer < int32_t(spec_.layers.size()); ++next_.layer) {
        add_products(StageKind::query_key_value, adapters);
        if (!rotates_with_attention) {
            add_rows(StageKind::rotate);
        }
        add(StageKind::attend, num_units);
        add(StageKind::join_spans, spans_apart ? num_units : 0);
        if (keeps_rows && is_last(next_.layer)) {
            add(StageKind::keep_rows, 1);
            next_.rows = batch.num_rows;
            next_.of_logits = true;
        }
        if (next_.rows == 0) {
            return;
        }
        add_products(StageKind::output, adapters);
        add_products(StageKind::gate_up, adapters);
        add_products(StageKind::down, adapters);
    }
    next_.layer = 0;
    if (batch.hidden != nullptr) {
        add_rows(StageKind::hidden);
    }
    next_.rows = batch.num_rows;
    next_.of_logits = true;
    if (next_.rows > 0) {
        add_products(StageKind::head, adapters);
    }
}

void Plan::add(StageKind kind, int32_t num_pieces, int32_t grain) {
    next_.kind = kind;
    next_.num_pieces = num_pieces;
    next_.grain = grain;
    stages.push_back(next_);
}

void Plan::add_rows(StageKind kind) {
    const int32_t grain = std::clamp(next_.rows / (kPiecesPerThread * num_threads_), 1, 16);
    add(kind, divided_up(next_.rows, grain), grain);
}

void Plan::add_products(StageKind kind, const Adapters& adapters) {
    if (!next_.is_few() && kind != StageKind::down) {
        add(StageKind::input, divided_up(next_.rows, kTile), kTile);
    }
    next_.kind = kind;
    add_project(adapters);
    const int32_t place = next_.place(), num_parts = kind == StageKind::gate_up ? 1 : next_.num_parts();  // up with gate
    const auto num_pieces = [&](int32_t grain) {
        int32_t n = 0;
        for (int32_t part = 0; part < num_parts; ++part) {
            n += divided_up(spec_.at(place + part).w.tiles(), grain);
        }
        return n;
    };
    int32_t grain = tiles_at_once(num_pieces(1));
    if (kind == StageKind::head) {
        grain = divided_up(grain, kMaximaBlock / kTile) * (kMaximaBlock / kTile);  // whole blocks of logits
    }
    if (kind == StageKind::gate_up) {
        grain = std::min(grain, gate_floats(max_batch_tokens_) / (next_.rows * kTile) / 2 * 2);
    }
    add(kind, num_pieces(grain), grain);
    if (next_.adds_y()) {
        next_.x = next_.is_few() ? int8_t(1 - next_.x) : next_.x;
        ++next_.num_added;
    }
}

// Before the products that come next.
void Plan::add_project(const Adapters& adapters) {
    const Stage products = next_;
    if (const int32_t units = adapters.num_units(products.place(), products.num_parts(), products.of_logits); units > 0) {
        const int32_t grain = divided_up(units, kPiecesPerThread * num_threads_);
        add(StageKind::project, divided_up(units, grain), grain);
        stages.back().rows = units;
        next_ = products;
    }
}

// An even number: kernels like to take tiles in pairs.
int32_t Plan::tiles_at_once(int32_t tiles) const {
    return std::max(2, divided_up(tiles, kPiecesPerThread * num_threads_) + 1) / 2 * 2;
}

}  // namespace stoker
