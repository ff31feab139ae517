// Python's view of sampling: requests are compiled once; then rows of logits in, token ids out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "cpu.hpp"
#include "row_edits.hpp"
#include "sampling.hpp"

namespace stoker {

namespace {

namespace nb = nanobind;

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TokenIds = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Maxima = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Window (0 = all), repetition, presence, frequency.
using PenaltyNumbers = std::tuple<size_t, float, float, float>;

// Rows shorter than so many logits together are chosen from sooner than another thread gives the interpreter back.
constexpr size_t kLongWork = 1 << 20;

template <class TokenIds>
void check_ids(const TokenIds& first, const TokenIds& last, int32_t n) {
    const auto is_known = [n](int64_t token_id) { return token_id >= 0 && token_id < n; };
    require(std::all_of(first, last, is_known), "no such token id");
}

// How to choose the next token of one request: everything that does not change, and its history.
struct CompiledRow {
    Chain chain;
    RowEdits edits;
    int32_t vocab_size;
};

CompiledRow compile_row(int32_t vocab_size, const std::tuple<double, int32_t, double, double>& settings, uint64_t seed,
                        const std::vector<std::pair<int32_t, float>>& biases, const std::vector<int32_t>& ends,
                        int64_t min_tokens, std::optional<PenaltyNumbers> penalties, const std::vector<int32_t>& history) {
    const auto& [temperature, top_k, top_p, min_p_distance] = settings;
    require(std::isfinite(temperature) && temperature >= 0, "a temperature is negative or no number");
    require(top_p >= 0 && min_p_distance >= 0, "top_p or the distance of min_p is negative or no number");
    require(temperature == 0 || (top_k == 0 ? top_p < 1 : top_k > 0 && top_k < vocab_size), "top_k is out of range");
    for (const auto& bias : biases) {
        check_ids(&bias.first, &bias.first + 1, vocab_size);
    }
    check_ids(ends.begin(), ends.end(), vocab_size);
    check_ids(history.begin(), history.end(), vocab_size);
    std::vector<Penalties> compiled;
    if (penalties) {
        const auto& [window, repetition, presence, frequency] = *penalties;
        compiled.push_back({repetition, presence, frequency, TokenCounts(window, history)});
    }
    const Chain chain = {temperature, top_k, top_p, min_p_distance, seed, 0};
    return {chain, RowEdits(biases, ends, min_tokens, std::move(compiled)), vocab_size};
}

class BoundSampler {
public:
    explicit BoundSampler(const std::string& kernels) : kernels_(*kernels_or_best(kernels).sampling), sampler_(kernels_) {}

    std::vector<int32_t> choose(Rows logits, const std::vector<CompiledRow*>& rows, std::optional<Rows> maxima) {
        const auto n = int32_t(logits.shape(1));
        require(n > 0 && logits.shape(0) == rows.size(), "each row of logits needs to be compiled");
        require(!maxima || (maxima->shape(0) == rows.size() && maxima->shape(1) == size_t(num_maxima(n))),
                "the maxima are not those of the logits");
        require(std::all_of(rows.begin(), rows.end(), [n](const CompiledRow* row) { return !row || row->vocab_size == n; }),
                "a row was compiled for another vocabulary");
        float* found = maxima ? maxima->data() : nullptr;
        if (logits.size() < kLongWork || found != nullptr) {
            return choose(logits.data(), n, rows, found);
        }
        nb::gil_scoped_release release;
        return choose(logits.data(), n, rows, found);
    }

    void renew(Row row, Maxima maxima, TokenIds token_ids) const {
        const auto n = int32_t(row.shape(0));
        require(maxima.shape(0) == size_t(num_maxima(n)), "the maxima are not those of the row");
        check_ids(token_ids.data(), token_ids.data() + token_ids.shape(0), n);
        for (size_t i = 0; i < token_ids.shape(0); ++i) {
            const auto from = int32_t(token_ids.data()[i]) / kMaximaBlock * kMaximaBlock;
            const int32_t count = std::min(kMaximaBlock, n - from);
            kernels_.block_maxima(row.data() + from, count, maxima.data() + from / kMaximaBlock);
        }
    }

    double exp_sum(Row row, float peak) const {
        return kernels_.exp_sum(row.data(), int32_t(row.shape(0)), peak);
    }

    std::vector<int32_t> largest(Row row, int32_t count) {
        const auto n = int32_t(row.shape(0));
        require(count > 0, "no such number of logits");
        std::vector<int32_t> out;
        for (const Ranked& ranked : sampler_.largest(row.data(), n, std::min(count, n))) {
            out.push_back(ranked.token_id);
        }
        return out;
    }

private:
    std::vector<int32_t> choose(float* logits, int32_t n, const std::vector<CompiledRow*>& rows, float* maxima) {
        std::vector<int32_t> out;
        for (size_t row = 0; row < rows.size(); ++row) {
            float* found = maxima == nullptr ? nullptr : maxima + row * num_maxima(n);
            out.push_back(rows[row] == nullptr ? -1 : choose_one(logits + row * n, n, *rows[row], found));
        }
        return out;
    }

    int32_t choose_one(float* row, int32_t n, CompiledRow& compiled, float* maxima) {
        if (!compiled.edits.can_edit(row)) {
            return -1;
        }
        EditedRow edited(kernels_, row, n, maxima, before_, tops_);
        compiled.edits.apply(edited);
        const int32_t chosen = sampler_.choose(row, n, compiled.chain, maxima);
        edited.undo();
        if (chosen >= 0) {
            compiled.edits.push(chosen);
            ++compiled.chain.index;
        }
        return chosen;
    }

    const SamplingKernels& kernels_;
    RowSampler sampler_;
    std::vector<Ranked> before_;
    std::vector<float> tops_;
};

}  // namespace

void bind_sampling(nb::module_& module) {
    module.def("num_maxima", &num_maxima, nb::arg("vocab_size"));
    nb::class_<CompiledRow>(module, "CompiledRow")
        .def_prop_ro("num_completion", [](const CompiledRow& row) { return row.chain.index; });
    nb::class_<BoundSampler>(module, "RowSampler")
        .def(nb::init<const std::string&>(), nb::arg("kernels") = "")
        .def_static("open", &compile_row, nb::arg("vocab_size"), nb::arg("chain"), nb::arg("seed"), nb::kw_only(),
                    nb::arg("biases"), nb::arg("ends"), nb::arg("min_tokens"), nb::arg("penalties").none(),
                    nb::arg("history"))
        .def("choose", nb::overload_cast<Rows, const std::vector<CompiledRow*>&, std::optional<Rows>>(&BoundSampler::choose),
             nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("maxima").noconvert() = nb::none())
        .def("renew", &BoundSampler::renew, nb::arg("row").noconvert(), nb::arg("maxima").noconvert(), nb::arg("token_ids"))
        .def("exp_sum", &BoundSampler::exp_sum, nb::arg("row").noconvert(), nb::arg("peak"))
        .def("largest", &BoundSampler::largest, nb::arg("row").noconvert(), nb::arg("count"));
}

}  // namespace stoker
