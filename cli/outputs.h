// Output files of commands: checked before the work, so that no result is lost and no input is overwritten.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace ovq::cli {

// The file given by `flag` must be writable, must not be an input of the command (compared by device and inode, so also
// under another name) and must not belong to a model or run. `reads`: input files, and directories with all their
// content; names that are no paths, like "bytes" or a preset, are ignored. UsageError or std::runtime_error, which name
// the flag.
void check_output_file(const std::string& flag, const std::string& file, const std::vector<std::string>& reads);

// The directory must be writable, or it must be possible to create it.
void check_output_directory(const std::string& flag, const std::string& directory);

// Calls `write` with the file's name. If that fails, calls it again with a file in the temporary directory and throws a
// std::runtime_error that names it.
void write_result(const std::string& file, const std::function<void(const std::filesystem::path&)>& write);

}  // namespace ovq::cli
