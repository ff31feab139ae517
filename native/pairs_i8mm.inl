// Products of a block with two rows at a time, by Arm's 8-bit matrix instruction. Included by matmul.inl where there is one.
//
//   weights  2 outputs x 8 inputs     the same quarter of two groups' codes, interleaved by fours
//   rows     2 rows    x 8 inputs
//   sums     2 outputs x 2 rows       32 products an instruction, 16 with a dot product
//
// For each two rows and a block: 32 of these, and 8 instructions that turn the sums so that lanes are outputs again.

namespace stoker::STOKER_ISA {

struct PairSums { int32x4_t v[8]; };  // [pair of outputs][2 outputs][2 rows]
struct PairCodes { uint8x16_t v[8]; };

inline __attribute__((always_inline)) PairCodes interleave(codes a, codes b) {
    PairCodes out;
    for (int i = 0; i < 4; ++i) {
        const uint32x4_t x = vreinterpretq_u32_u8(a.v[i]), y = vreinterpretq_u32_u8(b.v[i]);
        out.v[2 * i] = vreinterpretq_u8_u32(vzip1q_u32(x, y));
        out.v[2 * i + 1] = vreinterpretq_u8_u32(vzip2q_u32(x, y));
    }
    return out;
}

inline __attribute__((always_inline)) void add_products(PairSums& sums, PairCodes w, const int8_t* first, const int8_t* second) {
    const int8x16_t a = vcombine_s8(vld1_s8(first), vld1_s8(second));
    for (int i = 0; i < 8; ++i) {
        sums.v[i] = vusmmlaq_s32(sums.v[i], w.v[i], a);
    }
}

template <int row> inline __attribute__((always_inline)) f32x16 row_of(const PairSums& sums) {
    f32x16 out;
    for (int i = 0; i < 4; ++i) {
        const int32x4_t x = sums.v[2 * i], y = sums.v[2 * i + 1];
        out.v[i] = vreinterpretq_f32_s32(row == 0 ? vuzp1q_s32(x, y) : vuzp2q_s32(x, y));
    }
    return out;
}

// As dot_rows. The last of an odd number of rows is a pair with itself.
template <Format F, int T, int R, class Rows, class Block>
inline void dot_pairs(const Block (&block)[T], const Rows& rows, size_t at, int h, f32x16 (&out)[R][T]) {
    constexpr int groups = 8 / F.subs(), pairs = (R + 1) / 2;
    const auto second = [](int pair) { return 2 * pair + 1 < R ? 2 * pair + 1 : 2 * pair; };
    PairSums sums[pairs][T];
    STOKER_UNROLL for (int p = 0; p < pairs; ++p) {
        const int32_t start[2] = {F.offset != 0 ? rows.start[h][at + 2 * p] : kMagicBits,
                                  F.offset != 0 ? rows.start[h][at + second(p)] : kMagicBits};
        const int32x4_t both = vcombine_s32(vld1_s32(start), vld1_s32(start));
        for (int t = 0; t < T; ++t) {
            for (int i = 0; i < 8; ++i) {
                sums[p][t].v[i] = both;
            }
        }
    }
    STOKER_UNROLL for (int g = h * groups; g < (h + 1) * groups; g += 2) {
        for (int t = 0; t < T; ++t) {
            const PairCodes w = interleave(block[t].code(g), block[t].code(g + 1));
            STOKER_UNROLL for (int p = 0; p < pairs; ++p) {
                const int8_t* q = rows.q + 4 * g;
                add_products(sums[p][t], w, q + (at + 2 * p) * kBlock, q + (at + second(p)) * kBlock);
            }
        }
    }
    STOKER_UNROLL for (int p = 0; p < pairs; ++p) {
        for (int t = 0; t < T; ++t) {
            out[2 * p][t] = row_of<0>(sums[p][t]);
            out[second(p)][t] = 2 * p + 1 < R ? row_of<1>(sums[p][t]) : row_of<0>(sums[p][t]);
        }
    }
}

}  // namespace stoker::STOKER_ISA
