// Python's view of the kernels: packing for the weights' loader; single products for the tests and the benchmarks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.hpp"
#include "buffer.hpp"
#include "cpu.hpp"
#include "pack.hpp"

namespace stoker {

namespace {

// Changes whenever packed matrices of an earlier version can no longer be read.
constexpr int kLayoutVersion = 4;

void require_shape(int32_t type, int32_t rows, int32_t columns) {
    require(rows > 0 && can_pack(type, columns), "there are no kernels for this tensor type with rows of this length");
}

Matrix matrix_of(int32_t type, int32_t rows, int32_t columns, const Bytes& packed) {
    require_shape(type, rows, columns);
    require(packed.size() >= packed_bytes(type, rows, columns), "the packed buffer is too small");
    require(reinterpret_cast<uintptr_t>(packed.data()) % 64 == 0, "the packed buffer must begin at a multiple of 64 bytes");
    return {type, rows, columns, packed.data()};
}

void bind_packing(nb::module_& module) {
    module.attr("LAYOUT_VERSION") = kLayoutVersion;
    module.def("can_pack", &can_pack, nb::arg("type"), nb::arg("columns"));
    module.def(
        "packed_bytes",
        [](int32_t type, int32_t rows, int32_t columns) {
            require_shape(type, rows, columns);
            return packed_bytes(type, rows, columns);
        },
        nb::arg("type"), nb::arg("rows"), nb::arg("columns"));
    module.def(
        "pack",
        [](int32_t type, nb::handle source, int32_t rows, int32_t columns, nb::handle packed) {
            require_shape(type, rows, columns);
            const Bytes from(source, false), to(packed, true);
            require(from.size() >= size_t(rows) * file_row_bytes(type, columns), "the source buffer is too small");
            require(to.size() >= packed_bytes(type, rows, columns), "the packed buffer is too small");
            nb::gil_scoped_release release;
            pack(type, from.data(), rows, columns, to.data());
        },
        nb::arg("type"), nb::arg("source"), nb::arg("rows"), nb::arg("columns"), nb::arg("packed"));
}

void unpack(int32_t type, nb::handle packed, int32_t rows, int32_t columns, int32_t row, Array<float, 1> out,
            const std::string& kernels) {
    const Bytes from(packed, false);
    const Matrix matrix = matrix_of(type, rows, columns, from);
    require(row >= 0 && row < rows, "no such row");
    require(out.shape(0) == size_t(columns), "the output must have a place for each column");
    kernels_or_best(kernels).unpack_row(matrix, row, out.data());
}

void multiply(int32_t type, nb::handle packed, int32_t rows, int32_t columns, Array<const float, 2> x,
              Array<float, 2> y, int32_t first_tile, int32_t last_tile, const std::string& kernels) {
    const Bytes from(packed, false);
    const Matrix matrix = matrix_of(type, rows, columns, from);
    const Kernels& table = kernels_or_best(kernels);
    const auto num_rows = int32_t(x.shape(0));
    last_tile = last_tile < 0 ? matrix.tiles() : last_tile;
    require(num_rows > 0 && x.shape(1) == size_t(columns), "x must be rows of as many columns as the matrix");
    require(y.shape(0) == x.shape(0) && y.shape(1) == size_t(rows), "y must have a row for each of x, and a column for each of the matrix");
    require(0 <= first_tile && first_tile <= last_tile && last_tile <= matrix.tiles(), "no such tiles");
    nb::gil_scoped_release release;
    const Buffer<uint8_t> memory(Activations::bytes(num_rows, columns));
    const Buffer<uint8_t> scratch(table.matmul_scratch_bytes(type, num_rows, columns));
    Activations a = Activations::place(memory.get(), num_rows, columns);
    a.x = x.data();
    a.ldx = columns;
    if (columns % kBlock == 0) {
        table.quantize(x.data(), columns, 0, num_rows, 0, a.blocks(), a);
    }
    table.matmul(matrix, a, first_tile, last_tile, y.data(), rows, scratch.get());
}

}  // namespace

void bind_kernels(nb::module_& module) {
    bind_packing(module);
    module.def("kernel_names", [] {
        std::vector<std::string> names;
        for (const Kernels* table : available_kernels()) {
            names.emplace_back(table->name);
        }
        return names;
    });
    module.def("best_kernels", [] { return best_kernels().name; });
    module.def("unpack_row", unpack, nb::arg("type"), nb::arg("packed"), nb::arg("rows"), nb::arg("columns"), nb::arg("row"),
               nb::arg("out"), nb::arg("kernels") = "");
    module.def("matmul", multiply, nb::arg("type"), nb::arg("packed"), nb::arg("rows"), nb::arg("columns"), nb::arg("x"),
               nb::arg("y"), nb::arg("first_tile") = 0, nb::arg("last_tile") = -1, nb::arg("kernels") = "");
}

}  // namespace stoker
