// The part of ONNX Runtime's C interface that the operators for it use, as its documentation of the interface states it.
// Places in its table of functions never change: the table only grows.
//
// https://onnxruntime.ai/docs/api/c/struct_ort_api.html, https://onnxruntime.ai/docs/reference/operators/add-custom-op.html
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoker::ort {

struct Status;
struct Value;
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct Domain;
struct Shape;  // OrtTensorTypeAndShapeInfo

using Function = void (*)();

// The table of functions: each is called by its place.
struct Api {
    Function functions[275];

    template <class Result, class... Args> Result call(int place, Args... args) const {
        return reinterpret_cast<Result (*)(Args...)>(functions[place])(args...);
    }
    Status* error(const char* message) const { return call<Status*>(0, int(1), message); }  // never nullptr
    Status* create_domain(const char* name, Domain** out) const { return call<Status*>(26, name, out); }
    Status* add_operator(Domain* domain, const struct Operator* op) const { return call<Status*>(27, domain, op); }
    Status* add_domain(SessionOptions* options, Domain* domain) const { return call<Status*>(28, options, domain); }
    Status* data(const Value* value, void** out) const { return call<Status*>(51, value, out); }
    Status* num_dimensions(const Shape* shape, size_t* out) const { return call<Status*>(61, shape, out); }
    Status* dimensions(const Shape* shape, int64_t* out, size_t n) const { return call<Status*>(62, shape, out, n); }
    Status* shape(const Value* value, Shape** out) const { return call<Status*>(65, value, out); }
    Status* attribute(const KernelInfo* info, const char* name, int64_t* out) const {
        return call<Status*>(86, info, name, out);
    }
    Status* input(const KernelContext* context, size_t index, const Value** out) const {
        return call<Status*>(90, context, index, out);
    }
    Status* output(KernelContext* context, size_t index, const int64_t* dims, size_t n, Value** out) const {
        return call<Status*>(91, context, index, dims, n, out);
    }
    void release(Shape* shape) const { call<void>(99, shape); }
    Status* constant_input(const KernelInfo* info, size_t index, int* is_constant, const Value** out) const {
        return call<Status*>(249, info, index, is_constant, out);
    }
    // fn(arg, i) for i < total, on the session's threads, each with a run of neighbouring i.
    Status* parallel_for(const KernelContext* context, void (*fn)(void*, size_t), size_t total, void* arg) const {
        return call<Status*>(274, context, fn, total, size_t(0), arg);
    }
};

struct ApiBase {
    const Api* (*get)(uint32_t version);  // nullptr: that runtime is older
    const char* (*version)();
};

constexpr uint32_t kApiVersion = 17;       // the first one with parallel_for
constexpr uint32_t kOperatorVersion = 16;  // the first one whose operators return errors
constexpr int kFloat = 1, kUint8 = 2;  // types of elements
constexpr int kRequired = 0, kUsualMemory = 0;

// OrtCustomOp up to kOperatorVersion; what is nullptr is not asked for.
struct Operator {
    uint32_t version = kOperatorVersion;
    void* (*create_old)(const Operator*, const Api*, const KernelInfo*) = nullptr;
    const char* (*name)(const Operator*);
    const char* (*provider)(const Operator*);
    int (*input_type)(const Operator*, size_t);
    size_t (*num_inputs)(const Operator*);
    int (*output_type)(const Operator*, size_t);
    size_t (*num_outputs)(const Operator*);
    void (*compute_old)(void*, KernelContext*) = nullptr;
    void (*destroy)(void*);
    int (*input_need)(const Operator*, size_t);
    int (*output_need)(const Operator*, size_t);
    int (*input_memory)(const Operator*, size_t);
    int (*min_inputs)(const Operator*) = nullptr;  // these four only of inputs and outputs whose number may vary
    int (*inputs_alike)(const Operator*) = nullptr;
    int (*min_outputs)(const Operator*) = nullptr;
    int (*outputs_alike)(const Operator*) = nullptr;
    Status* (*create)(const Operator*, const Api*, const KernelInfo*, void**);
    Status* (*compute)(void*, KernelContext*);
};

}  // namespace stoker::ort
