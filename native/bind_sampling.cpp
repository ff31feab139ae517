// Python's view of sampling: rows of logits with their settings in, token ids out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
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

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Settings = std::optional<std::tuple<double, int32_t, double, double, uint64_t, uint64_t>>;
using Chains = std::vector<std::optional<Chain>>;

// Rows shorter than so many logits together are chosen from sooner than another thread gives the interpreter back.
constexpr size_t kLongWork = 1 << 20;

std::optional<Chain> chain_of(const Settings& settings, int32_t n) {
    if (!settings) {
        return {};
    }
    const auto& [temperature, top_k, top_p, min_p_distance, seed, index] = *settings;
    require(std::isfinite(temperature) && temperature >= 0, "a temperature is negative or no number");
    require(top_p >= 0 && min_p_distance >= 0, "top_p or the distance of min_p is negative or no number");
    require(temperature == 0 || (top_k == 0 ? top_p < 1 : top_k > 0 && top_k < n), "top_k is out of range");
    return Chain{temperature, top_k, top_p, min_p_distance, seed, index};
}

class BoundSampler {
public:
    explicit BoundSampler(const std::string& kernels) : kernels_(table_named(kernels)), sampler_(kernels_) {}

    std::vector<int32_t> choose(Rows logits, const std::vector<Settings>& settings) {
        const auto n = int32_t(logits.shape(1));
        require(n > 0 && logits.shape(0) == settings.size(), "each row of logits needs settings");
        Chains chains;
        for (const Settings& one : settings) {
            chains.push_back(chain_of(one, n));
        }
        if (logits.size() < kLongWork) {
            return choose(logits.data(), n, chains);
        }
        nb::gil_scoped_release release;
        return choose(logits.data(), n, chains);
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

    std::vector<int32_t> choose(const float* logits, int32_t n, const Chains& chains) {
        std::vector<int32_t> out;
        for (const auto& chain : chains) {
            out.push_back(chain ? sampler_.choose(logits, n, *chain) : -1);
            logits += n;
        }
        return out;
    }

    const SamplingKernels& kernels_;
    RowSampler sampler_;
};

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<BoundSampler>(module, "RowSampler")
        .def(nb::init<const std::string&>(), nb::arg("kernels") = "")
        .def("choose", nb::overload_cast<Rows, const std::vector<Settings>&>(&BoundSampler::choose),
             nb::arg("logits").noconvert(), nb::arg("settings"))
        .def("exp_sum", &BoundSampler::exp_sum, nb::arg("row").noconvert(), nb::arg("peak"))
        .def("largest", &BoundSampler::largest, nb::arg("row").noconvert(), nb::arg("count"));
}

}  // namespace stoker
