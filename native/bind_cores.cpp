// Python's view of the cores that processes share.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "cores.hpp"
#include "nodes.hpp"

namespace stoker {

void bind_cores(nb::module_& module) {
    nb::class_<SharedCores>(module, "SharedCores")
        .def(nb::init<const char*, int32_t>(), nb::arg("path"), nb::arg("num_cores"))
        .def_prop_ro("size", &SharedCores::size)
        .def("acquire", &SharedCores::acquire, nb::call_guard<nb::gil_scoped_release>())
        .def("try_acquire", &SharedCores::try_acquire)
        .def("promise", &SharedCores::promise)
        .def("release", [](SharedCores& self, int32_t seat) {
            require(seat >= 0 && seat < self.size(), "no such seat");
            self.release(seat);
        }, nb::arg("seat"));
    module.def("take_memory_in_turn", take_memory_in_turn, nb::arg("nodes"));
}

}  // namespace stoker
