// The stages that draft heads begin with, and what a model gives to those in files of their own.
//
//   joined_   a row:  | norm(embedding) | norm(hidden state) |
#include <cstring>

#include "pass.hpp"

namespace stoker {

void Pass::normed_or_same(const float* x, const float* weight, int32_t n, float* y) const {
    if (weight != nullptr) {
        k_.rows->rms_norm(x, weight, n, spec_.norm_eps, y);
    } else if (x != y) {
        std::memcpy(y, x, n * sizeof(float));
    }
}

void Pass::keep_features(Range rows) {
    const int32_t n = spec_.join.fuse.w.cols;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        normed_or_same(batch_.features + size_t(row) * n, spec_.join.fuse_norm, n, d_.features_.get() + size_t(row) * n);
    }
}

void Pass::join_rows(const Stage& stage, Range rows) {
    const Join& join = spec_.join;
    const int32_t width = spec_.embedding.w.cols, n = join.hidden_size;
    const float* states = batch_.joined != nullptr ? batch_.joined : d_.fused_.get();
    for (int32_t row = rows.begin; row < rows.end; ++row) {
        float* both = d_.joined_.get() + size_t(row) * spec_.joined_size();
        const int32_t token = batch_.tokens[row];
        if (token < 0) {
            std::memcpy(both, input_part(token, 0), width * sizeof(float));
            k_.rows->scale(both, spec_.input_scale, width);
        } else {
            k_.unpack_row(spec_.embedding.w, token, both);
            k_.rows->scale(both, spec_.embedding_scale, width);
        }
        normed_or_same(both, join.embedding_norm, width, both);
        const float* state = states + size_t(row) * n;
        normed_or_same(state, join.hidden_norm, n, both + width);
        if (join.is_wide()) {
            std::memcpy(d_.x_[stage.x].get() + size_t(row) * n, join.keeps_norm ? both + width : state, n * sizeof(float));
        }
    }
}

void Pass::extract(const Stage& products, Range rows, const float* x) {
    if (batch_.extracted == nullptr || !products.begins(spec_.layers[products.layer])) {
        return;
    }
    const size_t n = spec_.hidden_size, count = spec_.extracted.size();
    for (size_t i = 0; i < count; ++i) {
        for (int32_t row = rows.begin; spec_.extracted[i] == products.layer && row < rows.end; ++row) {
            std::memcpy(batch_.extracted + (row * count + i) * n, x + row * n, n * sizeof(float));
        }
    }
}

}  // namespace stoker
