// The tensor types of GGUF that the kernels take, and how each lies packed in memory.
//
// A packed matrix is a run of tiles of 16 outputs. A tile is two planes, first the codes of all its blocks of 32 inputs,
// then the scales of all its units (a unit is what has a scale of its own in the file: 32 or 256 inputs), padded to 64 bytes:
//
//   tile   | codes: block 0 | block 1 | ... | scales: unit 0 | unit 1 | ... | pad |
//
// A block is eight groups of 4 inputs; group g of all 16 outputs is one vector of 64 bytes, [output][4 inputs], which is
// what an int8 dot product instruction and a row of an AMX operand take. Codes of fewer bits share bytes:
//
//   nibble    4 vectors: low half of vector g is group g, high half is group g + 4
//   +1 bit    1 vector : bit g is the fifth (third) bit of group g
//   +2 bits   2 vectors: bits 2i, 2i+1 of vector j are the upper bits of group 4 j + i
//   two       2 vectors: likewise, the whole code; with a third bit for formats that have one
//   byte      8 vectors, signed: the format's offset is what makes them unsigned
//
// Ternary codes of four blocks lie together, five groups of each block in a byte in base 3, the others in pairs of bits:
//
//   ternary   groups 0..4 of block 0 | of 1 | of 2 | of 3 | group 5 of blocks 0..3 | group 6 | group 7
//
// A byte in base 3 is a fraction of 256, group 0 its first digit; bits 2j, 2j+1 of the last three vectors are block j's. Codes are
// 1, 2 and 3, digits one less.
//
// Inputs that are entries of a grid (grids.hpp) stay so, since that is what makes their files small. An entry is eight inputs, or
// four for the grids of IQ3. A vector of 16 bytes has the low eight bits of an entry of every output:
//
//   grid      | entry 0 | entry 1 | ... | further bits | signs |
//
// Further bits of all entries of an output lie side by side in a byte, or in two; those of IQ1 are four an entry, the last of which
// says that its inputs are an eighth less, and take the place of signs. Signs are a vector of 64 bytes: bit g is that of group g.
//
// F32, F16 and BF16 are [input][16 outputs] of their element.
//
// Three types are not GGUF's: blocks of codes with scales that are floats, as other files have them. A row of their "file" is
// made by who packs it: the scales of a block, then its codes as those of Q4_0 or Q8_0.
#pragma once

#include <cstddef>
#include <cstdint>

// What kernels compiled for one CPU share with other files must not become a function: one of them all would be linked.
#define STOKER_INLINED [[gnu::always_inline]]

namespace stoker {

enum class Codes : uint8_t { nibble, nibble1, nibble2, one, two, two1, byte, ternary, grid, f32, f16, bf16 };

// The scales of a unit, each an array over the 16 outputs; d: half float, s: one byte.
enum class Scales : uint8_t {
    none,
    half,         // d                       w = d * code
    half_min,     // d, m                    w = d * code + m
    power,        // e (a byte)              w = 2^(e - 128) * code
    half64,       // d                       w = d * code                         (d of 64 inputs)
    half128,      // d                       w = d * code                         (d of 128 inputs)
    half256,      // d                       w = d * code                         (d of 256 inputs)
    super32,      // d, s[8]                 w = d * s * code                     (s signed)
    super32_min,  // d, -m, s[8], n[8]       w = d * s * code + (-m) * n
    super16,      // d, s[16]                w = d * s * code                     (s signed)
    super16_min,  // d, -m, (s | n << 4)[16] w = d * s * code + (-m) * n
    odd32,        // d, (s | t << 4)[4]      w = d * (2 s + 1) * code             (t of the next 32)
    odd16,        // d, (s | t << 4)[8]      w = d * (2 s + 1) * code             (t of the next 16)
    single,       // f                       w = f * code                         (f a float of 22 bits)
    single16,     // f[2]                    w = f * code
    half16,       // d[2]                    w = d * code
};

constexpr int32_t kNibbles = 1 << 16, kBytes = kNibbles + 1, kBytes16 = kNibbles + 2;  // types that are not GGUF's

enum class Table : uint8_t { none, iq4, mxfp4, iq2, iq3_xxs, iq3_s, iq1 };
enum class Grid : uint8_t { none, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq1 };

struct Format {
    int32_t type;      // GGUF's number
    int file_inputs;   // inputs of a block in the file
    int file_bytes;    // its bytes
    Codes codes;
    Scales scales;
    int offset;        // what is subtracted from a stored code
    int max_code;      // the largest stored code (after the table)
    Table table = Table::none;
    int scale_shift = 0;  // scales are divided by 2^scale_shift
    Grid grid = Grid::none;

    STOKER_INLINED constexpr bool is_of_fours() const { return grid == Grid::iq3_xxs || grid == Grid::iq3_s; }
    STOKER_INLINED constexpr int entries() const { return is_of_fours() ? 8 : 4; }  // of a block of an output
    STOKER_INLINED constexpr int further_bits() const {                           // of an entry
        switch (grid) {
            case Grid::iq2_xs: case Grid::iq2_s: return 2;
            case Grid::iq3_s: return 1;
            case Grid::iq1: return 4;
            default: return 0;
        }
    }
    STOKER_INLINED constexpr int signs_at() const { return 16 * entries() + 2 * entries() * further_bits(); }
    STOKER_INLINED constexpr bool is_float() const { return scales == Scales::none; }
    STOKER_INLINED constexpr bool has_min() const {
        return scales == Scales::half_min || scales == Scales::super32_min || scales == Scales::super16_min;
    }
    // Scales of a block of 32 inputs: one, or one for each half.
    STOKER_INLINED constexpr int subs() const {
        return scales == Scales::super16 || scales == Scales::super16_min || scales == Scales::odd16 || scales == Scales::single16 ||
                       scales == Scales::half16
                   ? 2
                   : 1;
    }
    STOKER_INLINED constexpr int unit_inputs() const {
        return scales == Scales::half64                                    ? 64
             : scales == Scales::half128                                   ? 128
             : scales >= Scales::half256 && scales <= Scales::odd16 ? 256
                                                                           : 32;
    }
    STOKER_INLINED constexpr int code_bytes() const {  // of a block of a tile; of an input for the float types
        switch (codes) {
            case Codes::nibble: return 256;
            case Codes::nibble1: return 320;
            case Codes::nibble2: return 384;
            case Codes::one: return 64;
            case Codes::two: return 128;
            case Codes::two1: return 192;
            case Codes::byte: return 512;
            case Codes::ternary: return 112;  // a quarter of four blocks
            case Codes::grid: return signs_at() + (grid == Grid::iq1 ? 0 : 64);
            case Codes::f32: return 64;
            default: return 32;
        }
    }
    STOKER_INLINED constexpr int scale_bytes() const {  // of a unit of a tile
        switch (scales) {
            case Scales::none: return 0;
            case Scales::half: case Scales::half64: case Scales::half128: case Scales::half256: return 32;
            case Scales::half_min: case Scales::half16: return 64;
            case Scales::power: return 16;
            case Scales::super32: return 32 + 128;
            case Scales::super32_min: return 64 + 256;
            case Scales::super16: return 32 + 256;
            case Scales::odd32: return 32 + 64;
            case Scales::odd16: return 32 + 128;
            case Scales::single: return 64;
            case Scales::single16: return 128;
            default: return 64 + 256;
        }
    }
    STOKER_INLINED constexpr size_t codes_plane(int32_t cols) const {
        return size_t(is_float() ? cols : cols / 32) * code_bytes();
    }
    STOKER_INLINED constexpr size_t tile_bytes(int32_t cols) const {
        return (codes_plane(cols) + size_t(cols / unit_inputs()) * scale_bytes() + 63) / 64 * 64;
    }
};

// NOLINTBEGIN: one row a type
inline constexpr Format kFormats[] = {
    {0, 1, 4, Codes::f32, Scales::none, 0, 0},                                  // F32
    {1, 1, 2, Codes::f16, Scales::none, 0, 0},                                  // F16
    {2, 32, 18, Codes::nibble, Scales::half, 8, 15},                            // Q4_0
    {3, 32, 20, Codes::nibble, Scales::half_min, 0, 15},                        // Q4_1
    {6, 32, 22, Codes::nibble1, Scales::half, 16, 31},                          // Q5_0
    {7, 32, 24, Codes::nibble1, Scales::half_min, 0, 31},                       // Q5_1
    {8, 32, 34, Codes::byte, Scales::half, 128, 255},                           // Q8_0
    {10, 256, 84, Codes::two, Scales::super16_min, 0, 3},                       // Q2_K
    {11, 256, 110, Codes::two1, Scales::super16, 4, 7},                         // Q3_K
    {12, 256, 144, Codes::nibble, Scales::super32_min, 0, 15},                  // Q4_K
    {13, 256, 176, Codes::nibble1, Scales::super32_min, 0, 31},                 // Q5_K
    {14, 256, 210, Codes::nibble2, Scales::super16, 32, 63},                    // Q6_K
    {16, 256, 66, Codes::grid, Scales::odd32, 43, 86, Table::iq2, 3, Grid::iq2_xxs},      // IQ2_XXS
    {17, 256, 74, Codes::grid, Scales::odd16, 43, 86, Table::iq2, 3, Grid::iq2_xs},       // IQ2_XS
    {18, 256, 98, Codes::grid, Scales::odd32, 62, 124, Table::iq3_xxs, 2, Grid::iq3_xxs}, // IQ3_XXS
    {19, 256, 50, Codes::grid, Scales::odd32, 9, 18, Table::iq1, 3, Grid::iq1},           // IQ1_S
    {20, 32, 18, Codes::nibble, Scales::half, 128, 241, Table::iq4},            // IQ4_NL
    {21, 256, 110, Codes::grid, Scales::odd32, 15, 30, Table::iq3_s, 0, Grid::iq3_s},     // IQ3_S
    {22, 256, 82, Codes::grid, Scales::odd16, 43, 86, Table::iq2, 3, Grid::iq2_s},        // IQ2_S
    {23, 256, 136, Codes::nibble, Scales::super32, 128, 241, Table::iq4},       // IQ4_XS
    {29, 256, 56, Codes::grid, Scales::odd16, 9, 18, Table::iq1, 3, Grid::iq1},           // IQ1_M
    {30, 1, 2, Codes::bf16, Scales::none, 0, 0},                                // BF16
    {34, 256, 54, Codes::ternary, Scales::half256, 2, 3},                       // TQ1_0
    {35, 256, 66, Codes::two, Scales::half256, 1, 3},                           // TQ2_0
    {39, 32, 17, Codes::nibble, Scales::power, 12, 24, Table::mxfp4},           // MXFP4
    {40, 64, 36, Codes::nibble, Scales::half16, 12, 24, Table::mxfp4},          // NVFP4
    {41, 128, 18, Codes::one, Scales::half128, 1, 2},                           // Q1_0
    {42, 64, 18, Codes::two, Scales::half64, 1, 3},                             // Q2_0
    {kNibbles, 32, 20, Codes::nibble, Scales::single, 8, 15},
    {kBytes, 32, 36, Codes::byte, Scales::single, 128, 255},
    {kBytes16, 32, 40, Codes::byte, Scales::single16, 128, 255},
};
// NOLINTEND
inline constexpr int kNumFormats = sizeof(kFormats) / sizeof(kFormats[0]);

constexpr const Format* find_format(int32_t type) {
    for (const Format& format : kFormats) {
        if (format.type == type) {
            return &format;
        }
    }
    return nullptr;
}

// Formats with the same packed form share their kernels: those of the first.
constexpr int kernel_of(int i) {
    for (int first = 0; first < i; ++first) {
        const Format &a = kFormats[first], &b = kFormats[i];
        if (a.codes == b.codes && a.scales == b.scales && a.offset == b.offset && a.max_code == b.max_code && a.table == b.table &&
            a.scale_shift == b.scale_shift && a.grid == b.grid) {
            return first;
        }
    }
    return i;
}

// The values of the codes of formats with a table, plus the format's offset. Those that no file has are 0.
inline constexpr uint8_t kTables[7][16] = {
    {},
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0},
    {51, 68, 86, 0, 35, 18, 0},                                            // 8, 25, 43, and these with a minus
    {66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0},    // 4, 12, 20, 28, 36, 44, 52, 62, likewise
    {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0},           // 1, 3, ... 15, likewise
    {2, 10, 18, 0, 0, 8, 16},                                              // eight times -1, 0, 1, and one more, then less
};

}  // namespace stoker
