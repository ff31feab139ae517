// The stages of layers that keep a state.
#include "pass.hpp"

namespace stoker {

void Pass::convolve(const Stage& stage, int32_t piece) {
    const Layer& layer = spec_.layers[stage.layer];
    const int32_t all = layer.mixed_size(), blocks = divided_up(all, stage.grain), index = piece / blocks;
    const auto [begin, end] = share(stage, piece % blocks, all);
    const Chunk& chunk = batch_.chunks[index];
    const ConvolvedRows rows = {
        .taps = layer.convolution.taps,
        .weights = layer.convolution.weights + begin,
        .state = d_.states_.layer(chunk.slot, stage.layer) + begin,
        .stride = size_t(all),
        .is_first = chunk.start == 0,
        .num_rows = chunk.length,
        .channels = end - begin,
    };
    const size_t row = plan_.chunk_row[index], ld = layer.input_size();
    const float* b = d_.qkv_.get() + row * ld + begin;
    k_.recurrent->convolve_gated(rows, b, b + all, b + 2 * all, ld, d_.attended_.get() + row * all + begin, all);
}

}  // namespace stoker
