#include "ovq/text/documents.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "ovq/base/error.h"
#include "ovq/text/utf8.h"

namespace ovq::text {

namespace fs = std::filesystem;

std::vector<std::string> document_paths(const char* op, const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check_data(fs::exists(status), op, path.empty() ? "\"\"" : path,
             " does not exist; expected a text file or a folder of .txt files");
  if (!fs::is_directory(status)) return {path};
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file() && entry.path().extension() == ".txt") paths.push_back(entry.path().string());
  }
  check_data(!error, op, path, " cannot be read: ", error.message());
  check_data(!paths.empty(), op, path, " has no .txt files");
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> document_paths(const char* op, const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    for (std::string& document : document_paths(op, path)) all.push_back(std::move(document));
  }
  return all;
}

std::string read_text_file(const char* op, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check_data(fs::is_regular_file(path) && file, op, path, " cannot be read; expected a file");
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  check_data(!file.bad(), op, path, " cannot be read to its end");
  check_data(!text.empty(), op, path, " is empty");
  return text;
}

std::string read_utf8_file(const char* op, const std::string& path) {
  std::string text = read_text_file(op, path);
  const size_t valid = valid_prefix(text);
  check_data(valid == text.size(), op, path, " is not UTF-8 at byte ", valid, "; convert it, for example with iconv");
  return text;
}

}  // namespace ovq::text
