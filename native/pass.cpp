#include "pass.hpp"

#include <algorithm>
#include <cstring>

#include "attention.hpp"

namespace stoker {

namespace {

constexpr int32_t kPiecesPerThread = 4;  // of a stage of products: enough to even out threads that are held up

int32_t share_of_rows(int32_t rows, int32_t threads) { return std::clamp(rows / (4 * threads), 1, 16); }

}  // namespace

Pass::Pass(Decoder& decoder, const Batch& batch)
    : d_(decoder), spec_(decoder.spec_), k_(decoder.kernels_), pool_(decoder.pool_), batch_(batch) {}

void Pass::operator()(int thread) {
    Worker& me = d_.workers_[thread];
    me.rows = batch_.num_tokens;
    me.is_few = me.rows <= Decoder::kFewRows;
    embed(me);
    const float* post_norm = nullptr;
    for (int32_t i = 0; i < int32_t(spec_.layers.size()); ++i) {
        attention_block(me, i, post_norm);
        if (me.rows == 0) {
            return;
        }
        feed_forward_block(me, spec_.layers[i]);
        post_norm = spec_.layers[i].post_feed_forward_norm;
    }
    output(me, post_norm);
}

void Pass::embed(Worker& me) {
    const int32_t n = spec_.hidden_size;
    const auto rows = [&](int32_t begin, int32_t end) {
        for (int32_t row = begin; row < end; ++row) {
            float* to = x(me) + size_t(row) * n;
            k_.unpack_row(spec_.embedding.w, batch_.tokens[row], to);
            if (spec_.embedding_scale != 1) {
                k_.rows->scale(to, spec_.embedding_scale, n);
            }
        }
    };
    if (me.is_few) {
        return rows(0, me.rows);
    }
    pool_.share(me.rows, share_of_rows(me.rows, pool_.size()), rows);
    pool_.barrier();
}

void Pass::attention_block(Worker& me, int32_t index, const float* post_norm_before) {
    const Layer& layer = spec_.layers[index];
    const Activations in = next_input(me, index > 0, post_norm_before, layer.attention_norm);
    float* qkv = d_.qkv_.get();
    const int32_t ld = d_.query_key_value_, keys = spec_.query_size(), values = keys + spec_.kv_size();
    products<3>(me, in, {{&layer.query, qkv, ld}, {&layer.key, qkv + keys, ld}, {&layer.value, qkv + values, ld}},
                [](const Part&, int32_t, int32_t) {});
    pool_.barrier();
    if (!d_.rotate_with_attention_) {
        rotate_all(index);
        pool_.barrier();
    }
    pool_.share(int(d_.units_.size()), 1, [&](int i, int) { attend(me, index, d_.units_[i]); });
    pool_.barrier();
    if (d_.spans_apart_) {
        join_spans(me, index);
        pool_.barrier();
    }
    if (d_.selects_rows(index)) {
        keep_logit_rows(me);
        if (me.rows == 0) {
            return;
        }
    }
    const Activations out = quantised(me, d_.attended_.get(), spec_.query_size());
    products<1>(me, out, {{&layer.output, d_.y_.get(), spec_.hidden_size}}, [](const Part&, int32_t, int32_t) {});
    pool_.barrier();
}

void Pass::feed_forward_block(Worker& me, const Layer& layer) {
    const Activations in = next_input(me, true, layer.post_attention_norm, layer.feed_forward_norm);
    gate_and_up(me, layer, in);
    pool_.barrier();
    const Activations active = quantised(me, d_.gate_.get(), spec_.feed_forward_size);
    products<1>(me, active, {{&layer.down, d_.y_.get(), spec_.hidden_size}}, [](const Part&, int32_t, int32_t) {});
    pool_.barrier();
}

void Pass::output(Worker& me, const float* post_norm) {
    const int32_t n = spec_.hidden_size, num_rows = batch_.num_rows;
    if (batch_.hidden != nullptr) {
        pool_.share(me.rows, share_of_rows(me.rows, pool_.size()), [&](int32_t begin, int32_t end) {
            for (int32_t row = begin; row < end; ++row) {
                final_row(me, row, post_norm, batch_.hidden + size_t(row) * n);
            }
        });
        pool_.barrier();
    }
    if (num_rows == 0) {
        return;
    }
    const bool for_itself = num_rows <= Decoder::kFewRows;
    float* normed = for_itself ? me.normed.get() : d_.normed_.get();
    Activations a = Activations::place(for_itself ? me.codes.get() : d_.codes_.get(), num_rows, n);
    a.x = normed;
    a.ldx = n;
    const auto rows = [&](int32_t begin, int32_t end) {
        for (int32_t i = begin; i < end; ++i) {
            final_row(me, d_.last_layer_selects_ ? i : d_.logit_row_[i], post_norm, normed + size_t(i) * n);
        }
        k_.quantize(normed, n, begin, end, a);
    };
    if (for_itself) {
        rows(0, num_rows);
    } else {
        pool_.share(num_rows, share_of_rows(num_rows, pool_.size()), rows);
        pool_.barrier();
    }
    products<1>(me, a, {{&spec_.head, batch_.logits, spec_.vocab_size}},
                [&](const Part& part, int32_t tile0, int32_t tile1) {
                    const int32_t from = tile0 * kTile, to = std::min(tile1 * kTile, spec_.vocab_size);
                    for (int32_t row = 0; spec_.logit_softcap > 0 && row < num_rows; ++row) {
                        k_.rows->softcap(part.y + size_t(row) * part.ldy + from, spec_.logit_softcap, to - from);
                    }
                });
}

// Rows between the stages
// ---------------------------------------------------------------------------------------------------------------------

void Pass::add_y(float* x, const float* y, const float* post_norm, float* scratch) const {
    if (post_norm != nullptr) {
        k_.rows->rms_norm(y, post_norm, spec_.hidden_size, spec_.norm_eps, scratch);
        y = scratch;
    }
    k_.rows->add(x, y, spec_.hidden_size);
}

Activations Pass::next_input(Worker& me, bool has_y, const float* post_norm, const float* norm) {
    const int32_t n = spec_.hidden_size;
    float* normed = me.is_few ? me.normed.get() : d_.normed_.get();
    Activations a = Activations::place(me.is_few ? me.codes.get() : d_.codes_.get(), me.rows, n);
    a.x = normed;
    a.ldx = n;
    const auto rows = [&](int32_t begin, int32_t end) {
        for (int32_t row = begin; row < end; ++row) {
            float* to = x(me) + size_t(row) * n;
            if (has_y) {
                add_y(to, d_.y_.get() + size_t(row) * n, post_norm, normed + size_t(row) * n);
            }
            k_.rows->rms_norm(to, norm, n, spec_.norm_eps, normed + size_t(row) * n);
        }
        k_.quantize(normed, n, begin, end, a);
    };
    if (me.is_few) {
        rows(0, me.rows);
    } else {
        pool_.share(me.rows, share_of_rows(me.rows, pool_.size()), rows);
        pool_.barrier();
    }
    return a;
}

Activations Pass::quantised(Worker& me, const float* from, int32_t cols) {
    Activations a = Activations::place(me.is_few ? me.codes.get() : d_.codes_.get(), me.rows, cols);
    a.x = from;
    a.ldx = cols;
    if (me.is_few) {
        k_.quantize(from, cols, 0, me.rows, a);
        return a;
    }
    pool_.share(me.rows, share_of_rows(me.rows, pool_.size()),
                [&](int32_t begin, int32_t end) { k_.quantize(from, cols, begin, end, a); });
    pool_.barrier();
    return a;
}

// What `next_input` would do, then the last norm; x stays as it is, so any thread may do it, twice too.
void Pass::final_row(Worker& me, int32_t row, const float* post_norm, float* out) const {
    const int32_t n = spec_.hidden_size;
    float* sum = me.row.get();
    std::memcpy(sum, x(me) + size_t(row) * n, n * sizeof(float));
    add_y(sum, d_.y_.get() + size_t(row) * n, post_norm, out);
    k_.rows->rms_norm(sum, spec_.output_norm, n, spec_.norm_eps, out);
}

// From here on the rows that want logits are the only ones. Their keys and values are written, nobody reads the others.
void Pass::keep_logit_rows(Worker& me) {
    const size_t n = spec_.hidden_size, m = spec_.query_size();
    pool_.share(1, 1, [&](int32_t, int32_t) {
        for (int32_t i = 0; i < batch_.num_rows; ++i) {  // always towards the beginning
            const size_t row = d_.logit_row_[i];
            std::memmove(d_.x_.get() + i * n, d_.x_.get() + row * n, n * sizeof(float));
            std::memmove(d_.attended_.get() + i * m, d_.attended_.get() + row * m, m * sizeof(float));
        }
    });
    pool_.barrier();
    me.rows = batch_.num_rows;
    me.is_few = me.rows <= Decoder::kFewRows;
    if (me.is_few) {
        std::memcpy(me.x.get(), d_.x_.get(), me.rows * n * sizeof(float));
    }
}

// Products
// ---------------------------------------------------------------------------------------------------------------------

// An even number: kernels like to take tiles in pairs, and two tiles are a block of the next quantisation.
int32_t Pass::tiles_at_once(int32_t tiles) const {
    const int32_t pieces = kPiecesPerThread * pool_.size();
    return std::max(2, (tiles + pieces - 1) / pieces + 1) / 2 * 2;
}

void Pass::multiply(Worker& me, const Part& part, const Activations& a, int32_t tile0, int32_t tile1) {
    const Projection& p = *part.projection;
    k_.matmul(p.w, a, tile0, tile1, part.y, part.ldy, me.matmul.get());
    if (p.bias == nullptr) {
        return;
    }
    const int32_t from = tile0 * kTile, count = std::min(tile1 * kTile, p.w.rows) - from;
    for (int32_t row = 0; row < a.rows; ++row) {
        k_.rows->add(part.y + size_t(row) * part.ldy + from, p.bias + from, count);
    }
}

template <int n, class After>
void Pass::products(Worker& me, const Activations& a, const Part (&parts)[n], const After& after) {
    int32_t tiles = 0, ends[n];
    for (int32_t i = 0; i < n; ++i) {
        tiles += parts[i].projection->w.tiles();
    }
    const int32_t grain = tiles_at_once(tiles);
    for (int32_t i = 0; i < n; ++i) {
        ends[i] = (i > 0 ? ends[i - 1] : 0) + (parts[i].projection->w.tiles() + grain - 1) / grain;
    }
    pool_.share(ends[n - 1], 1, [&](int32_t piece, int32_t) {
        const auto i = std::upper_bound(ends, ends + n, piece) - ends;
        const int32_t tile0 = (piece - (i > 0 ? ends[i - 1] : 0)) * grain;
        const int32_t tile1 = std::min(tile0 + grain, parts[i].projection->w.tiles());
        multiply(me, parts[i], a, tile0, tile1);
        after(parts[i], tile0, tile1);
    });
}

void Pass::gate_and_up(Worker& me, const Layer& layer, const Activations& a) {
    const int32_t ff = spec_.feed_forward_size, tiles = ff / kTile;
    float* gate = d_.gate_.get();
    float* up = d_.up_.get();
    pool_.share(tiles, tiles_at_once(tiles), [&](int32_t tile0, int32_t tile1) {
        multiply(me, {&layer.gate, gate, ff}, a, tile0, tile1);
        multiply(me, {&layer.up, up, ff}, a, tile0, tile1);
        for (int32_t row = 0; row < me.rows; ++row) {
            const size_t at = size_t(row) * ff + tile0 * kTile;
            k_.rows->activate(spec_.activation, gate + at, up + at, (tile1 - tile0) * kTile, gate + at);
        }
    });
}

// Attention
// ---------------------------------------------------------------------------------------------------------------------

void Pass::rotate_and_write(int32_t index, int32_t row, int32_t head) {
    const Layer& layer = spec_.layers[index];
    const Rope& rope = spec_.ropes[layer.rope];
    const int32_t n = spec_.head_size, position = d_.row_position_[row];
    const float* table = rope.table + size_t(position) * rope.dim;
    float* qkv = d_.qkv_.get() + size_t(row) * d_.query_key_value_;
    const auto turn = [&](float* x, const float* norm) {
        if (norm != nullptr) {
            k_.rows->rms_norm(x, norm, n, spec_.norm_eps, x);
        }
        k_.rows->rotate(x, table, rope.dim, rope.adjacent);
    };
    float* queries = qkv + size_t(head) * spec_.group() * n;
    for (int32_t i = 0; i < spec_.group(); ++i) {
        turn(queries + i * n, layer.query_norm);
    }
    k_.rows->scale(queries, spec_.attention_scale, spec_.group() * n);
    float* key = qkv + spec_.query_size() + head * n;
    turn(key, layer.key_norm);
    const Chunk& chunk = batch_.chunks[d_.row_chunk_[row]];
    const int32_t page = batch_.tables[size_t(chunk.slot) * batch_.max_pages + position / kPageTokens];
    uint8_t* memory = d_.kv_.head(index, head) + page * d_.kv_.page_bytes();
    k_.attention->write(d_.kv_.layout(), memory, position % kPageTokens, key, key + spec_.kv_size());
}

void Pass::rotate_all(int32_t layer) {
    const int32_t heads = spec_.num_kv_heads;
    pool_.share(batch_.num_tokens, share_of_rows(batch_.num_tokens, pool_.size()), [&](int32_t begin, int32_t end) {
        for (int32_t row = begin; row < end; ++row) {
            for (int32_t head = 0; head < heads; ++head) {
                rotate_and_write(layer, row, head);
            }
        }
    });
}

void Pass::attend(Worker& me, int32_t layer, const Decoder::Unit& unit) {
    const Decoder::Piece& piece = d_.pieces_[unit.piece];
    if (d_.rotate_with_attention_) {
        rotate_and_write(layer, piece.row, unit.head);
    }
    if (!d_.is_wanted(layer, piece)) {
        return;
    }
    const AttentionRows rows = d_.attention_rows(batch_, layer, unit.piece, unit.head);
    if (d_.spans_apart_) {
        if (unit.span >= rows.first_span()) {
            k_.attention->attend(rows, unit.span, unit.partials, me.attention.get());
        }
        return;
    }
    const int32_t stride = partial_floats(spec_.head_size);
    float* all = me.partials.get();
    float* one = all + d_.piece_rows_ * stride;
    k_.attention->attend(rows, rows.first_span(), all, me.attention.get());
    for (int32_t span = rows.first_span() + 1; span <= rows.last_span(); ++span) {
        k_.attention->attend(rows, span, one, me.attention.get());
        for (int32_t row = 0; row < rows.rows(); ++row) {
            k_.attention->merge(all + row * stride, one + row * stride, spec_.head_size);
        }
    }
    finish(piece, unit.head, all);
}

void Pass::finish(const Decoder::Piece& piece, int32_t head, const float* partials) {
    const int32_t n = spec_.head_size, group = spec_.group();
    for (int32_t row = 0; row < piece.num_tokens * group; ++row) {
        float* out = d_.attended_.get() + size_t(piece.row + row / group) * spec_.query_size();
        k_.attention->finish(partials + row * partial_floats(n), n, out + (head * group + row % group) * n);
    }
}

// The spans of a piece and head are consecutive units; they are merged in order, as if one thread had computed them.
void Pass::join_spans(Worker&, int32_t layer) {
    const int32_t n = spec_.head_size, stride = partial_floats(n);
    pool_.share(int(d_.units_.size()), 1, [&](int32_t i, int32_t) {
        const Decoder::Unit& unit = d_.units_[i];
        if (unit.span != 0 || !d_.is_wanted(layer, d_.pieces_[unit.piece])) {
            return;
        }
        const AttentionRows rows = d_.attention_rows(batch_, layer, unit.piece, unit.head);
        float* all = d_.units_[i + rows.first_span()].partials;
        for (int32_t span = rows.first_span() + 1; span <= rows.last_span(); ++span) {
            for (int32_t row = 0; row < rows.rows(); ++row) {
                k_.attention->merge(all + row * stride, d_.units_[i + span].partials + row * stride, n);
            }
        }
        finish(d_.pieces_[unit.piece], unit.head, all);
    });
}

}  // namespace stoker
