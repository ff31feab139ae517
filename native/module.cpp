// The extension module stoker._native: it computes and decides nothing.
#include "bindings.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);  // a forked child ends with what its parent had
    module.doc() = "Kernels and the forward pass of the native executor.";
    stoker::bind_kernels(module);
    stoker::bind_cores(module);
    stoker::bind_batch(module);
    stoker::bind_decoder(module);
    stoker::bind_sampling(module);
    module.def("trim_heap", [] {  // of all native code of this process
#ifdef __GLIBC__
        nanobind::gil_scoped_release release;
        malloc_trim(0);
#endif
    });
}
