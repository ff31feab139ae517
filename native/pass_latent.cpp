// The stages of attention whose keys and values are one latent vector of each position (see Latent).
//
//   latent_narrow_    a row:  | head 0: plain, rotated | head 1 | ...       of queries that are made from fewer numbers
//   latent_queries_   a row:  | head 0: rotated, widened | head 1 | ...
//   latent_mixed_     a row:  likewise, of what attention gives
#include <algorithm>
#include <cstring>

#include "pass.hpp"
#include "spread.hpp"

namespace stoker {

void Pass::latent_keys(int32_t index, Range rows) {
    const Layer& layer = spec_.layers[index];
    const Latent& l = layer.latent;
    const Rope& rope = spec_.ropes[layer.rope];
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        const int32_t position = plan_.row_position[row];
        const Chunk& chunk = batch_.chunks[plan_.row_chunk[row]];
        float* in = d_.qkv_.get() + size_t(row) * layer.input_size();
        if (l.narrow.w.rows > 0) {
            k_.rows->rms_norm(in, l.query_norm, layer.query.w.rows, spec_.norm_eps, in);
        }
        float* from = in + layer.query.w.rows;
        float* key = d_.latent_keys_.get() + size_t(row) * layer.heads.size;
        std::memcpy(key, from + l.size, l.rotated * sizeof(float));
        k_.rows->rotate(key, rope.table + size_t(position) * rope.dim, rope.dim, rope.adjacent);
        k_.rows->rms_norm(from, l.norm, l.size, spec_.norm_eps, key + l.rotated);
        const KvLayout& kv = d_.kv(index).layout(index);
        if (is_spread(kv.type)) {
            spread(key, layer.heads.size);
        }
        const int32_t page = table(index, chunk)[position / kPageTokens];
        uint8_t* memory = d_.kv(index).head(index, 0) + page * kv.page_bytes;
        k_.attention->write(kv, memory, position % kPageTokens, key, key);
    }
}

void Pass::narrow(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Projection& p = spec_.layers[stage.layer].latent.narrow;
    multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.latent_narrow_.get(), p.w.rows);
}

void Pass::widen(Worker& me, const Stage& stage, int32_t head) {
    const Layer& layer = spec_.layers[stage.layer];
    const Latent& l = layer.latent;
    const bool is_narrow = l.narrow.w.rows > 0;
    const float* x = (is_narrow ? d_.latent_narrow_.get() : d_.qkv_.get()) + head * l.query_size();
    const int32_t ldx = is_narrow ? l.narrow.w.rows : layer.input_size(), ldq = layer.heads.query_size();
    float* queries = d_.latent_queries_.get() + size_t(head) * layer.heads.size;
    multiply_head(me, stage, l.wide, head, x, ldx, queries + l.rotated, ldq);
    const Rope& rope = spec_.ropes[layer.rope];
    for (int32_t row = 0; row < stage.rows; ++row) {
        const int32_t position = plan_.row_position[row];
        float* query = queries + size_t(row) * ldq;
        std::memcpy(query, x + size_t(row) * ldx + l.plain, l.rotated * sizeof(float));
        k_.rows->rotate(query, rope.table + size_t(position) * rope.dim, rope.dim, rope.adjacent);
        const float by_position = layer.scales_queries && spec_.query_scales != nullptr ? spec_.query_scales[position] : 1;
        k_.rows->scale(query, spec_.attention_scale * by_position, layer.heads.size);
        if (is_spread(d_.kv(stage.layer).layout(stage.layer).type)) {
            spread(query, layer.heads.size);
        }
    }
}

void Pass::latent_out(Worker& me, const Stage& stage, int32_t head) {
    const Layer& layer = spec_.layers[stage.layer];
    const Latent& l = layer.latent;
    const float* x = d_.latent_mixed_.get() + size_t(head) * layer.heads.size + l.rotated;
    multiply_head(me, stage, l.out, head, x, layer.heads.query_size(), d_.attended_.get() + size_t(head) * l.value,
                  layer.mixed_size());
}

void Pass::multiply_head(Worker& me, const Stage& stage, const Projection& all, int32_t head, const float* x, int32_t ldx,
                         float* y, int32_t ldy) {
    const int32_t rows = all.w.rows / spec_.layers[stage.layer].heads.num, first = head * (rows / kTile);
    Activations a = Activations::place(me.part_codes.get(), stage.rows, all.w.cols);
    a.x = x;
    a.ldx = ldx;
    k_.quantize(x, ldx, 0, stage.rows, 0, a.blocks(), a);
    multiply(me, all, a, {first, first + rows / kTile}, y - ptrdiff_t(head) * rows, ldy);
}

}  // namespace stoker
