// What the parts of the extension module add to it, and how they take what Python gives them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec.hpp"

namespace stoker {

namespace nb = nanobind;

void bind_kernels(nb::module_& module);
void bind_cores(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_batch(nb::module_& module);
void bind_decoder(nb::module_& module);
void bind_sampling(nb::module_& module);

template <class T, int dims> using Array = nb::ndarray<T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;

// A Python buffer, held while this lives.
class Bytes {
public:
    Bytes(nb::handle object, bool writable) {
        if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
            throw nb::python_error();
        }
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }
    // What begins at `offset`.
    const uint8_t* part(int64_t offset, size_t bytes) const {
        require(offset >= 0 && offset % 64 == 0 && size_t(offset) <= size() && bytes <= size() - size_t(offset),
                "a tensor is outside of the memory");
        return data() + offset;
    }

private:
    Py_buffer view_ = {};
};

using RopeTable = Array<const float, 3>;
using PositionScales = Array<const float, 1>;

// What a spec points into besides the packed memory.
struct Tables {
    std::vector<RopeTable> ropes;
    std::vector<PositionScales> scales;
};

// The spec that is described as backends/native/decoder.py does; offsets are into the packed `memory`, or of some matrices into
// that which is `lent` to a draft head, or nullptr. It points into these and into the `tables` that are added here.
DecoderSpec read_description(const nb::dict& description, const Bytes& memory, const Bytes* lent, Tables& tables);

}  // namespace stoker
