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
    : spec_(spec), max_batch_tokens_(max_batch_tokens), num_threads_(num_threads), piece_tokens_(std::max(1, attention_rows / spec.group())) {
    const size_t partial = partial_floats(spec.head_size), rows = max_batch_tokens;
    const size_t spans = spec.num_positions() / kSpanTokens + 1;
    num_span_partials_ =
        std::min(kMaxSpanPartials, size_t(kPiecesPerThread) * num_threads * piece_rows() * spans * partial);
    stages.reserve(spec.layers.size() * 15 + 6);
    row_position.resize(rows);
    row_chunk.resize(rows);
    logit_row.resize(rows);
    pieces.reserve(rows);
    num_taken_ = std::make_unique<std::atomic<int32_t>[]>(spec.layers.size() * num_threads);
    units.reserve(std::max(rows * spec.num_kv_heads, num_span_partials_ / partial));
}

void Plan::make(const Batch& batch, const Adapters& adapters) {
    keeps_rows = batch.hidden == nullptr && batch.num_rows < batch.num_tokens && batch.num_tokens > kFewRows;
    make_rows(batch);
    make_attention(batch);
    make_units();
    for (size_t i = 0; i < spec_.layers.size() * num_threads_; ++i) {
        num_taken_[i].store(0, std::memory_order_relaxed);
    }
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

// The pieces of a chunk that see most come first, so that no thread begins a long one last.
void Plan::make_units() {
    units.clear();
    const size_t unit_floats = size_t(piece_rows()) * partial_floats(spec_.head_size);
    size_t partials = 0;
    for (int32_t p = int32_t(pieces.size()) - 1; p >= 0; --p) {
        const int32_t last = (pieces[p].position + pieces[p].num_tokens - 1) / kSpanTokens;
        for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
            for (int32_t span = spans_apart ? 0 : last; span <= last; ++span) {
                units.push_back({p, head, span, partials});
                partials += spans_apart ? unit_floats : 0;
            }
        }
    }
}

int32_t Plan::take_unit(int32_t layer, int32_t thread) {
    for (int32_t owner = thread;; owner = (owner + 1) % num_threads_) {
        std::atomic<int32_t>& taken = num_taken(layer, owner);
        const int32_t unit = owner + num_threads_ * taken.load(std::memory_order_relaxed);
        if (unit < int32_t(units.size())) {
            const int32_t mine = owner + num_threads_ * taken.fetch_add(1, std::memory_order_relaxed);
            if (mine < int32_t(units.size())) {
                return mine;
            }
        }
    }
}

int32_t Plan::next_unit(int32_t layer, int32_t thread) const {
    const int32_t unit = thread + num_threads_ * num_taken(layer, thread).load(std::memory_order_relaxed);
    return unit < int32_t(units.size()) ? unit : -1;
}

void Plan::make_stages(const Batch& batch, const Adapters& adapters) {
    stages.clear();
    adapters_ = &adapters;
    of_logits_ = false;
    rows_ = batch.num_tokens;
    x_ = 0;
    num_added_ = 0;
    add_rows(StageKind::embed, 0);
    const auto num_units = int32_t(units.size());
    for (int32_t i = 0; i < int32_t(spec_.layers.size()); ++i) {
        const Layer& layer = spec_.layers[i];
        add_products(StageKind::query_key_value, i, {&layer.query, &layer.key, &layer.value}, i > 0);
        if (!rotates_with_attention) {
            add_rows(StageKind::rotate, i);
        }
        add(StageKind::attend, i, num_units);
        add(StageKind::join_spans, i, spans_apart ? num_units : 0);
        if (keeps_rows && is_last(i)) {
            add(StageKind::keep_rows, i, 1);
            rows_ = batch.num_rows;
            of_logits_ = true;
        }
        if (rows_ == 0) {
            return;
        }
        add_products(StageKind::output, i, {&layer.output}, false);
        add_products(StageKind::gate_up, i, {&layer.gate}, true);
        add_products(StageKind::down, i, {&layer.down}, false);
    }
    if (batch.hidden != nullptr) {
        add_rows(StageKind::hidden, 0);
    }
    rows_ = batch.num_rows;
    of_logits_ = true;
    if (rows_ > 0) {
        add_products(StageKind::head, 0, {&spec_.head}, false);
    }
}

void Plan::add(StageKind kind, int32_t layer, int32_t num_pieces, int32_t grain) {
    stages.push_back({kind, rows_ <= kFewRows, x_, num_added_, layer, rows_, grain, num_pieces, of_logits_});
}

void Plan::add_rows(StageKind kind, int32_t layer) {
    const int32_t grain = std::clamp(rows_ / (kPiecesPerThread * num_threads_), 1, 16);
    add(kind, layer, divided_up(rows_, grain), grain);
}

void Plan::add_products(StageKind kind, int32_t layer, std::initializer_list<const Projection*> parts, bool adds_y) {
    if (rows_ > kFewRows && kind != StageKind::down) {
        add(StageKind::input, layer, divided_up(rows_, kTile), kTile);
    }
    add_project(kind, layer);
    int32_t tiles = 0, num_pieces = 0;
    for (const Projection* part : parts) {
        tiles += part->w.tiles();
    }
    int32_t grain = tiles_at_once(tiles);
    if (kind == StageKind::head) {
        grain = divided_up(grain, kMaximaBlock / kTile) * (kMaximaBlock / kTile);  // whole blocks of logits
    }
    if (kind == StageKind::gate_up) {
        grain = std::min(grain, gate_floats(max_batch_tokens_) / (rows_ * kTile) / 2 * 2);
    }
    for (const Projection* part : parts) {
        num_pieces += divided_up(part->w.tiles(), grain);
    }
    add(kind, layer, num_pieces, grain);
    if (adds_y) {
        x_ = rows_ <= kFewRows ? int8_t(1 - x_) : x_;
        ++num_added_;
    }
}

void Plan::add_project(StageKind kind, int32_t layer) {
    const Stage products = {kind, false, 0, 0, layer, 0, 0, 0, of_logits_};
    const int32_t num_parts = kind == StageKind::query_key_value ? 3 : kind == StageKind::gate_up ? 2 : 1;
    if (const int32_t units = adapters_->num_units(products.place(), num_parts, of_logits_); units > 0) {
        const int32_t grain = divided_up(units, kPiecesPerThread * num_threads_);
        add(StageKind::project, layer, divided_up(units, grain), grain);
        stages.back().rows = units;
    }
}

// An even number: kernels like to take tiles in pairs.
int32_t Plan::tiles_at_once(int32_t tiles) const {
    return std::max(2, divided_up(tiles, kPiecesPerThread * num_threads_) + 1) / 2 * 2;
}

}  // namespace stoker
