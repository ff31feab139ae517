// The operands of a product: packed blocks read back into codes and float scales (the one place where a format's bits are
// taken apart), panels of them, what corrects the rows; and where the sums go.
// Included once per instruction set, after its simd_*.hpp.

#include "formats.hpp"
#include "grids.hpp"

#if defined(__clang__)
#define STOKER_UNROLL _Pragma("unroll")
#else
#define STOKER_UNROLL _Pragma("GCC unroll 16")
#endif

namespace stoker::STOKER_ISA {

template <int n> struct Index { static constexpr int value = n; };

template <int n, class Body> inline void unroll(const Body& body) {
    if constexpr (n > 0) {
        unroll<n - 1>(body);
        body(Index<n - 1>{});
    }
}

// An integer |c| < 2^22 added to these bits makes the float 12582912 + c, so that fma(that, d, -12582912 * d) is c * d rounded
// once: a product that starts from these bits need not be converted. (12582912 * d is exact: d has at most 22 bits.)
constexpr int32_t kMagicBits = 0x4B400000;
constexpr float kMagic = 12582912;

// One block of 32 inputs of a tile: w = d * (code - offset) + m, with a scale for each of F.subs() runs of inputs.
template <Format F> struct Block {
    codes w[8];
    f32x16 d[F.subs()];
    f32x16 m[F.subs()];  // only if F.has_min()

    codes code(int g) const { return w[g]; }
    f32x16 scale(int h) const { return d[h]; }
    f32x16 minus_magic(int h) const { return mul(d[h], set1(-kMagic)); }
    f32x16 minimum(int h) const { return m[h]; }
};

#ifndef STOKER_LOOK_UP_ENTRIES  // the instruction set has no better one
// Entries of a grid of `size` in place of their indices.
template <int size> STOKER_FIX void look_up_entries(const uint16_t* grid, i32x16& a, i32x16& b) {
    alignas(64) int32_t lanes[32];
    store_i32(lanes, a);
    store_i32(lanes + 16, b);
    for (int32_t& lane : lanes) lane = grid[lane];
    a = load_i32(lanes);
    b = load_i32(lanes + 16);
}
#endif

template <Grid grid> STOKER_FIX void look_up_grid(i32x16& a, i32x16& b) {
    if constexpr (grid == Grid::iq2_xxs) look_up_entries<256>(kGridIQ2XXS, a, b);
    if constexpr (grid == Grid::iq2_xs) look_up_entries<512>(kGridIQ2XS, a, b);
    if constexpr (grid == Grid::iq2_s) look_up_entries<1024>(kGridIQ2S, a, b);
    if constexpr (grid == Grid::iq3_xxs) look_up_entries<256>(kGridIQ3XXS, a, b);
    if constexpr (grid == Grid::iq3_s) look_up_entries<512>(kGridIQ3S, a, b);
    if constexpr (grid == Grid::iq1) look_up_entries<2048>(kGridIQ1, a, b);
}

// Four fields of `bits` bits, from the lowest on, in a byte each.
template <int bits> STOKER_FIX codes spread_fields(const i32x16& x) {
    constexpr int step = 8 - bits, mask = (1 << bits) - 1;
    const i32x16 low = or_i32(and_i32(x, set1_i32(mask)), and_i32(shl_i32<step>(x), set1_i32(mask << 8)));
    const i32x16 high = or_i32(and_i32(shl_i32<2 * step>(x), set1_i32(mask << 16)),
                               and_i32(shl_i32<3 * step>(x), set1_i32(mask << 24)));
    return as_codes(or_i32(low, high));
}

template <Format F> inline void decode_grid(const uint8_t* p, codes (&w)[8]) {
    constexpr int bits = F.is_of_fours() ? 3 : 2, further = F.further_bits();
    constexpr bool has_signs = F.grid != Grid::iq1;
    unroll<F.entries() / 2>([&](auto pair) {
        constexpr int first = 2 * pair.value;
        i32x16 entry[2], more[2];
        unroll<2>([&](auto k) {
            constexpr int e = first + k.value, at = e * further;
            entry[k.value] = load_u8(p + 16 * e);
            if constexpr (further > 0) {
                const i32x16 bytes = load_u8(p + 16 * (F.entries() + at / 8));
                more[k.value] = and_i32(shr_i32<at % 8>(bytes), set1_i32((1 << further) - 1));
                entry[k.value] = or_i32(entry[k.value], shl_i32<8>(and_i32(more[k.value], set1_i32(has_signs ? 3 : 7))));
            }
        });
        look_up_grid<F.grid>(entry[0], entry[1]);
        unroll<2>([&](auto k) {
            constexpr int e = first + k.value;
            if constexpr (F.is_of_fours()) {
                w[e] = spread_fields<bits>(entry[k.value]);
            } else {
                w[2 * e] = spread_fields<bits>(entry[k.value]);
                w[2 * e + 1] = spread_fields<bits>(shr_i32<8>(entry[k.value]));
            }
            if constexpr (!has_signs) {
                const i32x16 is_less = sub_i32(set1_i32(0), shr_i32<3>(more[k.value]));
                const codes bit = as_codes(and_i32(is_less, set1_i32(0x04040404)));
                w[2 * e] = merge(w[2 * e], bit);
                w[2 * e + 1] = merge(w[2 * e + 1], bit);
            }
        });
    });
    if constexpr (has_signs) {
        const codes signs = load_codes(p + F.signs_at());
        unroll<8>([&](auto g) { w[g.value] = merge(w[g.value], field<g.value - bits, 1 << bits>(signs)); });
    }
}

// One more than the first digit, 3 x / 256, of fractions of 256 in base 3: the upper two bits of 3/4 x + 64, rounded to fit.
STOKER_FIX codes first_digit(const codes& x) { return field<6, 3>(average(x, average(x, minus(codes{}, 3)))); }

// Block `j` of the four at `four`.
inline void decode_ternary(const uint8_t* four, int j, codes (&w)[8]) {
    codes digits = load_codes(four + 64 * j);
    unroll<5>([&](auto g) {
        w[g.value] = first_digit(digits);
        digits = plus(digits, plus(digits, digits));
    });
    unroll<3>([&](auto g) { w[5 + g.value] = pairs_at(load_codes(four + 64 * (4 + g.value)), 2 * j); });
}

// Block `b` of a plane of codes.
template <Format F> inline void decode_codes(const uint8_t* plane, int b, codes (&w)[8]) {
    constexpr Codes kind = F.codes;
    const uint8_t* p = plane + size_t(b) * F.code_bytes();
    if constexpr (kind == Codes::ternary) {
        decode_ternary(p - b % 4 * F.code_bytes(), b % 4, w);
    } else if constexpr (kind == Codes::byte) {
        unroll<8>([&](auto g) { w[g.value] = load_codes(p + 64 * g.value); });
    } else if constexpr (kind == Codes::grid) {
        decode_grid<F>(p, w);
    } else if constexpr (kind == Codes::one) {  // 0 or 2
        const codes bits = load_codes(p);
        unroll<8>([&](auto g) { w[g.value] = field<g.value - 1, 2>(bits); });
    } else if constexpr (kind == Codes::two || kind == Codes::two1) {
        unroll<8>([&](auto g) { w[g.value] = field<g.value % 4 * 2, 3>(load_codes(p + g.value / 4 * 64)); });
    } else {
        unroll<4>([&](auto g) {
            const codes v = load_codes(p + 64 * g.value);
            w[g.value] = field<0, 15>(v);
            w[g.value + 4] = field<4, 15>(v);
        });
    }
    if constexpr (kind == Codes::nibble1 || kind == Codes::two1) {
        constexpr int to = kind == Codes::nibble1 ? 4 : 2;
        const codes bits = load_codes(p + F.code_bytes() - 64);
        unroll<8>([&](auto g) { w[g.value] = merge(w[g.value], field<g.value - to, 1 << to>(bits)); });
    }
    if constexpr (kind == Codes::nibble2) {
        unroll<8>([&](auto g) {
            w[g.value] = merge(w[g.value], field<g.value % 4 * 2 - 4, 0x30>(load_codes(p + 256 + g.value / 4 * 64)));
        });
    }
    if constexpr (F.table != Table::none) {
        unroll<8>([&](auto g) { w[g.value] = look_up(w[g.value], kTables[int(F.table)]); });
    }
}

template <Format F> inline void decode_scales(const uint8_t* plane, int b, Block<F>& out) {
    constexpr int blocks = F.unit_inputs() / 32;
    const uint8_t* unit = plane + size_t(b / blocks) * F.scale_bytes();
    const auto half = [&](int at) {
        const f32x16 d = load_f16(reinterpret_cast<const uint16_t*>(unit + at));
        return F.scale_shift == 0 ? d : mul(d, set1(1.0f / (1 << F.scale_shift)));
    };
    const auto byte = [&](int at) { return to_f32(load_u8(unit + at)); };
    const auto signed_byte = [&](int at) { return to_f32(load_i8(reinterpret_cast<const int8_t*>(unit + at))); };
    const int i = b % blocks;
    if constexpr (F.scales == Scales::half || (F.scales >= Scales::half64 && F.scales <= Scales::half256)) {
        out.d[0] = half(0);
    } else if constexpr (F.scales == Scales::half16) {
        out.d[0] = half(0);
        out.d[1] = half(32);
    } else if constexpr (F.scales == Scales::half_min) {
        out.d[0] = half(0);
        out.m[0] = half(32);
    } else if constexpr (F.scales == Scales::power) {  // the exponent's bits; below 1 a subnormal number
        const i32x16 e = load_u8(unit);
        out.d[0] = as_f32(max_i32(shl_i32<23>(sub_i32(e, set1_i32(1))), shl_i32<21>(add_i32(e, set1_i32(1)))));
    } else if constexpr (F.scales == Scales::super32) {
        out.d[0] = mul(half(0), signed_byte(32 + 16 * i));
    } else if constexpr (F.scales == Scales::super32_min) {
        out.d[0] = mul(half(0), byte(64 + 16 * i));
        out.m[0] = mul(half(32), byte(64 + 128 + 16 * i));
    } else if constexpr (F.scales == Scales::odd32 || F.scales == Scales::odd16) {
        const f32x16 d = half(0);
        const i32x16 pair = load_u8(unit + 32 + (F.scales == Scales::odd32 ? i / 2 : i) * 16);
        const i32x16 both[2] = {and_i32(pair, set1_i32(15)), shr_i32<4>(pair)};
        for (int h = 0; h < F.subs(); ++h) {
            const i32x16 s = both[F.scales == Scales::odd32 ? i % 2 : h];
            out.d[h] = mul(d, to_f32(add_i32(add_i32(s, s), set1_i32(1))));
        }
    } else if constexpr (F.scales == Scales::single || F.scales == Scales::single16) {
        for (int h = 0; h < F.subs(); ++h) {
            out.d[h] = load(reinterpret_cast<const float*>(unit + 64 * h));
        }
    } else if constexpr (F.scales == Scales::super16) {
        const f32x16 d = half(0);
        out.d[0] = mul(d, signed_byte(32 + 32 * i));
        out.d[1] = mul(d, signed_byte(32 + 32 * i + 16));
    } else {
        const f32x16 d = half(0), m = half(32);
        for (int h = 0; h < 2; ++h) {
            const i32x16 pair = load_u8(unit + 64 + 32 * i + 16 * h);
            out.d[h] = mul(d, to_f32(and_i32(pair, set1_i32(15))));
            out.m[h] = mul(m, to_f32(shr_i32<4>(pair)));
        }
    }
}

// A tile as it lies in the packed matrix. Its blocks hold codes as stored (u8), or with the offset taken off (s8).
template <Format F, bool is_unsigned> struct PackedTile {
    const uint8_t* code_plane;
    const uint8_t* scale_plane;

    PackedTile(const Matrix& w, int32_t tile)
        : code_plane(w.data + tile * F.tile_bytes(w.cols)), scale_plane(code_plane + F.codes_plane(w.cols)) {}

    // Both planes are fetched in the order of memory, as if each block had its part of the tile: a plane of scales that has to
    // wait for itself costs 7 to 15 % of the memory's bandwidth.
    void fetch_ahead(int b) const {
        constexpr int near = 2048, far = 16384;  // bytes: the first-level cache alone cannot wait for enough lines
        constexpr int block_bytes = F.code_bytes() + F.scale_bytes() * 32 / F.unit_inputs();
        const uint8_t* p = code_plane + size_t(b) * block_bytes;
        for (int line = 0; line < block_bytes; line += 64) {
            prefetch(p + near + line);
            prefetch_far(p + far + line);
        }
    }

    Block<F> block(int b) const {
        fetch_ahead(b);
        Block<F> out;
        decode_codes<F>(code_plane, b, out.w);
        decode_scales<F>(scale_plane, b, out);
        constexpr bool is_signed = F.codes == Codes::byte;
        if constexpr (F.offset != 0 && is_unsigned == is_signed) {  // 128 on or off is the same
            unroll<8>([&](auto g) { out.w[g.value] = minus(out.w[g.value], F.offset); });
        }
        return out;
    }
};

// A block of a decoded panel: codes [8][64], then scales, scales times -magic, and minima, [F.subs()][16] each.
template <Format F> struct PanelBlock {
    static constexpr int kFloats = 16 * F.subs() * (F.has_min() ? 3 : 2);
    const uint8_t* codes_at;
    const float* floats_at;

    codes code(int g) const { return load_codes(codes_at + 64 * g); }
    f32x16 scale(int h) const { return load(floats_at + 16 * h); }
    f32x16 minus_magic(int h) const { return load(floats_at + 16 * (F.subs() + h)); }
    f32x16 minimum(int h) const { return load(floats_at + 16 * (2 * F.subs() + h)); }
};

// A run of blocks of a tile, decoded.
template <Format F> struct PanelTile {
    uint8_t* codes_at;  // 512 bytes a block
    float* floats_at;   // PanelBlock<F>::kFloats a block

    PanelBlock<F> block(int b) const { return {codes_at + 512 * b, floats_at + PanelBlock<F>::kFloats * b}; }
    PanelTile from(int b) const { return {codes_at + 512 * b, floats_at + PanelBlock<F>::kFloats * b}; }

    // Without `codes` only what is a float.
    template <bool codes> void put(const Block<F>& block) const {
        for (int g = 0; codes && g < 8; ++g) {
            store_codes(codes_at + 64 * g, block.code(g));
        }
        for (int h = 0; h < F.subs(); ++h) {
            store(floats_at + 16 * h, block.scale(h));
            store(floats_at + 16 * (F.subs() + h), block.minus_magic(h));
            if constexpr (F.has_min()) {
                store(floats_at + 16 * (2 * F.subs() + h), block.minimum(h));
            }
        }
    }

    template <bool is_unsigned> STOKER_FLATTEN void fill(const PackedTile<F, is_unsigned>& tile, int b0, int b1) const {
        for (int b = b0; b < b1; ++b) {
            from(b - b0).template put<true>(tile.block(b));
        }
    }
};

// What corrects a row's products: bits to start from (formats with an offset) or float sums (formats with a minimum).
//   plane h, at the row's place as in Activations
struct Corrections {
    const void* plane[2] = {nullptr, nullptr};
};

template <Format F, bool is_unsigned> Corrections correct(const Activations& a, void* scratch) {
    Corrections out;
    if constexpr (F.has_min() || (F.offset != 0 && is_unsigned)) {
        const size_t n = size_t(a.rows) * a.blocks();
        for (int h = 0; h < F.subs(); ++h) {
            auto* floats = static_cast<float*>(scratch) + h * n;
            auto* integers = static_cast<int32_t*>(scratch) + h * n;
            out.plane[h] = floats;
            for (size_t i = 0; i < n; ++i) {
                const int32_t sum = F.subs() == 2 ? a.sum[h][i] : a.sum[0][i] + a.sum[1][i];
                if constexpr (F.has_min()) {
                    floats[i] = a.scale[i] * float(sum);
                } else {
                    integers[i] = kMagicBits - F.offset * sum;
                }
            }
        }
    }
    return out;
}

inline size_t correction_bytes(int32_t rows, int32_t cols) {
    return (2 * sizeof(float) * size_t(rows) * (cols / kBlock) + 63) / 64 * 64;
}

// sums [rows][T][16] to rows [row0, row0 + rows) of y; outputs beyond the matrix's last are dropped.
inline void write_outputs(const float* sums, int tiles, int32_t rows, int32_t row0, int32_t tile, int32_t outputs, float* y,
                          int32_t ldy) {
    for (int32_t r = 0; r < rows; ++r) {
        for (int t = 0; t < tiles; ++t, sums += 16) {
            const int32_t n = (tile + t) * kTile;
            float* to = y + size_t(row0 + r) * ldy + n;
            if (n + kTile <= outputs) {
                store(to, load(sums));
            } else {
                for (int i = 0; n + i < outputs; ++i) {
                    to[i] = sums[i];
                }
            }
        }
    }
}

template <int i = 0, class Body> inline void with_format(int32_t type, const Body& body) {
    if constexpr (i < kNumFormats) {
        type == kFormats[i].type ? body(Index<kernel_of(i)>{}) : with_format<i + 1>(type, body);
    }
}

}  // namespace stoker::STOKER_ISA
