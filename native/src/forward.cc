#include "forerun/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "forerun/isa.h"
#include "forerun/require.h"

namespace forerun {

Engine::Engine(std::shared_ptr<const Model> model, const ForwardConfig& config, const float* cos,
               const float* sin)
    : model_(std::move(model)),
      config_(config),
      kernels_(*kernels_for(config.isa, config.bf16)),
      cache_({model_->config().layers, model_->config().kv_heads, model_->config().head_dim,
              config.page_size, config.pages, config.bf16}),
      pool_(config.threads, config.cpus, kernels_.thread_begin, kernels_.thread_end),
      shares_(config.threads),
      attention_(
          kernels_, cache_,
          {model_->config().heads, 1.0f / std::sqrt(static_cast<float>(model_->config().head_dim)),
           0.0f, model_->config().window},
          config.threads) {
  require_value(config.max_rows > 0, "max_rows", config.max_rows, "at least 1");
  require_value(config.max_context > 0, "max_context", config.max_context, "at least 1");
  const ModelConfig& m = model_->config();
  const std::size_t rotations = static_cast<std::size_t>(config.max_context) * (m.head_dim / 2);
  cos_.assign(cos, cos + rotations);
  sin_.assign(sin, sin + rotations);
  const std::size_t r = config.max_rows, spare = r + kernels_.spare_rows;
  ld_act_ = std::max(m.hidden_size, m.q_size());
  ld_wide_ = m.intermediate_size;
  x_ = HugeBuffer(r * m.hidden_size * sizeof(float), false);
  qkv_ = HugeBuffer(r * m.qkv_size() * sizeof(float), false);
  normed_ =
      HugeBuffer(static_cast<std::size_t>(config.threads) * m.hidden_size * sizeof(float), false);
  act_ = HugeBuffer(spare * ld_act_ * kernels_.act_bytes, false);
  wide_ = HugeBuffer(spare * ld_wide_ * kernels_.act_bytes, false);
  best_.assign(config.threads, std::vector<float>(r));
  best_id_.assign(config.threads, std::vector<std::int32_t>(r));
}

void Engine::check(const std::vector<NewRows>& batch, const std::vector<int>& taps) const {
  const ModelConfig& m = model_->config();
  long long total = 0;
  for (const NewRows& s : batch) {
    require_value(s.rows >= 1, "rows", s.rows, "at least 1");
    require_value(s.length >= s.rows, "length", s.length, "at least the new rows, ", s.rows);
    require_value(s.length <= config_.max_context, "length", s.length, "at most ",
                  config_.max_context);
    const int pages = (s.length + config_.page_size - 1) / config_.page_size;
    require_value(s.num_pages >= pages, "pages held", s.num_pages, "at least ", pages);
    require_value(s.first_predicted >= 0 && s.first_predicted <= s.rows, "first_predicted",
                  s.first_predicted, "0 to ", s.rows);
    for (int i = 0; i < pages; ++i) {
      require_value(s.pages[i] >= 0 && s.pages[i] < config_.pages, "page", s.pages[i], "0 to ",
                    config_.pages - 1);
    }
    for (int i = 0; i < s.rows; ++i) {
      require_value(s.tokens[i] >= 0 && s.tokens[i] < m.vocab_rows, "token id", s.tokens[i],
                    "0 to ", m.vocab_rows - 1);
      if (s.parents == nullptr) continue;
      const int low = i == 0 ? -1 : 0;
      require_value(s.parents[i] >= low && s.parents[i] < std::max(i, 0), "parent", s.parents[i],
                    "an earlier row, and -1 for row 0 alone");
    }
    total += s.rows;
  }
  require_value(total >= 1 && total <= config_.max_rows, "rows of the batch", total, "1 to ",
                config_.max_rows);
  for (int t : taps) require_value(t >= 0 && t <= m.layers, "hidden tap", t, "0 to ", m.layers);
}

void Engine::plan(const std::vector<NewRows>& batch) {
  sequences_.clear();
  rows_.clear();
  tokens_.clear();
  slots_.clear();
  paths_.clear();
  predicted_.clear();
  std::size_t path_sizes = 0;
  for (const NewRows& s : batch) {
    if (s.parents != nullptr) path_sizes += static_cast<std::size_t>(s.rows) * (s.rows + 1) / 2;
  }
  paths_.reserve(path_sizes);  // rows point into it
  for (const NewRows& s : batch) {
    const int prefix = s.length - s.rows, first = rows();
    bool chain = true;
    for (int i = 0; s.parents != nullptr && i < s.rows; ++i) chain = chain && s.parents[i] == i - 1;
    for (int i = 0; i < s.rows; ++i) {
      AttentionRow row{static_cast<int>(sequences_.size()), prefix + i, nullptr};
      if (!chain) {
        // The path of the parent, then the row itself.
        const auto start = paths_.size();
        if (i > 0) {
          const AttentionRow& parent = rows_[first + s.parents[i]];
          const int depth = parent.position - prefix;
          for (int d = 0; d <= depth; ++d) paths_.push_back(parent.path[d]);
        }
        paths_.push_back(i);
        row.path = paths_.data() + start;
        row.position = prefix + static_cast<int>(paths_.size() - start) - 1;
      }
      if (i >= s.first_predicted) predicted_.push_back(first + i);
      rows_.push_back(row);
      tokens_.push_back(s.tokens[i]);
      slots_.push_back(cache_.slot(s.pages, prefix + i));
    }
    sequences_.push_back({prefix, first, s.rows, s.pages});
  }
  attention_.plan(sequences_, rows_);
}

void Engine::gemm(int thread, const std::uint16_t* w, int n, int k, const void* a, std::size_t lda,
                  int rows, const std::vector<float>& bias, Epilogue epilogue, float* c,
                  void* act) {
  Gemm g{};
  g.a = a;
  g.lda = lda;
  g.rows = rows;
  g.w = w;
  g.k = k;
  g.bias = bias.empty() ? nullptr : bias.data();
  g.epilogue = epilogue;
  g.c = c;
  g.ldc = n;
  g.act = act;
  g.ld_act = ld_wide_;
  g.best = best_[thread].data();
  g.best_id = best_id_[thread].data();
  g.id_limit = model_->config().vocab_size;
  shares_.compute(thread, g, n, kernels_);
}

void Engine::norm(int thread, const std::vector<float>& weight, bool predicted_rows_only) {
  const ModelConfig& m = model_->config();
  float* normed = normed_.as<float>() + static_cast<std::size_t>(thread) * m.hidden_size;
  const int count = predicted_rows_only ? static_cast<int>(predicted_.size()) : rows();
  for (int i = thread; i < count; i += pool_.size()) {
    const std::size_t row = predicted_rows_only ? predicted_[i] : i;
    kernels_.rms_norm(x_.as<float>() + row * m.hidden_size, weight.data(), m.hidden_size,
                      m.rms_norm_eps, normed);
    kernels_.to_act(normed, m.hidden_size,
                    act_.as<unsigned char>() + i * ld_act_ * kernels_.act_bytes);
  }
}

void Engine::rotate_and_store(int thread, int layer) {
  const ModelConfig& m = model_->config();
  const LayerWeights& w = model_->layer(layer);
  const int d = m.head_dim;
  const auto rotate = [&](int head, int row) {
    float* x = qkv_.as<float>() + static_cast<std::size_t>(row) * m.qkv_size() + head * d;
    const bool key = head >= m.heads;
    if (m.qk_norm) kernels_.rms_norm(x, (key ? w.k_norm : w.q_norm).data(), d, m.rms_norm_eps, x);
    const std::size_t rotation = static_cast<std::size_t>(rows_[row].position) * (d / 2);
    kernels_.rope(x, cos_.data() + rotation, sin_.data() + rotation, d);
    if (key) cache_.write(layer, slots_[row], head - m.heads, x, x + m.kv_size());
  };
  // Keys, which are written as well, are shared out for themselves. Head by head: tokens of a unit
  // share cache lines, which two threads had better not write at once.
  const auto share = [&](int first_head, int heads) {
    const int items = rows() * heads, end = items * (thread + 1) / pool_.size();
    for (int item = items * thread / pool_.size(); item < end; ++item)
      rotate(first_head + item / rows(), item % rows());
  };
  share(0, m.heads);
  share(m.heads, m.kv_heads);
}

void Engine::tap(int thread, int index, const float* x, ForwardOut& out) const {
  const std::size_t h = model_->config().hidden_size;
  for (int row = thread; row < rows(); row += config_.threads) {
    std::uint16_t* to = out.hidden.data() + (static_cast<std::size_t>(index) * rows() + row) * h;
    std::transform(x + row * h, x + (row + 1) * h, to, float_to_bf16);
  }
}

void Engine::argmax(int thread) {
  std::fill(best_[thread].begin(), best_[thread].end(), -std::numeric_limits<float>::infinity());
  std::fill(best_id_[thread].begin(), best_id_[thread].end(), 0);
  const ModelConfig& m = model_->config();
  gemm(thread, model_->head(), m.vocab_rows, m.hidden_size, act_.as<void>(), ld_act_,
       static_cast<int>(predicted_.size()), {}, Epilogue::kArgmax, nullptr, nullptr);
}

void Engine::work(int thread, const std::vector<int>& taps, ForwardOut& out) {
  const ModelConfig& m = model_->config();
  auto* x = x_.as<float>();
  for (int row = thread; row < rows(); row += pool_.size()) {
    model_->embed(tokens_[row], x + static_cast<std::size_t>(row) * m.hidden_size);
  }
  for (int layer = 0; layer < m.layers; ++layer) {
    const LayerWeights& w = model_->layer(layer);
    for (std::size_t t = 0; t < taps.size(); ++t) {
      if (taps[t] == layer) tap(thread, static_cast<int>(t), x, out);
    }
    norm(thread, w.attention_norm, false);
    pool_.barrier();
    gemm(thread, w.qkv, m.qkv_size(), m.hidden_size, act_.as<void>(), ld_act_, rows(), w.qkv_bias,
         Epilogue::kStore, qkv_.as<float>(), nullptr);
    pool_.barrier();
    rotate_and_store(thread, layer);
    pool_.barrier();
    attention_.compute(layer, thread, qkv_.as<float>(), m.qkv_size());
    pool_.barrier();
    attention_.merge(thread, act_.as<void>(), ld_act_);
    pool_.barrier();
    gemm(thread, w.o, m.hidden_size, m.q_size(), act_.as<void>(), ld_act_, rows(), w.o_bias,
         Epilogue::kAdd, x, nullptr);
    pool_.barrier();
    norm(thread, w.mlp_norm, false);
    pool_.barrier();
    gemm(thread, w.gate_up, 2 * m.intermediate_size, m.hidden_size, act_.as<void>(), ld_act_,
         rows(), w.gate_up_bias, Epilogue::kSiluMul, nullptr, wide_.as<void>());
    pool_.barrier();
    gemm(thread, w.down, m.hidden_size, m.intermediate_size, wide_.as<void>(), ld_wide_, rows(),
         w.down_bias, Epilogue::kAdd, x, nullptr);
    pool_.barrier();
  }
  for (std::size_t t = 0; t < taps.size(); ++t) {
    if (taps[t] != m.layers) continue;
    float* normed = normed_.as<float>() + static_cast<std::size_t>(thread) * m.hidden_size;
    for (int row = thread; row < rows(); row += pool_.size()) {
      const std::size_t h = m.hidden_size;
      kernels_.rms_norm(x + row * h, model_->final_norm().data(), m.hidden_size, m.rms_norm_eps,
                        normed);
      std::transform(normed, normed + h, out.hidden.data() + (t * rows() + row) * h, float_to_bf16);
    }
  }
  if (predicted_.empty()) return;
  norm(thread, model_->final_norm(), true);
  pool_.barrier();
  argmax(thread);
}

void Engine::forward(const std::vector<NewRows>& batch, const std::vector<int>& taps,
                     ForwardOut& out) {
  check(batch, taps);
  plan(batch);
  out.hidden.resize(taps.size() * rows() * model_->config().hidden_size);
  pool_.run([&](int thread) { work(thread, taps, out); });
  out.predictions.resize(predicted_.size());
  for (std::size_t i = 0; i < predicted_.size(); ++i) {
    int top = 0;
    for (int t = 1; t < pool_.size(); ++t) {
      const bool lower = best_id_[t][i] < best_id_[top][i];
      if (best_[t][i] > best_[top][i] || (best_[t][i] == best_[top][i] && lower)) top = t;
    }
    // Nothing is larger than it where all are NaN.
    const bool numbers = best_[top][i] > -std::numeric_limits<float>::infinity();
    out.predictions[i] = numbers ? best_id_[top][i] : -1;
  }
}

void Engine::compact(const std::int32_t* pages, int num_pages, int prefix, const std::int32_t* rows,
                     int count) {
  require_value(prefix >= 0, "prefix", prefix, "at least 0");
  for (int i = 0; i < count; ++i) {
    require_value(rows[i] >= i && (i == 0 || rows[i] > rows[i - 1]), "accepted row", rows[i],
                  "ascending, and no row twice");
    const int last_page = (prefix + rows[i]) / config_.page_size;
    require_value(last_page < num_pages, "accepted row", rows[i], "within the pages held");
    require_value(pages[last_page] >= 0 && pages[last_page] < config_.pages, "page",
                  pages[last_page], "0 to ", config_.pages - 1);
    if (rows[i] != i)
      cache_.move(cache_.slot(pages, prefix + rows[i]), cache_.slot(pages, prefix + i));
  }
}

}  // namespace forerun
