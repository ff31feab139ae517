// Python's view of the cores that processes share.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings.hpp"
#include "cores.hpp"

namespace stoker {

namespace {

namespace nb = nanobind;

std::optional<int32_t> seat_or_none(int32_t seat) {
    return seat == SharedCores::kNone ? std::nullopt : std::optional(seat);
}

}  // namespace

void bind_cores(nanobind::module_& module) {
    nb::class_<SharedCores>(module, "SharedCores")
        .def("__init__", [](SharedCores* self, const std::string& path,
                            int32_t num_cores) { new (self) SharedCores(path.c_str(), num_cores); },
             nb::arg("path"), nb::arg("num_cores"))
        .def_prop_ro("size", &SharedCores::size)
        .def("acquire", [](SharedCores& self) {
            nb::gil_scoped_release release;
            return seat_or_none(self.acquire());
        })
        .def("try_acquire", [](SharedCores& self) { return seat_or_none(self.try_acquire()); })
        .def("promise", &SharedCores::promise)
        .def("release", [](SharedCores& self, int32_t seat) {
            require(seat >= 0 && seat < self.size(), "no such seat");
            self.release(seat);
        }, nb::arg("seat"));
}

}  // namespace stoker
