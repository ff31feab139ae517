// Python's view of sampling: requests are compiled once; then rows of logits in, token ids out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.hpp"
#include "cpu.hpp"
#include "row_edits.hpp"
#include "sampling.hpp"

namespace stoker {

namespace {

using Rows = Array<float, 2>;
using Row = Array<const float, 1>;
// Of the tokens that are allowed in a row, as words of bits.
using Mask = Array<const uint32_t, 1>;
// A mask, or something with the methods `allows` and `mask` of a Constraint.
using RowMask = std::variant<Mask, nb::object>;
using Masks = std::vector<std::optional<RowMask>>;
// Window (0 = all), repetition, presence, frequency.
using PenaltyNumbers = std::tuple<size_t, float, float, float>;

// Rows shorter than so many logits together are chosen from sooner than another thread gives the interpreter back.
constexpr size_t kLongWork = 1 << 20;

template <class TokenIds> void check_ids(const TokenIds& token_ids, int32_t n) {
    const auto is_known = [n](int64_t token_id) { return token_id >= 0 && token_id < n; };
    require(std::ranges::all_of(token_ids, is_known), "no such token id");
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
    check_ids(std::views::keys(biases), vocab_size);
    check_ids(ends, vocab_size);
    check_ids(history, vocab_size);
    std::optional<Penalties> compiled;
    if (penalties) {
        const auto& [window, repetition, presence, frequency] = *penalties;
        compiled = {repetition, presence, frequency, TokenCounts(window, history)};
    }
    const Chain chain = {temperature, top_k, top_p, min_p_distance, seed, 0};
    return {chain, RowEdits(biases, ends, min_tokens, std::move(compiled)), vocab_size};
}

class BoundSampler {
public:
    explicit BoundSampler(const std::string& kernels) : kernels_(*kernels_or_best(kernels).sampling), sampler_(kernels_) {}

    std::vector<int32_t> choose(Rows logits, const std::vector<CompiledRow*>& rows, std::optional<Rows> maxima,
                                const std::optional<Masks>& masks) {
        const auto n = int32_t(logits.shape(1));
        require(n > 0 && logits.shape(0) == rows.size(), "each row of logits needs to be compiled");
        require(!maxima || (maxima->shape(0) == rows.size() && maxima->shape(1) == size_t(num_maxima(n))),
                "the maxima are not those of the logits");
        require(std::ranges::all_of(rows, [n](const CompiledRow* row) { return !row || row->vocab_size == n; }),
                "a row was compiled for another vocabulary");
        require(!masks || masks->size() == rows.size(), "each row of logits needs a mask or none");
        std::optional<nb::gil_scoped_release> release;
        if (logits.size() >= kLongWork && !maxima && !masks) {
            release.emplace();
        }
        std::vector<int32_t> out;
        for (size_t i = 0; i < rows.size(); ++i) {
            float* found = maxima ? maxima->data() + i * num_maxima(n) : nullptr;
            float* row = logits.data() + i * n;
            const auto* mask = masks && (*masks)[i] ? &*(*masks)[i] : nullptr;
            out.push_back(rows[i] ? choose_one(row, n, *rows[i], found, mask) : -1);
        }
        return out;
    }

    // As `choose`, of rows that tell what their n-th token from now on would be; none of them notes it.
    std::vector<int32_t> guess(Rows logits, const std::vector<CompiledRow*>& rows, const std::vector<uint32_t>& aheads) {
        const auto n = int32_t(logits.shape(1));
        require(n > 0 && logits.shape(0) == rows.size() && rows.size() == aheads.size(),
                "each row of logits needs to be compiled, and a distance");
        std::vector<int32_t> out;
        for (size_t i = 0; i < rows.size(); ++i) {
            require(!rows[i] || rows[i]->vocab_size == n, "a row was compiled for another vocabulary");
            out.push_back(rows[i] ? pick(logits.data() + i * n, n, *rows[i], aheads[i], nullptr) : -1);
        }
        return out;
    }

    void renew(Row row, Array<float, 1> maxima, Array<const int64_t, 1> token_ids) const {
        const auto n = int32_t(row.shape(0));
        require(maxima.shape(0) == size_t(num_maxima(n)), "the maxima are not those of the row");
        const std::span ids(token_ids.data(), token_ids.shape(0));
        check_ids(ids, n);
        for (const int64_t token_id : ids) {
            const auto from = int32_t(token_id) / kMaximaBlock * kMaximaBlock;
            const int32_t count = std::min(kMaximaBlock, n - from);
            kernels_.block_maxima(row.data() + from, count, maxima.data() + from / kMaximaBlock);
        }
    }

    double exp_sum(Row row, float peak) const {
        return kernels_.exp_sum(row.data(), int32_t(row.shape(0)), peak);
    }

    std::vector<int32_t> largest(Row row, int32_t count, std::optional<Row> maxima) {
        const auto n = int32_t(row.shape(0));
        require(count > 0, "no such number of logits");
        require(!maxima || maxima->shape(0) == size_t(num_maxima(n)), "the maxima are not those of the row");
        std::vector<int32_t> out;
        for (const Ranked& ranked : sampler_.largest(row.data(), n, std::min(count, n), maxima ? maxima->data() : nullptr)) {
            out.push_back(ranked.token_id);
        }
        return out;
    }

private:
    int32_t pick(float* row, int32_t n, CompiledRow& compiled, uint32_t ahead, float* maxima, const RowMask* mask = nullptr) {
        if (!compiled.edits.can_edit(row)) {
            return -1;
        }
        EditedRow edited(kernels_, row, n, maxima, edits_);
        compiled.edits.apply(edited);
        Chain chain = compiled.chain;
        chain.index += ahead;
        if (mask == nullptr) {
            return sampler_.choose(row, n, chain, maxima);
        }
        if (const auto* words = std::get_if<Mask>(mask)) {
            return sampler_.choose_allowed(row, n, chain, maxima, {words->data(), words->size()});
        }
        return choose_asking(row, n, chain, maxima, std::get<nb::object>(*mask));
    }

    int32_t choose_asking(const float* row, int32_t n, const Chain& chain, const float* maxima, const nb::object& constraint) {
        const nb::object allows = constraint.attr("allows");
        std::optional<Mask> words;
        const auto mask = [&]() -> std::optional<std::span<const uint32_t>> {
            words = nb::cast<std::optional<Mask>>(constraint.attr("mask")());
            return words ? std::optional(std::span(words->data(), words->size())) : std::nullopt;
        };
        const auto allows_one = [&](int32_t token_id) { return nb::cast<bool>(allows(token_id)); };
        return sampler_.choose_asking(row, n, chain, maxima, {allows_one, mask});
    }

    int32_t choose_one(float* row, int32_t n, CompiledRow& compiled, float* maxima, const RowMask* mask) {
        const int32_t chosen = pick(row, n, compiled, 0, maxima, mask);
        if (chosen >= 0) {
            compiled.edits.push(chosen);
            ++compiled.chain.index;
        }
        return chosen;
    }

    const SamplingKernels& kernels_;
    RowSampler sampler_;
    std::vector<EditedRow::Edit> edits_;
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
        .def("choose", &BoundSampler::choose, nb::arg("logits").noconvert(), nb::arg("rows"),
             nb::arg("maxima").noconvert() = nb::none(), nb::arg("masks").noconvert() = nb::none())
        .def("guess", &BoundSampler::guess, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("aheads"))
        .def("renew", &BoundSampler::renew, nb::arg("row").noconvert(), nb::arg("maxima").noconvert(), nb::arg("token_ids"))
        .def("exp_sum", &BoundSampler::exp_sum, nb::arg("row").noconvert(), nb::arg("peak"))
        .def("largest", &BoundSampler::largest, nb::arg("row").noconvert(), nb::arg("count"),
             nb::arg("maxima").noconvert() = nb::none());
}

}  // namespace stoker
