// What the extension module is to ONNX Runtime, which loads it as a library of operators: `stoker:BlockProduct`, with inputs
// and attributes as `MatMulNBits` has them, but for zero points. Python is not touched.
#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "block_product.hpp"
#include "cpu.hpp"
#include "onnx_abi.hpp"

namespace stoker {

namespace {

constexpr int32_t kMaxRows = 256;  // of one round of products: what it takes stays bounded
constexpr size_t kMaxRank = 8;

using Dims = std::array<int64_t, kMaxRank>;

ort::Status* shape_of(const ort::Api& api, const ort::Value* value, Dims& dims, size_t& rank) {
    ort::Shape* shape = nullptr;
    if (auto* error = api.shape(value, &shape)) return error;
    auto* error = api.num_dimensions(shape, &rank);
    if (error == nullptr && (rank == 0 || rank > kMaxRank)) error = api.error("BlockProduct: no rows, or too many dimensions");
    if (error == nullptr) error = api.dimensions(shape, dims.data(), rank);
    api.release(shape);
    return error;
}

// Takes whole pages of a constant out of this process if they are a file's, which the system gives back when somebody wants
// them: what has been packed need not be in memory twice. (ONNX Runtime maps them so that they could be written, but never
// writes to constants.) Files without a name do not count: a heap of huge pages, or of shared memory, looks like one.
void leave_to_file([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(begin);
    const uintptr_t first = (at + page - 1) / page * page, last = (at + bytes) / page * page;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; first < last && std::getline(maps, line);) {
        uintptr_t from = 0, to = 0;
        unsigned long inode = 0;
        if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &from, &to, &inode) == 3 &&
            from <= first && last <= to) {
            if (inode != 0 && !line.ends_with(" (deleted)")) {
                madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
            }
            return;
        }
    }
#endif
}

// One node of a graph. Runs of a session may overlap, so nothing here changes.
class Node {
public:
    Node(const ort::Api& api, std::unique_ptr<BlockProduct> product) : api_(api), product_(std::move(product)) {}

    // No exception may get into ONNX Runtime.
    ort::Status* compute(ort::KernelContext* context) const {
        try {
            return multiply_all(context);
        } catch (const std::exception& error) {
            return api_.error(error.what());
        }
    }

private:
    struct Work {
        const BlockProduct& product;
        const float* x;
        int32_t rows;
        void* rounded;
        float* y;
        std::atomic<bool> failed = false;  // an exception would end the thread, and the process
    };

    ort::Status* multiply_all(ort::KernelContext* context) const {
        const ort::Value* input = nullptr;
        ort::Value* output = nullptr;
        Dims dims{};
        size_t rank = 0;
        void *x = nullptr, *y = nullptr;
        if (auto* error = api_.input(context, 0, &input)) return error;
        if (auto* error = shape_of(api_, input, dims, rank)) return error;
        int64_t rows = 1;
        for (size_t i = 0; i + 1 < rank; ++i) rows *= dims[i];
        if (dims[rank - 1] != product_->inputs()) {
            return api_.error("BlockProduct: the rows have another length than those of the matrix");
        }
        dims[rank - 1] = product_->outputs();
        if (auto* error = api_.output(context, 0, dims.data(), rank, &output)) return error;
        if (auto* error = api_.data(input, &x)) return error;
        if (auto* error = api_.data(output, &y)) return error;
        for (int64_t row = 0; row < rows; row += kMaxRows) {
            const auto n = int32_t(std::min<int64_t>(kMaxRows, rows - row));
            const auto* from = static_cast<const float*>(x) + row * product_->inputs();
            if (auto* error = multiply(context, from, n, static_cast<float*>(y) + row * product_->outputs())) return error;
        }
        return nullptr;
    }

    ort::Status* multiply(const ort::KernelContext* context, const float* x, int32_t rows, float* y) const {
        thread_local Buffer<uint8_t> memory;
        Work work{*product_, x, rows, memory.at_least(product_->rounded_bytes(rows)), y};
        const auto round = [](void* arg, size_t part) {
            const Work& w = *static_cast<Work*>(arg);
            w.product.round(w.x, w.rows, w.rounded, int32_t(part));
        };
        const auto multiply = [](void* arg, size_t part) {
            Work& w = *static_cast<Work*>(arg);
            try {
                w.product.multiply(w.rounded, w.rows, w.y, int32_t(part));
            } catch (const std::bad_alloc&) {
                w.failed = true;
            }
        };
        if (const auto parts = BlockProduct::rounding_parts(rows); parts == 1) {
            round(&work, 0);
        } else if (auto* error = api_.parallel_for(context, round, size_t(parts), &work)) {
            return error;
        }
        if (auto* error = api_.parallel_for(context, multiply, size_t(product_->parts()), &work)) return error;
        return work.failed ? api_.error("BlockProduct: bad_alloc") : nullptr;
    }

    const ort::Api& api_;
    std::unique_ptr<BlockProduct> product_;
};

ort::Status* create(const ort::Operator*, const ort::Api* api, const ort::KernelInfo* info, void** out) {
    int64_t outputs = 0, inputs = 0, bits = 0, block = 0;
    for (auto [name, value] : {std::pair{"N", &outputs}, {"K", &inputs}, {"bits", &bits}, {"block_size", &block}}) {
        if (auto* error = api->attribute(info, name, value)) return error;
    }
    const auto n = int32_t(outputs), k = int32_t(inputs);
    if (n != outputs || k != inputs || !BlockProduct::can_multiply(n, k, int(bits), int(block))) {
        return api->error("BlockProduct: there are no kernels for such a matrix");
    }
    std::array<void*, 2> data{};
    const std::array<int64_t, 2> sizes{outputs * (inputs * bits / 8), outputs * (inputs / block)};
    for (size_t i = 0; i < data.size(); ++i) {
        int is_constant = 0;
        const ort::Value* value = nullptr;
        Dims dims{};
        size_t rank = 0;
        if (auto* error = api->constant_input(info, i + 1, &is_constant, &value)) return error;
        if (!is_constant) return api->error("BlockProduct: codes and scales must be constants");
        if (auto* error = shape_of(*api, value, dims, rank)) return error;
        if (std::accumulate(dims.begin(), dims.begin() + rank, int64_t(1), std::multiplies{}) != sizes[i]) {
            return api->error("BlockProduct: its constants are no matrix of this size");
        }
        if (auto* error = api->data(value, &data[i])) return error;
    }
    try {
        auto product = std::make_unique<BlockProduct>(n, k, int(bits), int(block), static_cast<const uint8_t*>(data[0]),
                                                      static_cast<const float*>(data[1]));
        leave_to_file(data[0], size_t(sizes[0]));
        *out = new Node(*api, std::move(product));
    } catch (const std::exception& error) {
        return api->error(error.what());
    }
    return nullptr;
}

const ort::Operator kBlockProduct{
    .name = [](const ort::Operator*) { return "BlockProduct"; },
    .provider = [](const ort::Operator*) -> const char* { return nullptr; },  // the CPU
    .input_type = [](const ort::Operator*, size_t i) { return i == 1 ? ort::kUint8 : ort::kFloat; },
    .num_inputs = [](const ort::Operator*) { return size_t(3); },
    .output_type = [](const ort::Operator*, size_t) { return ort::kFloat; },
    .num_outputs = [](const ort::Operator*) { return size_t(1); },
    .destroy = [](void* node) { delete static_cast<Node*>(node); },
    .input_need = [](const ort::Operator*, size_t) { return ort::kRequired; },
    .output_need = [](const ort::Operator*, size_t) { return ort::kRequired; },
    .input_memory = [](const ort::Operator*, size_t) { return ort::kUsualMemory; },
    .create = create,
    .compute = [](void* node, ort::KernelContext* context) { return static_cast<const Node*>(node)->compute(context); },
};

// The one domain of this process; it must outlive all sessions.
ort::Status* domain_of(const ort::Api& api, ort::Domain** out) {
    static std::mutex mutex;
    static ort::Domain* domain = nullptr;
    const std::lock_guard lock(mutex);
    if (domain == nullptr) {
        ort::Domain* made = nullptr;
        if (auto* error = api.create_domain("stoker", &made)) return error;
        if (auto* error = api.add_operator(made, &kBlockProduct)) return error;
        domain = made;
    }
    *out = domain;
    return nullptr;
}

}  // namespace

}  // namespace stoker

// ONNX Runtime's name for it. Nothing is registered where its own kernels are better: on a CPU that we have no others for.
extern "C" __attribute__((visibility("default"))) stoker::ort::Status* RegisterCustomOps(
    stoker::ort::SessionOptions* options, const stoker::ort::ApiBase* base) {
    using namespace stoker;
    const ort::Api* api = base->get(ort::kApiVersion);
    if (api == nullptr) {
        return base->get(1)->error("this ONNX Runtime is too old for operators of Stoker");
    }
    try {
        if (std::string_view(best_kernels().name) == "scalar") {
            return api->error("there are no fast kernels for this CPU");
        }
    } catch (const std::exception& error) {
        return api->error(error.what());
    }
    ort::Domain* domain = nullptr;
    if (auto* error = domain_of(*api, &domain)) return error;
    return api->add_domain(options, domain);
}
