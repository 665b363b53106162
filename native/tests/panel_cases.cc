// The two products of attention: panels of blocks, and values key by key.
#include <algorithm>

#include "cases.h"
#include "forerun/packed.h"

namespace forerun {
namespace {

constexpr int kMaxRows = 70, kMaxBlocks = 7;

// A block in the precision of the KV cache. The half pair behind an odd depth is NaN.
struct Block {
  Block(bool bf16, int k, Random& random) : bytes(kLanes * 2 * sizeof(float) * (k + 1), 0xff) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < k; ++i) {
        const float x = round_to_bf16(random.next());
        const std::uint16_t half = float_to_bf16(x);
        if (bf16) {
          std::memcpy(&bytes[2 * bf16_block_index(lane, i)], &half, sizeof half);
        } else {
          std::memcpy(&bytes[4 * f32_block_index(lane, i)], &x, sizeof x);
        }
      }
    }
  }
  std::vector<unsigned char> bytes;
};

void panel_case(const Level& level, int k, int blocks, Report& report) {
  Random random(static_cast<std::uint32_t>(k * 16 + blocks));
  std::vector<Block> made;
  std::vector<const void*> pointers;
  for (int n = 0; n < blocks; ++n) made.emplace_back(level.bf16, k, random);
  // Backwards: blocks need not lie in order.
  for (int n = blocks - 1; n >= 0; --n) pointers.push_back(made[n].bytes.data());
  const std::size_t lda = k + 3, ldc = blocks * kLanes + 5;
  std::vector<float> a = random.floats(kMaxRows * lda);
  if (level.bf16) std::transform(a.begin(), a.end(), a.begin(), round_to_bf16);
  const std::vector<float> start = random.floats((kMaxRows + 1) * ldc);
  const auto run = [&](const Kernels& kernels, int first, int rows) {
    std::vector<float> c(start.begin() + first * ldc, start.begin() + (first + rows + 1) * ldc);
    kernels.panel({a.data() + first * lda, lda, rows, pointers.data(), blocks, k, c.data(), ldc});
    return c;
  };
  const std::string what =
      level.name + " panel k=" + std::to_string(k) + " blocks=" + std::to_string(blocks);
  std::vector<float> alone;
  for (int row = 0; row < kMaxRows; ++row) {
    const std::vector<float> mine = run(level.kernels, row, 1), scalar = run(level.scalar, row, 1);
    report.check(close(mine.data(), scalar.data(), mine.size(), 1e-5f),
                 what + " row=" + std::to_string(row) + ": differs from scalar");
    alone.insert(alone.end(), mine.begin(), mine.begin() + ldc);
  }
  for (const int rows : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 33, 64, 70}) {
    const int first = kMaxRows - rows;
    const std::vector<float> c = run(level.kernels, first, rows);
    const bool same =
        same_bits(c.data(), alone.data() + first * ldc, rows * ldc * sizeof(float)) &&
        same_bits(c.data() + rows * ldc, start.data() + kMaxRows * ldc, ldc * sizeof(float));
    report.check(same, what + " rows=" + std::to_string(rows) + ": differs from rows alone");
  }
}

// Units of the cache: d / 16 blocks over 16 tokens each, in one piece.
std::vector<std::vector<unsigned char>> make_units(bool bf16, int count, int d, Random& random) {
  std::vector<std::vector<unsigned char>> units(count);
  for (auto& unit : units) {
    for (int n = 0; n < d / kLanes; ++n) {
      const Block block(bf16, kLanes, random);
      unit.insert(unit.end(), block.bytes.begin(),
                  block.bytes.begin() + (bf16 ? 2 : 4) * kLanes * kLanes);
    }
  }
  return units;
}

// All tokens of a unit that no key stands for hold NaN.
void poison(bool bf16, int lane, int d, std::vector<unsigned char>& unit) {
  const std::size_t element = bf16 ? 2 : 4;
  for (int i = 0; i < d; ++i) {
    const std::size_t block = static_cast<std::size_t>(i / kLanes) * kLanes * kLanes;
    const std::size_t at =
        bf16 ? bf16_block_index(i % kLanes, lane) : f32_block_index(i % kLanes, lane);
    std::memset(&unit[(block + at) * element], 0xff, element);
  }
}

void value_case(const Level& level, int keys, int d, Report& report) {
  Random random(static_cast<std::uint32_t>(keys * 1000 + d));
  // Sixteen keys in a row are a whole unit, or lie anywhere.
  const int groups = (keys + kLanes - 1) / kLanes;
  auto units = make_units(level.bf16, groups + 3, d, random);
  std::vector<const void*> pointers;
  std::vector<std::int32_t> lanes;
  std::vector<std::vector<bool>> used(units.size(), std::vector<bool>(kLanes));
  for (int key = 0; key < keys; ++key) {
    const int group = key / kLanes;
    const bool whole = group % 3 != 1;
    const int unit = whole ? group : groups + random.below(3);
    pointers.push_back(units[unit].data());
    lanes.push_back(whole ? key % kLanes : random.below(kLanes));
    used[unit][lanes.back()] = true;
  }
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!used[unit][lane]) poison(level.bf16, lane, d, units[unit]);
    }
  }
  constexpr int rows = 70;
  const std::size_t ldp = keys + 2, ldo = d + 4;
  std::vector<float> p = random.floats(rows * ldp);
  if (level.bf16) std::transform(p.begin(), p.end(), p.begin(), round_to_bf16);
  const std::vector<float> start = random.floats(rows * ldo);
  const auto run = [&](const Kernels& kernels, int first, int count, int from, int to,
                       std::vector<float>& o) {
    kernels.value_rows({p.data() + first * ldp + from, ldp, count, pointers.data() + from,
                        lanes.data() + from, to - from, d, o.data() + first * ldo, ldo});
  };
  std::vector<float> together = start, alone = start, scalar = start, cut = start;
  run(level.kernels, 0, rows, 0, keys, together);
  run(level.scalar, 0, rows, 0, keys, scalar);
  for (int row = 0; row < rows; ++row) run(level.kernels, row, 1, 0, keys, alone);
  for (int from = 0; from < keys; from += level.kernels.value_step) {
    run(level.kernels, 0, rows, from, std::min(keys, from + level.kernels.value_step), cut);
  }
  const std::string what =
      level.name + " value_rows keys=" + std::to_string(keys) + " d=" + std::to_string(d);
  report.check(close(together.data(), scalar.data(), scalar.size(), 5e-5f),
               what + ": differs from scalar");
  report.check(same_bits(together, alone), what + ": differs from rows alone");
  report.check(same_bits(together, cut), what + ": differs when cut into steps");
}

}  // namespace

void panel_cases(const Level& level, Report& report) {
  for (const int k : {1, 5, 16, 64}) {
    for (int blocks = 1; blocks <= kMaxBlocks; ++blocks) {
      panel_case(level, k, blocks, report);
    }
  }
  // A depth and a number of keys beyond what one product on tiles takes.
  panel_case(level, 272, 2, report);
  value_case(level, 300, 48, report);
  for (const int keys : {0, 1, 5, 16, 31, 32, 33, 100}) {
    for (const int d : {16, 32, 64, 96}) value_case(level, keys, d, report);
  }
}

}  // namespace forerun
