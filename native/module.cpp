// The extension module stoker._native: it computes and decides nothing.
#include "bindings.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

NB_MODULE(_native, module) {
    using namespace stoker;
    nb::set_leak_warnings(false);  // a forked child ends with what its parent had
    module.doc() = "Kernels and the forward pass of the native executor.";
    bind_kernels(module);
    bind_cores(module);
    bind_pool(module);
    bind_batch(module);
    bind_decoder(module);
    bind_sampling(module);
    const auto trim_heap = [] {  // of all native code of this process
#ifdef __GLIBC__
        malloc_trim(0);
#endif
    };
    module.def("trim_heap", trim_heap, nb::call_guard<nb::gil_scoped_release>());
}
