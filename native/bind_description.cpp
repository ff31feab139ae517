// Python's view of what a decoder consists of.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "pack.hpp"

namespace stoker {

namespace {

class Description {
public:
    Description(nb::dict dict, const Bytes& memory, Tables& tables)
        : dict_(std::move(dict)), memory_(memory), tables_(tables) {}

    DecoderSpec spec() const {
        DecoderSpec out = {};
        out.vocab_size = get<int32_t>("vocab_size");
        out.hidden_size = get<int32_t>("hidden_size");
        out.norm_eps = get<float>("norm_eps");
        out.norm = chosen<NormKind>("norm", {"rms", "layer"});
        out.activation = chosen<Activation>("activation", {"silu", "gelu_tanh", "swiglu_clamped"});
        out.attention_scale = get<float>("attention_scale");
        out.attention_softcap = get<float>("attention_softcap");
        out.embedding_scale = get<float>("embedding_scale");
        out.logit_softcap = get<float>("logit_softcap");
        out.embedding = projection("embedding");
        out.head = projection("head");
        out.output_norm = norm("output_norm", out.hidden_size);
        if (!get<nb::object>("query_scales").is_none()) {
            const auto scales = get<PositionScales>("query_scales");
            tables_.scales.push_back(scales);
            out.query_scales = scales.data();
            out.num_query_scales = int32_t(scales.shape(0));
        }
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

    // The names of an enumeration, in its order.
    template <class T> T chosen(const char* key, std::initializer_list<const char*> names) const {
        const auto found = std::ranges::find(names, get<std::string>(key));
        require(found != names.end(), "the description has a name that is not known");
        return T(found - names.begin());
    }

    const float* vector(int64_t offset, int32_t size) const {
        require(size >= 0, "a size is negative");
        const size_t padded = (size_t(size) + 15) / 16 * 16;
        return offset < 0 ? nullptr : reinterpret_cast<const float*>(memory_.part(offset, padded * sizeof(float)));
    }

    const float* norm(const char* key, int32_t size) const { return vector(get<int64_t>(key), size); }

    Projection projection(const char* key) const {
        if (get<nb::object>(key).is_none()) {
            return {};
        }
        const auto [type, rows, cols, offset, bias] = get<std::tuple<int32_t, int32_t, int32_t, int64_t, int64_t>>(key);
        require(rows > 0 && cols > 0 && can_pack(type, cols), "a matrix has a type or size without kernels");
        return {{type, rows, cols, memory_.part(offset, packed_bytes(type, rows, cols))}, vector(bias, rows)};
    }

    Rope rope() const {
        const auto table = get<RopeTable>("table");
        const auto dim = get<int32_t>("dim");
        require(table.shape(1) == 2 && 2 * int64_t(table.shape(2)) == dim && table.shape(0) < (1u << 31),
                "a table of rotations has the wrong shape");
        tables_.ropes.push_back(table);
        return {chosen<int>("pairs", {"adjacent", "halves"}) == 0, dim, int32_t(table.shape(0)), table.data()};
    }

    Layer layer(const DecoderSpec& spec) const {
        const Heads heads = {get<int32_t>("num_heads"), get<int32_t>("num_kv_heads"), get<int32_t>("head_size")};
        const auto head_norms = chosen<HeadNorms>("head_norms", {"before_rope", "after_rope", "whole_row"});
        const bool are_whole = head_norms == HeadNorms::whole_row;
        return {
            .heads = heads,
            .feed_forward_size = get<int32_t>("feed_forward_size"),
            .attention_norm = norm("attention_norm", spec.hidden_size),
            .query = projection("query"),
            .key = projection("key"),
            .value = projection("value"),
            .output = projection("output"),
            .head_norms = head_norms,
            .query_norm = norm("query_norm", are_whole ? heads.query_size() : heads.size),
            .key_norm = norm("key_norm", are_whole ? heads.kv_size() : heads.size),
            .sinks = norm("sinks", heads.num),
            .post_attention_norm = norm("post_attention_norm", spec.hidden_size),
            .feed_forward_norm = norm("feed_forward_norm", spec.hidden_size),
            .gate = projection("gate"),
            .up = projection("up"),
            .down = projection("down"),
            .experts = experts(),
            .post_feed_forward_norm = norm("post_feed_forward_norm", spec.hidden_size),
            .is_parallel = get<bool>("is_parallel"),
            .rope = get<int32_t>("rope"),
            .window = get<int32_t>("window"),
        };
    }

    Experts experts() const {
        const auto described = get<nb::object>("experts");
        return described.is_none() ? Experts{} : of(described).all_experts();
    }

    Experts all_experts() const {
        const auto count = get<int32_t>("count");
        return {
            .count = count,
            .used = get<int32_t>("used"),
            .size = get<int32_t>("size"),
            .num_groups = get<int32_t>("num_groups"),
            .used_groups = get<int32_t>("used_groups"),
            .routing = chosen<Routing>("routing", {"softmax", "sigmoid", "softmax_of_chosen"}),
            .is_normalised = get<bool>("is_normalised"),
            .scale = get<float>("scale"),
            .router = projection("router"),
            .selection_bias = vector(get<int64_t>("selection_bias"), count),
            .gate = projection("gate"),
            .up = projection("up"),
            .down = projection("down"),
            .shared_gate = projection("shared_gate"),
        };
    }

    nb::dict dict_;
    const Bytes& memory_;
    Tables& tables_;
};

}  // namespace

DecoderSpec read_description(const nb::dict& description, const Bytes& memory, Tables& tables) {
    return Description(description, memory, tables).spec();
}

}  // namespace stoker
