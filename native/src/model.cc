#include "forerun/model.h"

#include <algorithm>
#include <stdexcept>

#include "forerun/require.h"

namespace forerun {

Model::Model(const ModelConfig& c) : config_(c) {
  require_multiple("hidden_size", c.hidden_size);
  require_multiple("intermediate_size", c.intermediate_size);
  require_multiple("head_dim", c.head_dim);
  require_value(c.layers > 0, "layers", c.layers, "at least 1");
  require_value(c.kv_heads > 0 && c.heads > 0 && c.heads % c.kv_heads == 0, "heads", c.heads,
                "a multiple of kv_heads, ", c.kv_heads);
  require_value(c.vocab_size > 0 && c.vocab_size <= c.vocab_rows, "vocab_size", c.vocab_size,
                "1 to vocab_rows, ", c.vocab_rows);

  const auto size = [](int n, int k) { return static_cast<std::size_t>(round_up(n, kLanes)) * k; };
  const std::size_t qkv = size(c.qkv_size(), c.hidden_size), o = size(c.hidden_size, c.q_size());
  const std::size_t gate_up = size(2 * c.intermediate_size, c.hidden_size);
  const std::size_t down = size(c.hidden_size, c.intermediate_size);
  const std::size_t head = size(c.vocab_rows, c.hidden_size);
  const std::size_t embedding = c.tied ? 0 : static_cast<std::size_t>(c.vocab_rows) * c.hidden_size;
  const std::size_t total = (qkv + o + gate_up + down) * c.layers + head + embedding;
  arena_ = HugeBuffer(total * sizeof(std::uint16_t));

  // In the order of their use, so that a step reads the arena from start to end.
  auto* next = arena_.as<std::uint16_t>();
  const auto take = [&next](std::size_t n) {
    auto* p = next;
    next += n;
    return p;
  };
  layers_.resize(c.layers);
  for (LayerWeights& w : layers_) {
    w.qkv = take(qkv);
    w.o = take(o);
    w.gate_up = take(gate_up);
    w.down = take(down);
  }
  head_ = take(head);
  if (!c.tied) embedding_ = take(embedding);

  const std::size_t h = c.hidden_size;
  expected_values_ = static_cast<std::size_t>(c.layers) *
                         (h * c.qkv_size() + h * c.q_size() + 3 * h * c.intermediate_size + 2 * h +
                          (c.qk_norm ? 2 * c.head_dim : 0)) +
                     (c.tied ? 1 : 2) * h * c.vocab_rows + h;
}

void Model::check_layer(const std::string& name, int layer) const {
  require(layer >= 0 && layer < config_.layers, "layer of '", name, "' is ", layer,
          "; it must be 0 to ", config_.layers - 1);
}

MatrixPlace Model::place(const std::string& name, int layer) const {
  const ModelConfig& c = config_;
  if (name == "embedding" && !c.tied) return {embedding_, c.vocab_rows, c.hidden_size, 0, 0};
  if (name == "embedding" || name == "head") return {head_, c.vocab_rows, c.hidden_size};
  check_layer(name, layer);
  const LayerWeights& w = layers_[layer];
  const int k_block = c.q_size() / kLanes, v_block = k_block + c.kv_size() / kLanes;
  if (name == "q") return {w.qkv, c.q_size(), c.hidden_size};
  if (name == "k") return {w.qkv, c.kv_size(), c.hidden_size, k_block};
  if (name == "v") return {w.qkv, c.kv_size(), c.hidden_size, v_block};
  if (name == "o") return {w.o, c.hidden_size, c.q_size()};
  if (name == "gate") return {w.gate_up, c.intermediate_size, c.hidden_size, 0, 2};
  if (name == "up") return {w.gate_up, c.intermediate_size, c.hidden_size, 1, 2};
  if (name == "down") return {w.down, c.hidden_size, c.intermediate_size};
  throw std::invalid_argument("matrix '" + name + "' is unknown");
}

void Model::load_rows(const std::string& name, int layer, int first_row,
                      const std::uint16_t* values, int rows, int columns) {
  const MatrixPlace to = place(name, layer);
  to.check(name, first_row, rows, columns);
  require(!(config_.tied && name == "head"),
          "matrix 'head' is the embedding here; load 'embedding' alone");
  loaded_values_ += static_cast<std::size_t>(rows) * columns;
  to.store(first_row, values, rows);
}

void Model::load_vector(const std::string& name, int layer, const std::uint16_t* values, int size) {
  const ModelConfig& c = config_;
  const auto store = [&](std::vector<float>& to, int total, int offset, int expected) {
    require(size == expected, "vector '", name, "' has ", size, " elements; it must have ",
            expected);
    to.resize(total);
    std::transform(values, values + size, to.begin() + offset, bf16_to_float);
  };
  if (name == "final_norm") {
    store(final_norm_, c.hidden_size, 0, c.hidden_size);
    loaded_values_ += size;
    return;
  }
  check_layer(name, layer);
  LayerWeights& w = layers_[layer];
  const int h = c.hidden_size, q = c.q_size(), kv = c.kv_size();
  if (name == "attention_norm" || name == "mlp_norm") {
    store(name == "mlp_norm" ? w.mlp_norm : w.attention_norm, h, 0, h);
    loaded_values_ += size;
  } else if (c.qk_norm && (name == "q_norm" || name == "k_norm")) {
    store(name == "q_norm" ? w.q_norm : w.k_norm, c.head_dim, 0, c.head_dim);
    loaded_values_ += size;
  } else if (name == "q_bias") {
    store(w.qkv_bias, c.qkv_size(), 0, q);
  } else if (name == "k_bias") {
    store(w.qkv_bias, c.qkv_size(), q, kv);
  } else if (name == "v_bias") {
    store(w.qkv_bias, c.qkv_size(), q + kv, kv);
  } else if (name == "o_bias") {
    store(w.o_bias, h, 0, h);
  } else if (name == "down_bias") {
    store(w.down_bias, h, 0, h);
  } else if (name == "gate_bias" || name == "up_bias") {
    require(size == c.intermediate_size, "vector '", name, "' has ", size,
            " elements; it must have ", c.intermediate_size);
    w.gate_up_bias.resize(2 * static_cast<std::size_t>(c.intermediate_size));
    const int block = name == "up_bias" ? 1 : 0;
    for (int i = 0; i < size; ++i) {
      w.gate_up_bias[static_cast<std::size_t>(i / kLanes * 2 + block) * kLanes + i % kLanes] =
          bf16_to_float(values[i]);
    }
  } else {
    throw std::invalid_argument("vector '" + name + "' is unknown");
  }
}

void Model::check_complete() const {
  require(loaded_values_ == expected_values_, "the model has ", expected_values_, " weights, but ",
          loaded_values_, " were stored; load each matrix and norm once");
}

void Model::embed(int token, float* out) const {
  const int h = config_.hidden_size;
  if (!config_.tied) {
    const std::uint16_t* row = embedding_ + static_cast<std::size_t>(token) * h;
    std::transform(row, row + h, out, bf16_to_float);
    return;
  }
  const std::uint16_t* block = head_ + static_cast<std::size_t>(token / kLanes) * kLanes * h;
  for (int i = 0; i < h; ++i) out[i] = bf16_to_float(block[bf16_block_index(token % kLanes, i)]);
}

}  // namespace forerun
