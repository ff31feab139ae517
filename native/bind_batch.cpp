// Python's view of a batch: the chunks of a step, which are tuples, become the arrays that a forward pass reads.
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "bindings.hpp"

namespace stoker {

namespace {

// The numbers of entries and of rows of logits, whether any chunk names adapters, how many entries are rows of images, and
// whether any chunk is rotated otherwise than by its place.
std::tuple<int32_t, int32_t, bool, int32_t, bool> write_batch(const nb::tuple& chunks, Array<int32_t, 1> tokens, Array<int32_t, 2> rows) {
    require(rows.shape(1) == 4 && chunks.size() <= rows.shape(0), "more chunks than there is room for");
    auto* out = reinterpret_cast<Chunk*>(rows.data());
    size_t num_tokens = 0;
    int32_t num_rows = 0, num_inputs = 0;
    bool is_adapted = false, is_shifted = false;
    for (nb::handle item : chunks) {
        const auto chunk = nb::cast<nb::tuple>(item);
        require(chunk.size() == 7, "a chunk is not (slot, start, entries, num_logits, adapters, rows, shift)");
        const auto entries = nb::cast<nb::tuple>(chunk[2]);
        require(num_tokens + entries.size() <= tokens.shape(0), "more entries than there is room for");
        for (nb::handle entry : entries) {
            const auto value = nb::cast<int64_t>(entry);
            require(value <= INT32_MAX, "a token id is outside of the vocabulary");
            tokens.data()[num_tokens++] = value < 0 ? -1 - num_inputs++ : int32_t(value);
        }
        const auto num_logits = nb::cast<int32_t>(chunk[3]);
        *out++ = {nb::cast<int32_t>(chunk[0]), nb::cast<int32_t>(chunk[1]), int32_t(entries.size()), num_logits};
        num_rows += num_logits;
        is_adapted |= nb::cast<nb::tuple>(chunk[4]).size() > 0;
        is_shifted |= nb::cast<int32_t>(chunk[6]) != 0;
    }
    return {int32_t(num_tokens), num_rows, is_adapted, num_inputs, is_shifted};
}

}  // namespace

void bind_batch(nb::module_& module) {
    module.def("write_batch", &write_batch, nb::arg("chunks"), nb::arg("tokens").noconvert(), nb::arg("rows").noconvert());
}

}  // namespace stoker
