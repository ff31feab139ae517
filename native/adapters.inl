// Changes of low rank. Included once per instruction set, after its simd_*.hpp and math.inl.
//
//   project: 8 ranks x R rows x 16 inputs              8 + R loads, 8 R multiply-adds   lanes meet in one tree at the end
//   expand:  T tiles of 16 outputs x R rows x 1 rank   T + R loads, T R multiply-adds   sums begin at 0: y is rounded once
#include "low_rank.hpp"

namespace stoker::STOKER_ISA {

constexpr int kProjectRows = kSmallRows >= 8 ? 2 : 1;
constexpr int kExpandRows = kSmallRows >= 8 ? 4 : 2;
constexpr int kExpandTiles = kSmallRows >= 8 ? 4 : 2;

inline f32x16 load_element(const float* p) { return load(p); }
inline f32x16 load_element(const uint16_t* p) { return load_f16(p); }

template <int R, class T>
inline void project_block(const T* a, int32_t inputs, const float* const* x, float* const* t, int32_t rank) {
    f32x16 sum[R][kRankBlock];
    STOKER_UNROLL for (int i = 0; i < R; ++i) {
        STOKER_UNROLL for (int r = 0; r < kRankBlock; ++r) {
            sum[i][r] = set1(0);
        }
    }
    for (int32_t k = 0; k < inputs; k += 16) {
        f32x16 v[R];
        STOKER_UNROLL for (int i = 0; i < R; ++i) {
            v[i] = load(x[i] + k);
        }
        STOKER_UNROLL for (int r = 0; r < kRankBlock; ++r) {
            const f32x16 w = load_element(a + size_t(r) * inputs + k);
            STOKER_UNROLL for (int i = 0; i < R; ++i) {
                sum[i][r] = fma(w, v[i], sum[i][r]);
            }
        }
    }
    for (int i = 0; i < R; ++i) {
        for (int r = 0; r < kRankBlock; ++r) {
            t[i][rank + r] = reduce_add(sum[i][r]);
        }
    }
}

template <class T>
STOKER_FLATTEN inline void project_ranks(const T* a, int32_t inputs, int32_t rank0, int32_t rank1, const float* const* x,
                                         float* const* t, int32_t rows) {
    for (int32_t rank = rank0; rank < rank1; rank += kRankBlock) {
        const T* block = a + size_t(rank) * inputs;
        int32_t i = 0;
        for (; i + kProjectRows <= rows; i += kProjectRows) {
            project_block<kProjectRows>(block, inputs, x + i, t + i, rank);
        }
        for (; i < rows; ++i) {
            project_block<1>(block, inputs, x + i, t + i, rank);
        }
    }
}

inline void project(const LowRank& change, int32_t inputs, int32_t rank0, int32_t rank1, const float* const* x,
                    float* const* t, int32_t rows) {
    if (change.is_half) {
        return project_ranks(static_cast<const uint16_t*>(change.a), inputs, rank0, rank1, x, t, rows);
    }
    project_ranks(static_cast<const float*>(change.a), inputs, rank0, rank1, x, t, rows);
}

template <int R, int N, class T>
inline void expand_block(const T* b, int32_t rank, const float* const* t, const float* scale, float* const* y, int32_t at) {
    f32x16 sum[R][N];
    STOKER_UNROLL for (int i = 0; i < R; ++i) {
        STOKER_UNROLL for (int j = 0; j < N; ++j) {
            sum[i][j] = set1(0);
        }
    }
    for (int32_t r = 0; r < rank; ++r) {
        f32x16 w[N];
        STOKER_UNROLL for (int j = 0; j < N; ++j) {
            w[j] = load_element(b + (size_t(j) * rank + r) * kTile);
        }
        STOKER_UNROLL for (int i = 0; i < R; ++i) {
            const f32x16 v = set1(t[i][r]);
            STOKER_UNROLL for (int j = 0; j < N; ++j) {
                sum[i][j] = fma(w[j], v, sum[i][j]);
            }
        }
    }
    STOKER_UNROLL for (int i = 0; i < R; ++i) {
        STOKER_UNROLL for (int j = 0; j < N; ++j) {
            float* to = y[i] + at + j * kTile;
            store(to, fma(set1(scale[i]), sum[i][j], load(to)));
        }
    }
}

// The last tile, of which not all outputs are there.
template <class T>
inline void expand_rest(const T* b, int32_t rank, const float* t, float scale, float* y, int32_t count) {
    alignas(64) float rest[kTile] = {};
    float* to = rest;
    __builtin_memcpy(rest, y, count * sizeof(float));
    expand_block<1, 1>(b, rank, &t, &scale, &to, 0);
    __builtin_memcpy(y, rest, count * sizeof(float));
}

template <class T>
STOKER_FLATTEN inline void expand_tiles(const T* b, int32_t rank, int32_t outputs, int32_t tile0, int32_t tile1,
                                        const float* const* t, const float* scale, float* const* y, int32_t rows) {
    const auto at = [&](int32_t tile) { return b + size_t(tile) * rank * kTile; };
    const int32_t whole = tile1 * kTile <= outputs ? tile1 : outputs / kTile;
    int32_t tile = tile0;
    for (; tile + kExpandTiles <= whole; tile += kExpandTiles) {
        int32_t i = 0;
        for (; i + kExpandRows <= rows; i += kExpandRows) {
            expand_block<kExpandRows, kExpandTiles>(at(tile), rank, t + i, scale + i, y + i, tile * kTile);
        }
        for (; i < rows; ++i) {
            expand_block<1, kExpandTiles>(at(tile), rank, t + i, scale + i, y + i, tile * kTile);
        }
    }
    for (; tile < tile1; ++tile) {
        for (int32_t i = 0; i < rows; ++i) {
            const int32_t left = outputs - tile * kTile;
            expand_rest(at(tile), rank, t[i], scale[i], y[i] + tile * kTile, left < kTile ? left : kTile);
        }
    }
}

inline void expand(const LowRank& change, int32_t outputs, int32_t tile0, int32_t tile1, const float* const* t,
                   const float* scale, float* const* y, int32_t rows) {
    if (change.is_half) {
        const auto* b = static_cast<const uint16_t*>(change.b);
        return expand_tiles(b, change.rank, outputs, tile0, tile1, t, scale, y, rows);
    }
    expand_tiles(static_cast<const float*>(change.b), change.rank, outputs, tile0, tile1, t, scale, y, rows);
}

constexpr AdapterKernels kAdapterKernels = {project, expand};

}  // namespace stoker::STOKER_ISA
