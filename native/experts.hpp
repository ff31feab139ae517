// Mixtures of experts: which rows of a batch go to which expert of a layer, and where their results lie.
//
//   choice  [row][rank]      an expert and its weight, each row's own: best first, the lower expert first of equals
//   entry                    all choices, those of an expert behind each other, in the order of their rows:
//                            | expert 3: row 0, row 4 | expert 5: row 0 | expert 9: row 1, ...      a group for each expert
//   unit                     a group x some tiles of the expert's outputs
//
// A row's results are added in the order of its own ranking, so its sum does not depend on the rows that come with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "spec.hpp"

namespace stoker {

class ExpertRows {
public:
    struct Group {
        int32_t expert;
        int32_t first, count;  // entries
        size_t codes;          // where the inputs of `down` lie, in bytes
    };
    struct Unit {
        int32_t group;
        int32_t tile0, tile1;  // of the expert's outputs
    };

    ExpertRows(const DecoderSpec& spec, int32_t max_rows, int32_t max_gate_floats, int32_t num_pieces);

    // From what the router gave for a row, which is overwritten. Rows may be chosen for at the same time.
    void choose(const Experts& experts, const RowKernels& kernels, int32_t row, float* scores);
    // When all rows have chosen.
    void sort(const Layer& layer, int32_t num_rows, int32_t hidden_size);

    const std::vector<Unit>& gate_units() const { return gate_units_; }
    const std::vector<Unit>& down_units() const { return down_units_; }
    const Group& group(const Unit& unit) const { return groups_[unit.group]; }
    int32_t row(int32_t entry) const { return rows_[entry]; }
    int32_t entry(int32_t row, int32_t rank) const { return entries_[row * max_used_ + rank]; }
    float weight(int32_t row, int32_t rank) const { return weights_[row * max_used_ + rank]; }
    float weight(int32_t entry) const { return entry_weights_[entry]; }
    // Bytes for the inputs of `down` of all entries.
    static size_t code_bytes(const Experts& experts, int32_t max_rows);

private:
    void add_units(std::vector<Unit>& units, int32_t group, int32_t tiles, int32_t most) const;

    const int32_t max_used_;
    const int32_t max_gate_floats_;
    const int32_t num_pieces_;  // that a stage should have at least
    std::vector<int32_t> chosen_, entries_;  // by row and rank
    std::vector<float> weights_;             // likewise
    std::vector<int32_t> rows_;              // by entry
    std::vector<float> entry_weights_;       // likewise
    std::vector<int32_t> next_;              // by expert
    std::vector<Group> groups_;
    std::vector<Unit> gate_units_, down_units_;
};

}  // namespace stoker
