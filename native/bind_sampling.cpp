// Python's view of sampling: rows of logits with their settings in, token ids out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "cpu.hpp"
#include "sampling.hpp"

namespace stoker {

namespace {

namespace nb = nanobind;

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TokenIds = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Settings =
    std::optional<std::tuple<double, int32_t, double, double, uint64_t, uint64_t, std::optional<TokenIds>>>;
using Maxima = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows shorter than so many logits together are chosen from sooner than another thread gives the interpreter back.
constexpr size_t kLongWork = 1 << 20;

// Of one row; without a chain nothing is chosen.
struct Wish {
    std::optional<Chain> chain;
    const int64_t* banned = nullptr;
    size_t num_banned = 0;
};

void check_ids(const TokenIds& token_ids, int32_t n) {
    const auto is_known = [n](int64_t token_id) { return token_id >= 0 && token_id < n; };
    require(std::all_of(token_ids.data(), token_ids.data() + token_ids.shape(0), is_known), "no such token id");
}

Wish wish_of(const Settings& settings, int32_t n) {
    if (!settings) {
        return {};
    }
    const auto& [temperature, top_k, top_p, min_p_distance, seed, index, banned] = *settings;
    require(std::isfinite(temperature) && temperature >= 0, "a temperature is negative or no number");
    require(top_p >= 0 && min_p_distance >= 0, "top_p or the distance of min_p is negative or no number");
    require(temperature == 0 || (top_k == 0 ? top_p < 1 : top_k > 0 && top_k < n), "top_k is out of range");
    const Chain chain = {temperature, top_k, top_p, min_p_distance, seed, index};
    if (!banned) {
        return {chain};
    }
    check_ids(*banned, n);
    return {chain, banned->data(), banned->shape(0)};
}

class BoundSampler {
public:
    explicit BoundSampler(const std::string& kernels) : kernels_(table_named(kernels)), sampler_(kernels_) {}

    std::vector<int32_t> choose(Rows logits, const std::vector<Settings>& settings, std::optional<Rows> maxima) {
        const auto n = int32_t(logits.shape(1));
        require(n > 0 && logits.shape(0) == settings.size(), "each row of logits needs settings");
        require(!maxima || (maxima->shape(0) == settings.size() && maxima->shape(1) == size_t(num_maxima(n))),
                "the maxima are not those of the logits");
        std::vector<Wish> wishes;
        for (const Settings& one : settings) {
            wishes.push_back(wish_of(one, n));
        }
        float* found = maxima ? maxima->data() : nullptr;
        if (logits.size() < kLongWork || found != nullptr) {
            return choose(logits.data(), n, wishes, found);
        }
        nb::gil_scoped_release release;
        return choose(logits.data(), n, wishes, found);
    }

    void renew(Row row, Maxima maxima, TokenIds token_ids) const {
        const auto n = int32_t(row.shape(0));
        require(maxima.shape(0) == size_t(num_maxima(n)), "the maxima are not those of the row");
        check_ids(token_ids, n);
        renew(row.data(), n, maxima.data(), token_ids.data(), token_ids.shape(0));
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
    static const SamplingKernels& table_named(const std::string& name) {
        const Kernels* table = name.empty() ? &best_kernels() : kernels_named(name);
        require(table != nullptr, "no such kernels on this CPU");
        return *table->sampling;
    }

    std::vector<int32_t> choose(float* logits, int32_t n, const std::vector<Wish>& wishes, float* maxima) {
        std::vector<int32_t> out;
        for (size_t row = 0; row < wishes.size(); ++row) {
            float* found = maxima == nullptr ? nullptr : maxima + row * num_maxima(n);
            out.push_back(wishes[row].chain ? choose_one(logits + row * n, n, wishes[row], found) : -1);
        }
        return out;
    }

    // Banned tokens are impossible meanwhile. A row that holds NaN or +inf there stays as it is: nothing can be chosen.
    int32_t choose_one(float* row, int32_t n, const Wish& wish, float* maxima) {
        if (wish.num_banned == 0) {
            return sampler_.choose(row, n, *wish.chain, maxima);
        }
        before_.clear();
        for (size_t i = 0; i < wish.num_banned; ++i) {
            before_.push_back(row[wish.banned[i]]);
        }
        if (!std::all_of(before_.begin(), before_.end(), [](float logit) { return logit < kImpossible; })) {
            return -1;
        }
        for (size_t i = 0; i < wish.num_banned; ++i) {
            row[wish.banned[i]] = -kImpossible;
        }
        renew(row, n, maxima, wish.banned, wish.num_banned);
        const int32_t chosen = sampler_.choose(row, n, *wish.chain, maxima);
        for (size_t i = 0; i < wish.num_banned; ++i) {
            row[wish.banned[i]] = before_[i];
        }
        renew(row, n, maxima, wish.banned, wish.num_banned);
        return chosen;
    }

    // Takes the maxima, if there are any, of the blocks that the tokens are in again.
    void renew(const float* row, int32_t n, float* maxima, const int64_t* token_ids, size_t count) const {
        for (size_t i = 0; maxima != nullptr && i < count; ++i) {
            const auto from = int32_t(token_ids[i]) / kMaximaBlock * kMaximaBlock;
            kernels_.block_maxima(row + from, std::min(kMaximaBlock, n - from), maxima + from / kMaximaBlock);
        }
    }

    static constexpr float kImpossible = std::numeric_limits<float>::infinity();

    const SamplingKernels& kernels_;
    RowSampler sampler_;
    std::vector<float> before_;
};

}  // namespace

void bind_sampling(nb::module_& module) {
    module.def("num_maxima", &num_maxima, nb::arg("vocab_size"));
    nb::class_<BoundSampler>(module, "RowSampler")
        .def(nb::init<const std::string&>(), nb::arg("kernels") = "")
        .def("choose", nb::overload_cast<Rows, const std::vector<Settings>&, std::optional<Rows>>(&BoundSampler::choose),
             nb::arg("logits").noconvert(), nb::arg("settings"), nb::arg("maxima").noconvert() = nb::none())
        .def("renew", nb::overload_cast<Row, Maxima, TokenIds>(&BoundSampler::renew, nb::const_), nb::arg("row").noconvert(), nb::arg("maxima").noconvert(), nb::arg("token_ids"))
        .def("exp_sum", &BoundSampler::exp_sum, nb::arg("row").noconvert(), nb::arg("peak"))
        .def("largest", &BoundSampler::largest, nb::arg("row").noconvert(), nb::arg("count"));
}

}  // namespace stoker
