// The pool alone, with stages that only note that they were computed: for its tests.
#include <nanobind/stl/vector.h>

#include <memory>
#include <thread>
#include <vector>

#include "bindings.hpp"
#include "pool.hpp"

namespace stoker {

namespace {

// Each piece is to be computed once, when all of the stages before are done. Thread `held` is as slow as can be: what it begins
// ends when all else of the stage is done.
class Marks final : public Program {
public:
    Marks(const std::vector<int32_t>& sizes, int32_t held) : sizes_(sizes), held_(held), num_done_(sizes.size()) {
        for (const int32_t size : sizes) {
            marks_.push_back(std::make_unique<std::atomic<int32_t>[]>(size));
        }
    }
    int32_t num_stages() const override { return int32_t(sizes_.size()); }
    int32_t num_pieces(int32_t stage) const override { return sizes_[stage]; }
    void compute(int32_t stage, int32_t piece, int32_t thread) override {
        while (thread == held_ && num_done_[stage].load(std::memory_order_relaxed) < sizes_[stage] - 1) {
            std::this_thread::yield();
        }
        const bool is_early = stage > 0 && num_done_[stage - 1].load(std::memory_order_relaxed) != sizes_[stage - 1];
        if (is_early || marks_[stage][piece].fetch_add(1, std::memory_order_relaxed) != 0) {
            is_right_ = false;
        }
        num_done_[stage].fetch_add(1, std::memory_order_relaxed);
    }
    bool are_all() const {
        for (size_t stage = 0; stage < sizes_.size(); ++stage) {
            for (int32_t piece = 0; piece < sizes_[stage]; ++piece) {
                if (marks_[stage][piece] != 1) {
                    return false;
                }
            }
        }
        return is_right_;
    }

private:
    const std::vector<int32_t>& sizes_;
    const int32_t held_;
    std::vector<std::unique_ptr<std::atomic<int32_t>[]>> marks_;
    std::vector<std::atomic<int32_t>> num_done_;
    std::atomic<bool> is_right_{true};
};

nb::object run_pool(int32_t num_threads, const std::vector<int32_t>& sizes, int32_t num_runs, int32_t held) {
    require(num_threads > 0 && num_runs >= 0, "a pool has threads");
    Pool::Counts counts;
    {
        nb::gil_scoped_release released;
        Pool pool(num_threads, nullptr, {});
        for (int32_t run = 0; run < num_runs; ++run) {
            Marks marks(sizes, held);
            pool.run(marks);
            require(marks.are_all(), "a piece was not computed once, or too early");
        }
        counts = pool.counts();
    }
    return nb::make_tuple(counts.num_stages, counts.num_shared_writes, counts.num_stolen);
}

}  // namespace

void bind_pool(nb::module_& module) {
    module.def("run_pool", run_pool, nb::arg("num_threads"), nb::arg("sizes"), nb::arg("num_runs"), nb::arg("held") = -1);
}

}  // namespace stoker
