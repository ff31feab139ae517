// What the parts of the extension module add to it, and how they take what Python gives them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "spec.hpp"

namespace stoker {

void bind_kernels(nanobind::module_& module);
void bind_cores(nanobind::module_& module);
void bind_batch(nanobind::module_& module);
void bind_decoder(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);

// A Python buffer, held while this lives.
class Bytes {
public:
    Bytes(nanobind::handle object, bool writable) {
        if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
            throw nanobind::python_error();
        }
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

private:
    Py_buffer view_ = {};
};

}  // namespace stoker
