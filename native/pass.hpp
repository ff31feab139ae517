// One forward pass, stage by stage as planned.
#pragma once

#include <tuple>

#include "decoder.hpp"
#include "experts.hpp"

namespace stoker {

class Pass final : public Program {
public:
    Pass(Decoder& decoder, const Batch& batch);
    int32_t num_stages() const override { return int32_t(plan_.stages.size()); }
    int32_t num_pieces(int32_t stage) const override;
    void compute(int32_t stage, int32_t piece, int32_t thread) override;

private:
    struct Range {
        int32_t begin, end;
    };

    // Which of all rows, tiles or units are a piece of the stage.
    static Range share(const Stage& stage, int32_t piece, int32_t all);
    void embed(const Stage& stage, Range rows);
    void keep_rows(const Stage& stage);
    void spread_rows(const Stage& stage);

    const Heads& heads(int32_t layer) const { return spec_.layers[layer].heads; }
    void norm(const float* x, const float* weight, float* y) const;  // weight: nullptr = y is x

    // The input of the products of stage `index`: prepared by a stage before it, or by this thread now.
    Activations input(Worker& me, int32_t index, bool is_first_piece);
    Activations place_input(Worker& me, const Stage& products) const;
    void prepare(Worker& me, const Stage& products, Range rows, const Activations& out);
    void normalise(Worker& me, const Stage& products, const float* norm, Range rows);
    // What is done with the y that these products begin with: x = (x + norm(y)) * scale.
    struct Added {
        const float* norm;
        float scale;
        const float* behind = nullptr;  // of the sum
    };
    Added added(const Stage& products) const;
    float* normed_rows(Worker& me, const Stage& products) const;
    void add_y(float* x, int32_t row, const Added& what, float* scratch) const;
    // Of a row that stands in place of an embedding: the embedding itself, and what is added behind the first layers.
    const float* input_part(int32_t token, int32_t part) const;
    void add_deep_input(const Stage& products, int32_t row, float* x) const;
    // Of a stage of the rows that want logits, which of all that are left a row is.
    int32_t left_row(const Stage& stage, int32_t row) const {
        return stage.of_logits && !plan_.keeps_rows ? plan_.logit_row[row] : row;
    }
    void final_row(Worker& me, const Stage& stage, int32_t row, float* out) const;

    void project(Worker& me, int32_t index, Range units);
    // The first stage behind this one that multiplies.
    int32_t products_behind(int32_t index) const;
    void products(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void query_key_value(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void gate_and_up(Worker& me, const Stage& stage, Range tiles, const Activations& a);
    void pass_on(Range rows);
    void norm_mixed(const Stage& stage, Range rows);
    void norm_inner(const Stage& stage, Range rows);
    void head(Worker& me, const Stage& stage, Range tiles, const Activations& a);
    // `part`: which of the stage's matrices this is.
    void multiply(Worker& me, const Stage& stage, int32_t part, const Activations& a, Range tiles, float* y, int32_t ldy);

    void multiply(Worker& me, const Projection& p, const Activations& a, Range tiles, float* y, int32_t ldy);

    // Draft heads, and what they need of the model: pass_draft_head.cpp
    void keep_features(Range rows);
    void join_rows(const Stage& stage, Range rows);
    void normed_or_same(const float* x, const float* weight, int32_t n, float* y) const;
    // x as it comes into a layer.
    void extract(const Stage& products, Range rows, const float* x);

    // Experts: pass_experts.cpp
    void route(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void choose(const Stage& stage, Range rows);
    void sort_rows(const Stage& stage);
    // The rows of a unit, from the input of stage `index`.
    Activations gather(Worker& me, int32_t index, const ExpertRows::Unit& unit, const Activations& all, bool is_float);
    void expert_gate_up(Worker& me, int32_t index, int32_t piece);
    void expert_down(Worker& me, const Stage& stage, int32_t piece);
    void multiply_expert(Worker& me, const Projection& all, int32_t expert, int32_t rows, const Activations& a,
                         const ExpertRows::Unit& unit, float* y, int32_t ldy);
    void combine(Worker& me, const Stage& stage, Range rows);

    // Latent keys and values: pass_latent.cpp
    void latent_keys(int32_t layer, Range rows);
    void narrow(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void widen(Worker& me, const Stage& stage, int32_t head);
    void latent_out(Worker& me, const Stage& stage, int32_t head);
    // The products of one head, of a matrix of all, with a part of each row that begins at `x`.
    void multiply_head(Worker& me, const Stage& stage, const Projection& all, int32_t head, const float* x, int32_t ldx,
                       float* y, int32_t ldy);

    // What tokens have for each layer: pass_layer_inputs.cpp
    void multiply_for_layers(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void layer_inputs(Worker& me, Range rows);
    void inject_gate(Worker& me, const Stage& stage, int32_t piece, const Activations& a);

    // Streams: pass_alt_up.cpp
    float* streams(int32_t row) const;
    void modalities(Worker& me, const Layer& layer, const float* x, float* out) const;
    void split(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void level(Range rows);
    void gather(Worker& me, int32_t row, const Layer& layer);
    void predict(Worker& me, const Stage& stage, Range rows);
    void laurel(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void add_laurel(Worker& me, const Stage& stage, Range rows);
    void cut(const Stage& stage, Range rows);
    void correct(Worker& me, const Stage& stage, Range rows);
    void join_streams(Worker& me, const Stage& stage, int32_t piece);
    void merge(const Stage& stage, Range rows);

    // Layers that keep a state: pass_recurrent.cpp
    void convolve(const Stage& stage, int32_t piece);
    void scan(Worker& me, const Stage& stage, int32_t piece);
    void scan_rows(Worker& me, const Layer& layer, int32_t head, float* state, size_t row, int32_t count);
    template <class Compute>
    void in_states(const Chunk& chunk, int32_t layer, size_t offset, size_t floats, int32_t pieces, size_t stride,
                   const Compute& compute);
    void gate_mixed(const Stage& stage, Range rows);
    // Where rows lie, how far apart, and how many of their numbers are multiplied.
    using InputRows = std::tuple<const float*, int32_t, int32_t>;
    // Of products between the convolution and the scan; of others what is given.
    InputRows recurrent_input(const Stage& products, const InputRows& others) const;
    void multiply_recurrent(Worker& me, const Stage& stage, int32_t piece, const Activations& a);
    void norm_low(const Stage& stage, Range rows);
    void scan_channels(const Stage& stage, int32_t piece);

    static void gather_rotation(const Rope& rope, const int32_t* positions, float* out);
    void rotate_row(int32_t layer, int32_t row);
    void rotate_and_write(int32_t layer, int32_t row, int32_t head);
    bool is_wanted(int32_t layer, const AttentionPiece& piece) const {
        return piece.wants_logits || !plan_.keeps_rows_from(layer);
    }
    // Its range of the units of attention (see Pool).
    Range units_of(int32_t layer, int32_t thread) const;
    // `left`: what it has left of its range, and so takes next.
    void attend(Worker& me, int32_t layer, int32_t unit, Range left);
    void attend_span(Worker& me, AttentionRows& rows, int32_t span, const AttentionAhead& ahead, float* partials);
    // Keys that attention will begin with come from memory while Q, K and V are multiplied.
    void fetch_keys(int32_t thread, int32_t layer);
    // The pages of the first unit's first span from the first that is seen on; none of no units.
    AttentionAhead pages_of(int32_t layer, Range units) const;
    void join_spans(Worker& me, int32_t layer, int32_t unit);
    void merge(float* all, const float* later, int32_t rows, int32_t head_size) const;
    void finish(Worker& me, int32_t layer, const AttentionPiece& piece, int32_t head, float* partials);
    AttentionRows attention_rows(int32_t layer, const AttentionPiece& piece, int32_t head) const;
    // The pages of a chunk's sequence for a layer.
    const int32_t* table(int32_t layer, const Chunk& chunk) const {
        const int32_t* tables = d_.sees_window_pages(layer) ? batch_.window_tables : batch_.tables;
        return tables + size_t(chunk.slot) * batch_.max_pages;
    }

    Decoder& d_;
    const DecoderSpec& spec_;
    const Kernels& k_;
    Plan& plan_;
    const Batch& batch_;
};

}  // namespace stoker
