// Python's view of what a decoder consists of.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "pack.hpp"

namespace stoker {

namespace {

class Description {
public:
    Description(nb::dict dict, const Bytes& memory, std::vector<RopeTable>& tables)
        : dict_(std::move(dict)), memory_(memory), tables_(tables) {}

    DecoderSpec spec() const {
        DecoderSpec out = {};
        out.vocab_size = get<int32_t>("vocab_size");
        out.hidden_size = get<int32_t>("hidden_size");
        out.num_heads = get<int32_t>("num_heads");
        out.num_kv_heads = get<int32_t>("num_kv_heads");
        out.head_size = get<int32_t>("head_size");
        out.feed_forward_size = get<int32_t>("feed_forward_size");
        out.norm_eps = get<float>("norm_eps");
        out.activation = choice("activation", "silu", "gelu_tanh") ? Activation::silu : Activation::gelu_tanh;
        out.attention_scale = get<float>("attention_scale");
        out.attention_softcap = get<float>("attention_softcap");
        out.embedding_scale = get<float>("embedding_scale");
        out.logit_softcap = get<float>("logit_softcap");
        out.embedding = projection("embedding");
        out.head = projection("head");
        out.output_norm = norm("output_norm", out.hidden_size);
        for (nb::handle rope : get<nb::list>("ropes")) {
            out.ropes.push_back(of(rope).rope());
        }
        for (nb::handle layer : get<nb::list>("layers")) {
            out.layers.push_back(of(layer).layer(out));
        }
        return out;
    }

private:
    Description of(nb::handle dict) const { return {nb::cast<nb::dict>(dict), memory_, tables_}; }

    template <class T> T get(const char* key) const {
        T out{};
        require(dict_.contains(key) && nb::try_cast(dict_[key], out), "the description lacks a key, or something else is there");
        return out;
    }

    // Whether it is the first of these two names.
    bool choice(const char* key, const char* first, const char* second) const {
        const auto name = get<std::string>(key);
        require(name == first || name == second, "no such activation, or no such way to pair elements");
        return name == first;
    }

    const float* vector(int64_t offset, int32_t size) const {
        require(size >= 0, "a size is negative");
        const size_t padded = (size_t(size) + 15) / 16 * 16;
        return offset < 0 ? nullptr : reinterpret_cast<const float*>(memory_.part(offset, padded * sizeof(float)));
    }

    const float* norm(const char* key, int32_t size) const { return vector(get<int64_t>(key), size); }

    Projection projection(const char* key) const {
        const auto [type, rows, cols, offset, bias] = get<std::tuple<int32_t, int32_t, int32_t, int64_t, int64_t>>(key);
        require(rows > 0 && cols > 0 && can_pack(type, cols), "a matrix has a type or size without kernels");
        return {{type, rows, cols, memory_.part(offset, packed_bytes(type, rows, cols))}, vector(bias, rows)};
    }

    Rope rope() const {
        const auto table = get<RopeTable>("table");
        const auto dim = get<int32_t>("dim");
        require(table.shape(1) == 2 && 2 * int64_t(table.shape(2)) == dim && table.shape(0) < (1u << 31),
                "a table of rotations has the wrong shape");
        tables_.push_back(table);
        return {choice("pairs", "adjacent", "halves"), dim, int32_t(table.shape(0)), table.data()};
    }

    Layer layer(const DecoderSpec& spec) const {
        return {
            .attention_norm = norm("attention_norm", spec.hidden_size),
            .query = projection("query"),
            .key = projection("key"),
            .value = projection("value"),
            .output = projection("output"),
            .query_norm = norm("query_norm", spec.head_size),
            .key_norm = norm("key_norm", spec.head_size),
            .post_attention_norm = norm("post_attention_norm", spec.hidden_size),
            .feed_forward_norm = norm("feed_forward_norm", spec.hidden_size),
            .gate = projection("gate"),
            .up = projection("up"),
            .down = projection("down"),
            .post_feed_forward_norm = norm("post_feed_forward_norm", spec.hidden_size),
            .rope = get<int32_t>("rope"),
            .window = get<int32_t>("window"),
        };
    }

    nb::dict dict_;
    const Bytes& memory_;
    std::vector<RopeTable>& tables_;
};

}  // namespace

DecoderSpec read_description(const nb::dict& description, const Bytes& memory, std::vector<RopeTable>& tables) {
    return Description(description, memory, tables).spec();
}

}  // namespace stoker
