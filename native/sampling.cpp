#include "sampling.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace stoker {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

constexpr auto ranks_before = [](const Ranked& a, const Ranked& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
};

// Of likely tokens, and how many of them for each that is allowed, and one more: where many are forbidden, a mask is quicker. An
// answer takes about a twentieth of the time of a mask.
constexpr int32_t kMostAsked = 16, kAskedForOne = 4;

// How many of the largest logits count; 0: all of them.
int32_t wanted_of(const Chain& chain) { return chain.temperature == 0 ? 1 : chain.top_k; }

uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

// A block of logits: they lie far apart, and the forward pass has left few of them near.
void prefetch(const float* block) {
    for (int32_t i = 0; i < kMaximaBlock; i += 16) {
        __builtin_prefetch(block + i);
    }
}

// Of a mask; fewer or none behind its end, where all tokens are forbidden.
std::span<const uint32_t> words_of_block(std::span<const uint32_t> mask, int32_t block) {
    constexpr size_t kWords = kMaximaBlock / 32;
    const size_t first = std::min(block * kWords, mask.size());
    return mask.subspan(first, std::min(kWords, mask.size() - first));
}

// The number that sampling/draws.py gives for a token: 0 ... 1, without 1.
double uniform(uint64_t seed, uint64_t index) {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
    const uint64_t stream = mix(mix(seed) + kGolden);
    return double(mix(stream + (index + 1) * kGolden) >> 11) * 0x1p-53;
}

}  // namespace

int32_t RowSampler::choose(const float* row, int32_t n, const Chain& chain, const float* maxima) {
    return look(row, n, maxima) ? choose_looked_at(row, n, chain) : -1;
}

// Blocks in which nothing can be chosen are not looked at, since what is allowed in a block is at most its maximum: those with the
// largest maxima say what the smallest logit is that may be wanted, and then all that reach it are looked at.
//
//   maxima    9  2  8  7  1      two wanted, so the 9 and the 8 first
//   allowed   5  .  3  .  .      the second of them is 3: now the 7 may hold a 4, but neither the 2 nor the 1
int32_t RowSampler::choose_allowed(const float* row, int32_t n, const Chain& chain, const float* maxima,
                                   std::span<const uint32_t> mask) {
    if (!look(row, n, maxima)) {
        return -1;
    }
    return choose_masked(row, n, chain, mask);
}

// From a row that is looked at.
int32_t RowSampler::choose_masked(const float* row, int32_t n, const Chain& chain, std::span<const uint32_t> mask) {
    const int32_t count = wanted_of(chain);
    const bool takes_all = count == 0;  // the mass of the whole row
    if (!takes_all && (rank_few(row, n, count, mask) ||
                       (find_likely(row, n, chain, std::max(2 * count, count + kMostAsked)) && rank_likely(count, mask)))) {
        return ranked_.empty() ? -1 : draw_ranked(chain);
    }
    const int32_t wanted = takes_all ? num_blocks_ : std::min(count, num_blocks_);
    allowed_.resize(n);
    allowed_maxima_.assign(num_blocks_, kNever);
    high_.resize(num_blocks_);
    const auto look_at = [&](float bound) {
        const int32_t count = kernels_.reaching(blocks_, num_blocks_, bound, high_.data());
        for (int32_t i = 0; i < count; ++i) {
            const int32_t from = high_[i] * kMaximaBlock, size = std::min(kMaximaBlock, n - from);
            const auto words = words_of_block(mask, high_[i]);
            float& most = allowed_maxima_[high_[i]];
            if (most == kNever && (takes_all || std::ranges::any_of(words, [](uint32_t word) { return word != 0; }))) {
                kernels_.mask(row + from, size, words.data(), int32_t(words.size()), allowed_.data() + from);
                kernels_.block_maxima(allowed_.data() + from, size, &most);
            }
        }
    };
    if (2 * wanted < num_blocks_) {
        look_at(bound_of(2 * wanted));
        sorted_ = allowed_maxima_;
        std::nth_element(sorted_.begin(), sorted_.begin() + (wanted - 1), sorted_.end(), std::greater<>());
        look_at(sorted_[wanted - 1]);
    } else {
        look_at(kNever);
    }
    blocks_ = allowed_maxima_.data();
    return find_tops() ? choose_looked_at(allowed_.data(), n, chain) : -1;
}

int32_t RowSampler::choose_asking(const float* row, int32_t n, const Chain& chain, const float* maxima,
                                  const Allowed& allowed) {
    if (!look(row, n, maxima)) {
        return -1;
    }
    if (find_likely(row, n, chain, std::max(wanted_of(chain), kMostAsked))) {
        if (const auto drawn = drawn_by(chain, allowed.allows)) {
            return *drawn;
        }
    }
    const auto mask = allowed.mask();
    return mask ? choose_masked(row, n, chain, *mask) : choose_looked_at(row, n, chain);
}

// Ranks some tokens, as if all were allowed. False: that is not worth it.
bool RowSampler::find_likely(const float* row, int32_t n, const Chain& chain, int32_t size) {
    const int32_t count = wanted_of(chain);
    likely_.clear();
    if (count == 0 || 2 * count > num_blocks_) {
        return false;
    }
    rank(row, n, size);
    likely_.swap(ranked_);
    return true;
}

// The token that is drawn may be known before it is known which tokens top-p and min-p keep: the kept ones are a beginning of those
// that are allowed, and those that were not asked about weigh at least nothing, and at most as much as the next likely tokens.
//
//   likely    a  b  c  d  e  f      of three wanted: b and d are allowed, and the third weighs at most as much as e
//   asked     .  b  .  d
std::optional<int32_t> RowSampler::drawn_by(const Chain& chain, const std::function<bool(int32_t)>& allows) {
    const auto count = size_t(wanted_of(chain)), most = std::min(size_t(kMostAsked), likely_.size());
    const bool are_others = likely_.size() >= std::max(count, size_t(kMostAsked));  // fewer are all that are possible
    const auto add = [&](size_t first, size_t size) {
        const auto from = likely_.begin() + ptrdiff_t(first);
        ranked_.insert(ranked_.end(), from, from + ptrdiff_t(std::min(size, likely_.size() - first)));
        if (are_others) {
            ranked_.resize(count, likely_.back());
        }
    };
    ranked_.clear();
    add(0, count);
    if (!drawn_from_known(chain, std::min(most, ranked_.size()))) {
        return {};  // nor is it likely to be known if some of these are forbidden
    }
    std::array<Ranked, kMostAsked> allowed;
    size_t num_allowed = 0;
    for (size_t i = 0; i < most && num_allowed < count && i < kAskedForOne * (num_allowed + 1); ++i) {
        if (allows(likely_[i].token_id)) {
            allowed[num_allowed++] = likely_[i];
            ranked_.assign(allowed.begin(), allowed.begin() + ptrdiff_t(num_allowed));
            add(i + 1, count - num_allowed);
            if (const auto drawn = drawn_from_known(chain, num_allowed)) {
                return drawn;
            }
        }
    }
    return {};
}

// The token that is drawn, whatever the tokens are that were not asked about; nothing if it depends on them. So many of the ranked
// tokens are allowed, and the others may be.
std::optional<int32_t> RowSampler::drawn_from_known(const Chain& chain, size_t num_allowed) {
    peak_ = ranked_.front().logit;
    if (chain.temperature == 0 || chain.top_k == 1) {
        return ranked_.front().token_id;
    }
    size_t fewest = num_allowed, largest = ranked_.size();  // of the tokens that are kept
    if (chain.top_p < 1) {
        const double most = accumulate(1), least = cumulative_[num_allowed - 1];
        const auto kept = [&](double total) {
            return size_t(std::ranges::lower_bound(cumulative_, chain.top_p * total) - cumulative_.begin()) + 1;
        };
        fewest = std::min(num_allowed, kept(least));
        largest = kept(most) <= num_allowed ? kept(most) : ranked_.size();  // or more than are known, which may be all
    }
    ranked_.resize(largest);
    drop_unlikely(chain);
    fewest = std::min(fewest, ranked_.size());
    constexpr double kRounding = 1 + 1e-12;
    const double most = accumulate(chain.temperature) * kRounding, least = cumulative_[fewest - 1];
    const double at = uniform(chain.seed, chain.index);
    const auto drawn = [&](double total) { return size_t(std::ranges::upper_bound(cumulative_, at * total) - cumulative_.begin()); };
    const size_t first = drawn(least);  // of those that are kept in any case: the random number is below 1
    return drawn(most) == first ? std::optional(ranked_[first].token_id) : std::nullopt;
}

// Ranks what a mask allows if that is little. False: it is not.
bool RowSampler::rank_few(const float* row, int32_t n, int32_t count, std::span<const uint32_t> mask) {
    constexpr int kFew = 256;
    ranked_.clear();
    int num_allowed = 0;
    for (size_t i = 0; i < mask.size(); ++i) {
        for (uint32_t word = mask[i]; word != 0; word &= word - 1) {
            if (++num_allowed > kFew) {
                return false;
            }
            const int32_t token_id = int32_t(i) * 32 + std::countr_zero(word);
            if (token_id < n && row[token_id] != kNever) {
                ranked_.push_back({row[token_id], token_id});
            }
        }
    }
    keep_largest(count);
    return true;
}

// Ranks what a mask allows if that can be found among the likely tokens. False: it cannot.
bool RowSampler::rank_likely(int32_t count, std::span<const uint32_t> mask) {
    ranked_.clear();
    for (const Ranked& each : likely_) {
        const size_t word = each.token_id / 32;
        if (word < mask.size() && (mask[word] >> each.token_id % 32 & 1) != 0) {
            ranked_.push_back(each);
        }
        if (ranked_.size() == size_t(count)) {
            return true;
        }
    }
    return false;
}

int32_t RowSampler::draw_ranked(const Chain& chain) {
    peak_ = ranked_.front().logit;
    if (chain.temperature == 0 || chain.top_k == 1) {
        return ranked_.front().token_id;
    }
    keep_mass(chain.top_p, accumulate(1));
    return draw(chain);
}

void RowSampler::keep_largest(int32_t count) {
    if (size_t(count) < ranked_.size()) {
        std::nth_element(ranked_.begin(), ranked_.begin() + count, ranked_.end(), ranks_before);
        ranked_.resize(count);
    }
    std::sort(ranked_.begin(), ranked_.end(), ranks_before);
}

int32_t RowSampler::choose_looked_at(const float* row, int32_t n, const Chain& chain) {
    if (chain.temperature == 0 || chain.top_k == 1) {
        return first_largest(row, n);
    }
    if (chain.top_k > 0) {
        rank(row, n, chain.top_k);
        return draw_ranked(chain);
    }
    rank_mass(row, n, chain.top_p);
    return draw(chain);
}

const std::vector<Ranked>& RowSampler::largest(const float* row, int32_t n, int32_t count,
                                               const float* maxima) {
    ranked_.clear();
    if (look(row, n, maxima)) {
        rank(row, n, count);
    }
    return ranked_;
}

// Takes or finds the maxima; false: nothing can be chosen.
bool RowSampler::look(const float* row, int32_t n, const float* maxima) {
    num_blocks_ = num_maxima(n);
    blocks_ = maxima;
    if (maxima == nullptr) {
        found_.resize(num_blocks_);
        kernels_.block_maxima(row, n, found_.data());
        blocks_ = found_.data();
    }
    return find_tops();
}

bool RowSampler::find_tops() {
    tops_.resize(num_maxima(num_blocks_));
    kernels_.block_maxima(blocks_, num_blocks_, tops_.data());
    peak_ = std::ranges::max(tops_);
    return std::isfinite(peak_);
}

int32_t RowSampler::first_largest(const float* row, int32_t n) const {
    const auto top = std::find(tops_.begin(), tops_.end(), peak_) - tops_.begin();
    const auto block = std::find(blocks_ + top * kMaximaBlock, blocks_ + num_blocks_, peak_) - blocks_;
    const float* from = row + block * kMaximaBlock;
    return int32_t(std::find(from, row + n, peak_) - row);
}

// As many blocks as wanted have a maximum that reaches the bound, so at least as many logits do, and few more.
void RowSampler::rank(const float* row, int32_t n, int32_t count) {
    constexpr float kLeast = std::numeric_limits<float>::lowest();  // -inf is never chosen
    const float bound = count <= num_blocks_ ? std::max(bound_of(count), kLeast) : kLeast;
    high_.resize(num_blocks_);
    const int32_t num_high = kernels_.reaching(blocks_, num_blocks_, bound, high_.data());
    for (int32_t i = 0; i < num_high; ++i) {
        prefetch(row + high_[i] * kMaximaBlock);
    }
    ranked_.clear();
    int32_t found[kMaximaBlock];
    for (int32_t i = 0; i < num_high; ++i) {
        const int32_t from = high_[i] * kMaximaBlock;
        const int32_t num_found = kernels_.reaching(row + from, std::min(kMaximaBlock, n - from), bound, found);
        for (int32_t j = 0; j < num_found; ++j) {
            ranked_.push_back({row[from + found[j]], from + found[j]});
        }
    }
    keep_largest(count);
}

// The maxima are folded into a few times as many columns as are wanted: so many columns reach a bound, so at least as many
// maxima do, and few more (`_superset` of sampling/candidates.py does that to a whole row).
float RowSampler::bound_of(int32_t count) {
    const int32_t width = std::min(num_blocks_, 4 * count);
    sorted_.assign(blocks_, blocks_ + width);
    for (int32_t first = width; first < num_blocks_; first += width) {
        const int32_t num_left = std::min(width, num_blocks_ - first);
        for (int32_t i = 0; i < num_left; ++i) {
            const float other = blocks_[first + i];
            sorted_[i] = sorted_[i] < other ? other : sorted_[i];
        }
    }
    std::nth_element(sorted_.begin(), sorted_.begin() + (count - 1), sorted_.end(), std::greater<>());
    return sorted_[count - 1];
}

// What top-p keeps of all logits: ranks more of them until they are enough.
void RowSampler::rank_mass(const float* row, int32_t n, double top_p) {
    const double total = kernels_.exp_sum(row, n, peak_);
    int64_t count = 32;
    do {
        count *= 8;
        rank(row, n, int32_t(std::min<int64_t>(count, n)));
    } while (accumulate(1) < top_p * total && count < n);
    keep_mass(top_p, total);
}

// The weights of what is ranked, added up.
double RowSampler::accumulate(double temperature) {
    const size_t count = ranked_.size();
    cumulative_.resize(count);
    for (size_t i = 0; i < count; ++i) {
        cumulative_[i] = (double(ranked_[i].logit) - double(peak_)) / temperature;
    }
    kernels_.exp_all(cumulative_.data(), int32_t(count));
    double sum = 0;
    for (double& weight : cumulative_) {
        sum += weight;
        weight = sum;
    }
    return sum;
}

void RowSampler::keep_mass(double top_p, double total) {
    if (top_p < 1) {
        const auto last = std::lower_bound(cumulative_.begin(), cumulative_.end(), top_p * total);
        ranked_.resize(std::min(ranked_.size(), size_t(last - cumulative_.begin()) + 1));
    }
}

// Min-p.
void RowSampler::drop_unlikely(const Chain& chain) {
    const double least = double(peak_) - chain.min_p_distance;
    while (!(ranked_.back().logit >= least)) {
        ranked_.pop_back();
    }
}

// Min-p, temperature and the draw, on what is ranked.
int32_t RowSampler::draw(const Chain& chain) {
    drop_unlikely(chain);
    const double target = uniform(chain.seed, chain.index) * accumulate(chain.temperature);
    return ranked_[std::upper_bound(cumulative_.begin(), cumulative_.end(), target) - cumulative_.begin()].token_id;
}

}  // namespace stoker
