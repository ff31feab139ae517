// One forward pass, as every thread of the pool goes through it.
#pragma once

#include "decoder.hpp"

namespace stoker {

// The stages of a layer; | is a barrier. Rows are normalised and quantised by each thread for itself if they are few,
// otherwise row by row by whoever comes, with one more barrier.
//
//   x += y; norm; quantise; Q K V | rotate, write KV, attend | quantise; output -> y |
//   x += y; norm; quantise; gate, up, activation | quantise; down -> y |
//
// In the last layer only the rows that want logits go on behind their keys and values.
class Pass {
public:
    Pass(Decoder& decoder, const Batch& batch);
    void operator()(int thread);

private:
    struct Part {
        const Projection* projection;
        float* y;
        int32_t ldy;
    };

    void embed(Worker& me);
    void attention_block(Worker& me, int32_t layer, const float* post_norm_before);
    void feed_forward_block(Worker& me, const Layer& layer);
    void output(Worker& me, const float* post_norm_before);

    // x += y (normalised with `post_norm` unless nullptr) if there is a y yet; then x normalised with `norm`, quantised.
    Activations next_input(Worker& me, bool has_y, const float* post_norm, const float* norm);
    Activations quantised(Worker& me, const float* rows, int32_t cols);
    void keep_logit_rows(Worker& me);
    void add_y(float* x, const float* y, const float* post_norm, float* scratch) const;
    void final_row(Worker& me, int32_t row, const float* post_norm, float* out) const;
    float* x(Worker& me) const { return me.is_few ? me.x.get() : d_.x_.get(); }

    template <int n, class After>
    void products(Worker& me, const Activations& a, const Part (&parts)[n], const After& after);
    void gate_and_up(Worker& me, const Layer& layer, const Activations& a);
    void multiply(Worker& me, const Part& part, const Activations& a, int32_t tile0, int32_t tile1);
    int32_t tiles_at_once(int32_t tiles) const;

    void rotate_and_write(int32_t layer, int32_t row, int32_t head);
    void rotate_all(int32_t layer);
    void attend(Worker& me, int32_t layer, const Decoder::Unit& unit);
    void join_spans(Worker& me, int32_t layer);
    void finish(const Decoder::Piece& piece, int32_t head, const float* partials);

    Decoder& d_;
    const DecoderSpec& spec_;
    const Kernels& k_;
    Pool& pool_;
    const Batch& batch_;
};

}  // namespace stoker
