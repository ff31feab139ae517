// One token out of a row of logits: what the numpy code of src/stoker/sampling computes, to the bit, for the settings that
// most requests have. Rows are looked at through the maxima of their blocks, so most of a row is read once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels.hpp"

namespace stoker {

// Passes over whole rows, for each instruction set.
struct SamplingKernels {
    // The largest of each block of kMaximaBlock logits, the last block may be shorter; +inf where a block holds +inf or a
    // number that is none.
    void (*block_maxima)(const float* row, int32_t n, float* maxima);
    // Where numbers reach a bound, ascending, and how many do. There is room for all, and none of them is NaN.
    int32_t (*reaching)(const float* row, int32_t n, float bound, int32_t* found);
    // The sum of e^(logit - peak), in the order that sampling/exponential.py describes. Logits are at most `peak`.
    double (*exp_sum)(const float* row, int32_t n, float peak);
    // Each becomes its exponential. None is above 0.
    void (*exp_all)(double* x, int32_t n);
    // The row without the tokens that a mask forbids, which are -inf. The lowest bit of the first word is token 0's; tokens
    // after the last word are forbidden.
    void (*mask)(const float* row, int32_t n, const uint32_t* words, int32_t num_words, float* out);
};

constexpr int32_t kMaximaBlock = 64;

constexpr int32_t num_maxima(int32_t n) { return divided_up(n, kMaximaBlock); }

// How to choose: temperature 0 takes the largest, everything else is then ignored.
struct Chain {
    double temperature;
    int32_t top_k;          // 1 ... n - 1; 0: off, and top_p is below 1
    double top_p;           // 1 or more: off
    double min_p_distance;  // logits so far below the largest one are still kept; infinite: off
    uint64_t seed, index;   // of the random number
};

struct Ranked {
    float logit;
    int32_t token_id;
};

// Which tokens a row may take.
struct Allowed {
    std::function<bool(int32_t)> allows;
    // The same for all tokens, as in SamplingKernels::mask; nothing if all are allowed.
    std::function<std::optional<std::span<const uint32_t>>()> mask;
};

class RowSampler {
public:
    explicit RowSampler(const SamplingKernels& kernels) : kernels_(kernels) {}

    // The token id, or -1 if the row holds NaN or +inf, or nothing but -inf. `maxima` are those of the row's blocks; without
    // them they are found first.
    int32_t choose(const float* row, int32_t n, const Chain& chain, const float* maxima);
    // The same from the tokens that a mask allows (SamplingKernels::mask). Of the row all numbers count, also those of others.
    int32_t choose_allowed(const float* row, int32_t n, const Chain& chain, const float* maxima, std::span<const uint32_t> mask);
    // The same, by asking about a few likely tokens, one at a time and in the order of their logits; for the mask only if these
    // do not decide it.
    int32_t choose_asking(const float* row, int32_t n, const Chain& chain, const float* maxima, const Allowed& allowed);
    // The largest possible logits, descending, of equal ones the lowest ids first; those of -inf are left out.
    const std::vector<Ranked>& largest(const float* row, int32_t n, int32_t count, const float* maxima);

private:
    bool look(const float* row, int32_t n, const float* maxima);
    bool find_tops();
    bool rank_few(const float* row, int32_t n, int32_t count, std::span<const uint32_t> mask);
    bool rank_likely(int32_t count, std::span<const uint32_t> mask);
    int32_t choose_masked(const float* row, int32_t n, const Chain& chain, std::span<const uint32_t> mask);
    bool find_likely(const float* row, int32_t n, const Chain& chain, int32_t size);
    std::optional<int32_t> drawn_by(const Chain& chain, const std::function<bool(int32_t)>& allows);
    std::optional<int32_t> drawn_from_known(const Chain& chain, size_t num_allowed);
    int32_t draw_ranked(const Chain& chain);
    void keep_largest(int32_t count);
    int32_t choose_looked_at(const float* row, int32_t n, const Chain& chain);
    int32_t first_largest(const float* row, int32_t n) const;
    void rank(const float* row, int32_t n, int32_t count);
    float bound_of(int32_t count);
    void rank_mass(const float* row, int32_t n, double top_p);
    double accumulate(double temperature);
    void keep_mass(double top_p, double total);
    void drop_unlikely(const Chain& chain);
    int32_t draw(const Chain& chain);

    const SamplingKernels& kernels_;
    const float* blocks_ = nullptr;  // the maxima of the row that is looked at
    int32_t num_blocks_ = 0;
    std::vector<float> found_, tops_, sorted_;  // tops: the maxima of the maxima
    std::vector<float> allowed_, allowed_maxima_;  // blocks of the row without what a mask forbids
    std::vector<int32_t> high_;                 // the blocks that hold something to be ranked
    float peak_ = 0;
    std::vector<Ranked> ranked_, likely_;  // likely: of the whole row, where ranked are those that are allowed
    std::vector<double> cumulative_;
};

}  // namespace stoker
