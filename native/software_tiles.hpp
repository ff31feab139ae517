// The tile instructions of AMX in plain C++, for tests (tools/sanitize.py): sanitizers do not see what a tile loads and stores,
// and most CPUs have no tiles. Included by kernels_amx.cpp instead of the intrinsics, whose names it takes.
//
//   tile  [rows][row_bytes]   what lies beyond is 0
//   C[m][n] += A[m][4k .. 4k+3] x B[k][4n .. 4n+3]   A signed, B signed (ssd) or unsigned (sud), in 32 bits
//
// What a CPU would refuse, shapes that do not fit, ends the process.
#pragma once

#include <cstdint>
#include <cstring>

namespace stoker::STOKER_ISA::software_tiles {

struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) uint8_t byte[16][64] = {};
};

inline thread_local Tile tiles[8];

inline void require(bool holds) {
    if (!holds) {
        __builtin_trap();
    }
}

inline void configure(const void* config) {
    const auto* bytes = static_cast<const uint8_t*>(config);
    require(bytes[0] == 1 && bytes[1] == 0);  // palette, first row
    for (int i = 0; i < 8; ++i) {
        uint16_t row_bytes;
        std::memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
        require(row_bytes <= 64 && row_bytes % 4 == 0 && bytes[48 + i] <= 16);
        tiles[i] = Tile{bytes[48 + i], row_bytes};
    }
}

// Not inlined: the compiler would ask for the thread's tiles again at each element, which was most of the time of checked builds.
[[gnu::noinline]] inline Tile& configured(int tile) {
    require(tiles[tile].rows > 0 && tiles[tile].row_bytes > 0);
    return tiles[tile];
}

inline void clear(int tile) { std::memset(configured(tile).byte, 0, sizeof(Tile::byte)); }

inline void load(int tile, const void* from, size_t stride) {
    Tile& to = configured(tile);
    std::memset(to.byte, 0, sizeof(to.byte));
    for (int row = 0; row < to.rows; ++row) {
        std::memcpy(to.byte[row], static_cast<const uint8_t*>(from) + row * stride, to.row_bytes);
    }
}

inline void store(int tile, void* to, size_t stride) {
    const Tile& from = configured(tile);
    for (int row = 0; row < from.rows; ++row) {
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, from.byte[row], from.row_bytes);
    }
}

using Sums [[gnu::vector_size(64)]] = uint32_t;  // of a row of C
template <class T> using Bytes [[gnu::vector_size(16)]] = T;

// In vectors, or checked builds take milliseconds for one multiplication.
template <class OfB> void multiply(int to, int left, int right) {
    Tile &c = configured(to), &a = configured(left), &b = configured(right);
    require(a.rows == c.rows && b.row_bytes == c.row_bytes && 4 * b.rows == a.row_bytes);
    require(to != left && to != right && left != right);
    Sums factors[64];  // of each byte in a row of A
    for (int j = 0; j < a.row_bytes; ++j) {
        Bytes<OfB> of_b;
        for (int n = 0; n < 16; ++n) {
            of_b[n] = OfB(b.byte[j / 4][4 * n + j % 4]);
        }
        factors[j] = __builtin_convertvector(of_b, Sums);
    }
    for (int m = 0; m < c.rows; ++m) {
        Sums sums;
        std::memcpy(&sums, c.byte[m], sizeof(sums));
        for (int j = 0; j < a.row_bytes; ++j) {
            sums += uint32_t(int8_t(a.byte[m][j])) * factors[j];
        }
        std::memcpy(c.byte[m], &sums, sizeof(sums));
    }
}

}  // namespace stoker::STOKER_ISA::software_tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig(config) stoker::STOKER_ISA::software_tiles::configure(config)
#define _tile_release() ((void)0)
#define _tile_zero(tile) stoker::STOKER_ISA::software_tiles::clear(tile)
#define _tile_loadd(tile, from, stride) stoker::STOKER_ISA::software_tiles::load(tile, from, stride)
#define _tile_stored(tile, to, stride) stoker::STOKER_ISA::software_tiles::store(tile, to, stride)
#define _tile_dpbssd(c, a, b) stoker::STOKER_ISA::software_tiles::multiply<int8_t>(c, a, b)
#define _tile_dpbsud(c, a, b) stoker::STOKER_ISA::software_tiles::multiply<uint8_t>(c, a, b)
