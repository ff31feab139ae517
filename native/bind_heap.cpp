// Python's view of the heap that all native code of this process shares.
#include <nanobind/nanobind.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "bindings.hpp"

namespace stoker {

void bind_heap(nanobind::module_& module) {
    module.def("trim_heap", [] {
#ifdef __GLIBC__
        nanobind::gil_scoped_release release;
        malloc_trim(0);
#endif
    });
}

}  // namespace stoker
