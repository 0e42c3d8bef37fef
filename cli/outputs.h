// Files that commands write: checked before the work, so that it is not lost, and never one that a command reads.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace ovq::cli {

// What `flag` names must be a file that can be written, none that the command reads (the same by device and inode, so
// also under another name) and no part of a model or run. `reads`: files, and directories with all that is in them;
// what is no path, like "bytes" or a preset, is passed over. UsageError or std::runtime_error, which name the flag.
void check_output_file(const std::string& flag, const std::string& file, const std::vector<std::string>& reads);

// A directory that is there and can be written into, or that can be created.
void check_output_directory(const std::string& flag, const std::string& directory);

// Calls `write` with the file's name. If that fails, calls it again with a file in the temporary directory and throws a
// std::runtime_error that names it.
void write_result(const std::string& file, const std::function<void(const std::filesystem::path&)>& write);

}  // namespace ovq::cli
