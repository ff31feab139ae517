// The stages of what tokens have for each layer.
//
//   layer_inputs_   a row:  | layer 0: size floats | layer 1 | ...
#include <algorithm>

#include "pass.hpp"

namespace stoker {

void Pass::multiply_for_layers(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const Projection& p = spec_.layer_inputs.projection;
    multiply(me, p, a, share(stage, piece, p.w.tiles()), d_.layer_inputs_.get(), p.w.rows);
}

void Pass::layer_inputs(Worker& me, Range rows) {
    const LayerInputs& in = spec_.layer_inputs;
    const int32_t all = in.projection.w.rows;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* to = d_.layer_inputs_.get() + size_t(row) * all;
        for (int32_t at = 0; at < all; at += in.size) {
            k_.rows->rms_norm(to + at, in.norm, in.size, in.norm_eps, to + at);
        }
        k_.unpack_row(in.table.w, std::max(0, batch_.tokens[row]), me.layer_row.get());  // 0 is padding: for images
        k_.rows->add_scaled(to, me.layer_row.get(), in.table_scale, all);
    }
}

// What is multiplied by `inject`, as floats. Rows may be fewer than those of the batch by now.
void Pass::inject_gate(Worker& me, const Stage& stage, int32_t piece, const Activations& a) {
    const int32_t size = spec_.layer_inputs.size, all = spec_.layer_inputs.projection.w.rows;
    const Projection& gate = spec_.layers[stage.layer].injection.gate;
    const Range tiles = share(stage, piece, gate.w.tiles());
    const int32_t from = tiles.begin * kTile, width = (tiles.end - tiles.begin) * kTile;
    multiply(me, gate, a, tiles, d_.injected_.get(), size);
    for (int32_t row = 0; row < stage.rows; ++row) {
        float* active = d_.injected_.get() + size_t(row) * size + from;
        const size_t source = stage.of_logits ? plan_.logit_row[row] : row;
        const float* input = d_.layer_inputs_.get() + source * all + size_t(stage.layer) * size + from;
        k_.rows->activate(spec_.activation, active, input, width, active);
    }
}

}  // namespace stoker
