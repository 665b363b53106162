#include "model_file.h"

#include <fstream>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

constexpr char kMagic[] = "forerun model 1\n";
constexpr int kNameBytes = 24;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, std::ios::binary) {}

  template <class T>
  std::vector<T> read(std::size_t count) {
    std::vector<T> values(count);
    const auto bytes = static_cast<std::streamsize>(count * sizeof(T));
    if (!file_.read(reinterpret_cast<char*>(values.data()), bytes))
      throw std::runtime_error(path_ + " ends early, or cannot be read");
    return values;
  }
  int number() { return read<std::int32_t>(1)[0]; }
  std::size_t size() { return static_cast<std::size_t>(number()); }

 private:
  std::string path_;
  std::ifstream file_;
};

ModelConfig read_config(Reader& in) {
  ModelConfig c{};
  for (int* field : {&c.vocab_rows, &c.vocab_size, &c.hidden_size, &c.intermediate_size, &c.layers,
                     &c.heads, &c.kv_heads, &c.head_dim}) {
    *field = in.number();
  }
  c.tied = in.number() != 0;
  c.qk_norm = in.number() != 0;
  c.window = in.number();
  c.rms_norm_eps = in.read<float>(1)[0];
  return c;
}

}  // namespace

ModelFile read_model_file(const std::string& path, bool swap_pairs) {
  Reader in(path);
  const auto magic = in.read<char>(sizeof kMagic - 1);
  if (std::string(magic.begin(), magic.end()) != kMagic)
    throw std::runtime_error(path + " is no model file");
  const ModelConfig config = read_config(in);
  ModelFile file{std::make_shared<Model>(config), {}, {}, in.number(), {}};
  const std::size_t rotations = static_cast<std::size_t>(file.max_context) * (config.head_dim / 2);
  file.cos = in.read<float>(rotations);
  file.sin = in.read<float>(rotations);
  file.prompt = in.read<std::int32_t>(in.size());
  for (int left = in.number(); left > 0; --left) {
    const std::string name = in.read<char>(kNameBytes).data();
    const int layer = in.number(), rows = in.number(), columns = in.number();
    auto values = in.read<std::uint16_t>(static_cast<std::size_t>(rows > 0 ? rows : 1) * columns);
    if (swap_pairs && name == "up" && layer == 0) {
      for (std::size_t i = 0; i + 1 < values.size(); i += 2) std::swap(values[i], values[i + 1]);
    }
    if (rows > 0) {
      file.model->load_rows(name, layer, 0, values.data(), rows, columns);
    } else {
      file.model->load_vector(name, layer, values.data(), columns);
    }
  }
  file.model->check_complete();
  return file;
}

}  // namespace forerun
