// How fast the machine reads memory: what a decoding step is measured against.
#pragma once

#include <cstddef>
#include <vector>

namespace forerun {

// Reads `bytes` (at least a few times the last-level cache) with all threads,
// `repeats` times; returns the best, in GB/s.
double read_bandwidth(int threads, const std::vector<int>& cpus, std::size_t bytes, int repeats);

}  // namespace forerun
