#include <dlfcn.h>

#include <stdexcept>

#include "ovq/text/sentencepiece_plugin.h"

namespace ovq::text {

#ifdef OVQ_SANITIZED
// The sanitizers' dlopen refuses RTLD_DEEPBIND and does not search the program's RPATH; without torch, linking is safe.
const SentencePiecePlugin& sentencepiece_plugin() { return *ovq_sentencepiece_plugin(); }
#else
// Loads the library from the program's directory or the system's path.
const SentencePiecePlugin& sentencepiece_plugin() {
  static const SentencePiecePlugin& plugin = []() -> const SentencePiecePlugin& {
    void* library = dlopen("libovq_sentencepiece.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void* symbol = library == nullptr ? nullptr : dlsym(library, kSentencePiecePlugin);
    if (symbol == nullptr) throw std::runtime_error(std::string("cannot load SentencePiece: ") + dlerror());
    return *reinterpret_cast<decltype(&ovq_sentencepiece_plugin)>(symbol)();
  }();
  return plugin;
}
#endif

}  // namespace ovq::text
